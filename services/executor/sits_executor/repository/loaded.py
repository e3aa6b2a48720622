"""One version of one model that is ready to run."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from sits_executor.backends.base import Backend
from sits_executor.contract import Contract
from sits_executor.pipelines.backend import PipelineBackend
from sits_executor.queue import BatchQueue
from sits_executor.repository.sharing import Shared
from sits_protos.v1.link_pb2 import ModelEntry


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """`close` refuses new batches; accepted ones finish, then the backend is closed, unless a
    pipeline still holds it. `computing`: threads that do nothing but compute its batches."""

    entry: ModelEntry
    contract: Contract
    shared: Shared
    queue: BatchQueue
    computing: Sequence[threading.Thread] = ()

    @property
    def backend(self) -> Backend:
        return self.shared.backend

    @property
    def steps(self) -> frozenset[str]:
        """Models that it is a pipeline of; none for others."""
        backend = self.shared.backend
        return backend.models if isinstance(backend, PipelineBackend) else frozenset()

    def close(self) -> None:
        self.queue.close()

    def __repr__(self) -> str:
        return f"<LoadedModel {self.entry.name}/{self.entry.version} {self.queue!r}>"
