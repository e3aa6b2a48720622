"""Fakes for tests of the front door: models and a catalog made of them."""

from collections.abc import Sequence

from sits_core.errors import InvalidArgument, NotFound, Unavailable
from sits_preprocess.catalog import Model
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import ModelState


def make_model(
    name: str,
    version: str = "1",
    state: ModelState.ValueType = ModelState.MODEL_STATE_READY,
    *,
    reason: str = "",
    metadata: ModelMetadataResponse | None = None,
    config: ModelConfig | None = None,
) -> Model:
    """A model without tensors unless `metadata` and `config` say otherwise."""
    return Model(
        name,
        version,
        state,
        reason,
        metadata or ModelMetadataResponse(name=name, versions=[version], platform="fake"),
        config or ModelConfig(name=name, max_batch_size=8),
    )


class FakeCatalog:
    """Stands for `Catalog`; assign `known` to change what is announced.

    Malformed names are merely unknown to it.
    """

    def __init__(self, *known: Model) -> None:
        self.known: Sequence[Model] = known

    def find(self, name: str, version: str) -> Model:
        if version and not (version.isdecimal() and version[0] != "0"):
            raise InvalidArgument(
                f"failed to get model version from specified version string '{version}'"
            )
        named = [model for model in self.models() if model.name == name]
        if not named:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        asked = [model for model in named if version in ("", model.version)]
        if not asked:
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        ready = [model for model in asked if model.ready]
        if not ready:
            raise Unavailable(
                f"Request for unknown model: '{name}' version {asked[-1].version} is not at "
                "ready state"
            )
        return ready[-1]

    def models(self) -> list[Model]:
        return sorted(self.known, key=lambda model: (model.name, int(model.version)))
