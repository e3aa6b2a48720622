"""What services share through Redis, and every key they use.

Keys (prefix `sits` is `SITS_REDIS_PREFIX`; the braces keep all of them in one slot):
  {sits}:lease:<role>:<id>     serialized sits.v1.Lease, TTL `LEASE_TTL_S`
  {sits}:leases:<role>         sorted set of ids, score = expiry in Unix ms
  {sits}:topology:<host>       serialized sits.v1.TopologySnapshot, TTL `TOPOLOGY_TTL_S`
  {sits}:topologies            sorted set of hosts, score = expiry in Unix ms
  {sits}:strategy              hash: model name, or "" for the default → strategy,
                               TTL `STRATEGY_TTL_S`, renewed by whoever reads it: a choice
                               of people lasts as long as there is a mesh
  {sits}:scale                 capacity wanted over capacity there is, as decimal text, by the
                               dispatcher that wrote last, TTL `SCALE_TTL_S`; for autoscalers
  {sits}:events                stream of steps of governance, the last `EVENTS_KEPT` or so: what was
                               and is its level, tiers refused, and the cause; TTL `EVENTS_TTL_S`
                               from the last one
  {sits}:answer:<digest>       serialized sits.v1.CachedAnswer, by the front door that asked, TTL
                               as the model says; none is renewed
Channel:
  {sits}:changes               "lease", "topology" or "strategy" after each change (a lease
                               that is merely renewed is none); a hint, subscribers poll as well
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sits_protos.v1.link_pb2 import Role
from sits_protos.v1.registry_pb2 import CachedAnswer, Lease
from sits_protos.v1.topology_pb2 import TopologySnapshot

LEASE_TTL_S = 6
LEASE_PERIOD_S = 2.0
TOPOLOGY_TTL_S = 15
TOPOLOGY_PERIOD_S = 5.0
STRATEGY_TTL_S = 30 * 86_400
SCALE_TTL_S = 10
EVENTS_TTL_S = 7 * 86_400
EVENTS_KEPT = 1000
POLL_PERIOD_S = 1.0

Change = Callable[[], None]


class RegistryUnavailable(Exception):
    """Redis did not answer. Callers go on with what they last knew."""


class Registry(Protocol):
    """Shared state with expiry. Every call may raise `RegistryUnavailable`, none blocks
    longer than a second or two. `sits_core.redis_registry` is the real one,
    `sits_core.testing.MemoryRegistry` the one for tests."""

    def publish_lease(self, lease: Lease) -> None: ...
    def withdraw_lease(self, role: Role.ValueType, process_id: str) -> None: ...
    def leases(self, role: Role.ValueType) -> list[Lease]:
        """Unexpired ones. Unreadable records are counted and skipped."""
        ...

    def publish_topology(self, snapshot: TopologySnapshot) -> None: ...
    def topologies(self) -> list[TopologySnapshot]: ...
    def set_strategy(self, model: str, strategy: str) -> None: ...
    def strategies(self) -> Mapping[str, str]: ...
    def publish_scale(self, factor: float) -> None: ...
    def scale(self) -> float | None:
        """None when no dispatcher wrote one lately."""
        ...

    def publish_event(self, event: Mapping[str, str]) -> None:
        """Keep something that happened, for people and their tools."""
        ...

    def events(self) -> list[dict[str, str]]:
        """The oldest first."""
        ...

    def subscribe(self, on_change: Change) -> Callable[[], None]:
        """Call `on_change` soon after each change, from another thread; it must not block
        nor raise. A hint: some may be missing. Returns what ends it. Never raises."""
        ...


class AnswerStore(Protocol):
    """Answers of models that front doors keep for each other. Every call may raise
    `RegistryUnavailable`, none blocks longer than a second or two.
    `sits_core.redis_answers` is the real one, `sits_core.testing.MemoryAnswers` the one for
    tests."""

    def read(self, digests: Sequence[bytes]) -> list[CachedAnswer | None]: ...
    def write(self, answers: Sequence[tuple[CachedAnswer, int]]) -> None:
        """Each with the milliseconds that it is kept."""
        ...

    def close(self) -> None: ...


class Keeper(Protocol):
    """Runs until stopped on a thread of its own; survives `RegistryUnavailable`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
