"""From a configuration that Triton completed to a version that this executor serves."""

from collections.abc import Callable
from typing import Final

from sits_executor.contract import contract_of
from sits_executor.instances import Instances
from sits_executor.queue import BatchQueue
from sits_executor.repository.check import check
from sits_executor.repository.describe import entry_of
from sits_executor.repository.loaded import LoadedModel
from sits_executor.repository.loader import MakeRunner
from sits_executor.repository.sharing import Shared
from sits_executor.repository.supported import MAX_INSTANCES, refuse_unsupported
from sits_executor.triton.backend import TritonBackend
from sits_executor.triton.memory import SharedInputs
from sits_executor.triton.server import TritonServer
from sits_protos.oip.model_config_pb2 import ModelConfig

AT_ONCE: Final = 2
"""Requests at the server for each of its instances: one runs, one is there already."""


class Maker:
    """What all versions of one server have in common."""

    def __init__(
        self, server: TritonServer, make_runner: MakeRunner, *, queue_batches: int, share: bool
    ) -> None:
        self._server, self._make_runner = server, make_runner
        self._queue_batches, self._share = queue_batches, share

    def __call__(
        self, config: ModelConfig, version: str, versions: list[str], lost: Callable[[], object]
    ) -> LoadedModel:
        """Raises `LoadError` for what SITS does not do, by name."""
        own = ours(config)
        contract = contract_of(own, version)
        memory = SharedInputs(self._server, on=self._share)
        backend = TritonBackend(self._server, contract, memory, lost)
        count = min(MAX_INSTANCES, AT_ONCE * _instances(own))
        entry = entry_of(own, version, versions, {}, "", count)
        queue = BatchQueue(
            max(self._queue_batches, entry.slots), own.dynamic_batching.default_priority_level
        )
        shared = Shared(backend, count)
        Instances(
            f"{contract.model}/{version}",
            count,
            queue,
            self._make_runner(contract, backend),
            shared.release,
        ).start()
        return LoadedModel(entry, contract, shared, queue)


def ours(config: ModelConfig) -> ModelConfig:
    """A model of the mesh: an ensemble of the server is one model here, its steps are its own."""
    own = ModelConfig()
    own.CopyFrom(config)
    own.ClearField("ensemble_scheduling")
    own.platform = config.platform or f"triton_{config.backend or 'model'}"
    refuse_unsupported(own)
    check(own, None)
    return own


def _instances(config: ModelConfig) -> int:
    return max(1, sum(max(1, group.count) for group in config.instance_group))
