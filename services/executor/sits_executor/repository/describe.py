"""What others are told about a loaded model: metadata, configuration, labels."""

from collections.abc import Sequence

from sits_executor.contract import DATATYPES
from sits_executor.repository.layout import ModelFolder
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import ModelConfig, ModelInput, ModelOutput
from sits_protos.v1.link_pb2 import Labels, ModelEntry, ModelState

SLOTS_PER_INSTANCE = 2
"""One batch runs while the next one is already here, so that an instance never waits."""


def entry_of(
    config: ModelConfig, version: str, versions: Sequence[str], labels: dict[str, Labels],
    fallback: str, instances: int, content: bytes = b"",
) -> ModelEntry:  # fmt: skip
    """The announcement of a version that is ready."""
    return ModelEntry(
        name=config.name,
        version=version,
        state=ModelState.MODEL_STATE_READY,
        reason=f"runs on the CPU instead of a GPU: {fallback}" if fallback else "",
        metadata=metadata_of(config, versions).SerializeToString(),
        config=config.SerializeToString(),
        instances=instances,
        slots=SLOTS_PER_INSTANCE * instances,
        labels=labels,
        content=content,
    )


def announced_apart(entry: ModelEntry) -> ModelEntry:
    """What is still told of a pipeline that cannot run here: a dispatcher may run its steps on
    several executors."""
    return ModelEntry(metadata=entry.metadata, config=entry.config, labels=entry.labels)


def metadata_of(config: ModelConfig, versions: Sequence[str]) -> ModelMetadataResponse:
    """Shapes include the batch dimension as -1 when the model batches."""
    lead = [-1] if config.max_batch_size > 0 else []
    return ModelMetadataResponse(
        name=config.name,
        versions=versions,
        platform=config.platform or config.backend,
        inputs=[_tensor(entry, lead) for entry in config.input],
        outputs=[_tensor(entry, lead) for entry in config.output],
    )


def read_labels(config: ModelConfig, folder: ModelFolder) -> dict[str, Labels]:
    """Class names by output, from its `label_filename`: one a line."""
    return {
        output.name: Labels(values=folder.text(output.label_filename).splitlines())
        for output in config.output
        if output.label_filename
    }


def _tensor(
    entry: ModelInput | ModelOutput, lead: list[int]
) -> ModelMetadataResponse.TensorMetadata:
    return ModelMetadataResponse.TensorMetadata(
        name=entry.name, datatype=DATATYPES[entry.data_type], shape=[*lead, *entry.dims]
    )
