"""One version of one model that is ready to run."""

from dataclasses import dataclass

from sits_executor.backends.base import Backend
from sits_executor.contract import Contract
from sits_executor.queue import BatchQueue
from sits_protos.v1.link_pb2 import ModelEntry


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """`close` refuses new batches; accepted ones finish, then the backend is closed."""

    entry: ModelEntry
    contract: Contract
    backend: Backend
    queue: BatchQueue

    def close(self) -> None:
        self.queue.close()

    def __repr__(self) -> str:
        return f"<LoadedModel {self.entry.name}/{self.entry.version} {self.queue!r}>"
