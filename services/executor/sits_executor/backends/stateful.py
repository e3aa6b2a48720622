"""Models that a run changes, such as one with a counter: runs that nobody asked for must not."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

from sits_executor.backends.base import Backend


@runtime_checkable
class Stateful(Protocol):
    """What a backend may have besides."""

    def state_kept(self) -> AbstractContextManager[None]:
        """At its end the model is as it was at its beginning."""
        ...


def state_kept(backend: Backend) -> AbstractContextManager[None]:
    return backend.state_kept() if isinstance(backend, Stateful) else nullcontext()
