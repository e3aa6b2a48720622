"""The ablation ladder: what each of its steps adds to the one before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

Env = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """A configuration of the mesh. `more` is the batching part of the model's config.pbtxt.

    `client_memory`: large tensors lie in shared memory of the client.
    """

    title: str
    env: Env = field(default_factory=dict)
    max_batch: int = 1
    more: str = ""
    client_memory: bool = False


BARE: Final = Step(
    "our mesh, everything off",
    {
        "SITS_PREPROCESS_TRANSPORT": "grpcio",
        "SITS_FORCE_GRPC_LINKS": "true",
        "SITS_PREPROCESS_POOL_BYTES": "0",
        "SITS_EXECUTOR_POOL_BYTES": "0",
        "SITS_DISPATCHER_STRATEGY": "round_robin",
        "SITS_TRACE_RATIO": "1",
        "SITS_PREPROCESS_ALLOW_CLIENT_SHM": "true",
    },
)

_MALLOC: Final = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


def _window(microseconds: int) -> str:
    return f"dynamic_batching {{ max_queue_delay_microseconds: {microseconds} }}"


@dataclass(frozen=True, slots=True)
class _Change:
    title: str
    env: Env = field(default_factory=dict)
    without: Sequence[str] = ()
    max_batch: int | None = None
    more: str | None = None
    client_memory: bool = False

    def on(self, before: Step) -> Step:
        env = {k: v for k, v in before.env.items() if k not in self.without}
        return replace(
            before,
            title=self.title,
            env={**env, **self.env},
            max_batch=before.max_batch if self.max_batch is None else self.max_batch,
            more=before.more if self.more is None else self.more,
            client_memory=before.client_memory or self.client_memory,
        )


_CHANGES: Final = (
    _Change("one request in a hundred is traced, not all", {"SITS_TRACE_RATIO": "0.01"}),
    _Change("placed where least waits", {"SITS_DISPATCHER_STRATEGY": "least_loaded"}),
    _Change("placed by topology too", {"SITS_DISPATCHER_STRATEGY": "topo_aware"}),
    _Change("batches of up to 4, collected for 1 ms", max_batch=4, more=_window(1000)),
    _Change("collected for 100 µs", more=_window(100)),
    _Change("not collected: sent when an executor has room", more=""),
    _Change("batches of up to 8", max_batch=8),
    _Change("batches of up to 32", max_batch=32),
    _Change("HTTP/2 of the front door in Rust", {"SITS_PREPROCESS_TRANSPORT": "native"}),
    _Change("links through rings", without=("SITS_FORCE_GRPC_LINKS",)),
    _Change(
        "inputs from 256 KiB on in the payload pool",
        {"SITS_PREPROCESS_POOL_THRESHOLD_BYTES": str(256 << 10)},
        without=("SITS_PREPROCESS_POOL_BYTES",),
    ),
    _Change(
        "outputs too",
        {"SITS_EXECUTOR_POOL_THRESHOLD_BYTES": str(256 << 10)},
        without=("SITS_EXECUTOR_POOL_BYTES",),
    ),
    _Change(
        "the pool from 32 KiB on",
        without=("SITS_PREPROCESS_POOL_THRESHOLD_BYTES", "SITS_EXECUTOR_POOL_THRESHOLD_BYTES"),
    ),
    _Change("one malloc arena that keeps its memory", _MALLOC),
    _Change("large tensors in the client's shared memory", client_memory=True),
)


def steps() -> list[Step]:
    """From the bare mesh to the full one; the naive mesh stands before them."""
    found = [BARE]
    for change in _CHANGES:
        found.append(change.on(found[-1]))
    return found
