"""The mesh as one dispatcher sees it: ties members, fronts, placement and registry together."""

import math
import random
import threading
from collections.abc import Callable, Mapping

import structlog

from sits_core.clock import now_ns
from sits_core.registry import Registry, RegistryUnavailable
from sits_dispatcher.bad_devices import on_bad_devices
from sits_dispatcher.catalog import credits_for
from sits_dispatcher.dispatcher import Dispatcher
from sits_dispatcher.executors import Executors
from sits_dispatcher.fronts import Fronts
from sits_dispatcher.gangs import Chosen, Gangs, Wanted
from sits_dispatcher.governance import Governance, record
from sits_dispatcher.job import Front
from sits_dispatcher.memory_rows import free_memory
from sits_dispatcher.messages import shadow_report
from sits_dispatcher.metrics import Metrics
from sits_dispatcher.unknown_devices import UnknownDevices
from sits_dispatcher.weights import Weights
from sits_protos.v1.control_pb2 import GetStateResponse, PeerState
from sits_protos.v1.link_pb2 import Catalog, Credits, Hello, Role
from sits_protos.v1.registry_pb2 import Lease
from sits_protos.v1.topology_pb2 import TopologySnapshot
from sits_scheduling.explain import Explanation
from sits_scheduling.shadow import ShadowReport

log = structlog.get_logger()

CONNECTED_S = 5.0
"""Redis counts as connected this long after its last answer."""


class Mesh:
    """What a dispatcher knows, what it tells, and what it can be told."""

    def __init__(
        self, dispatcher: Dispatcher, executors: Executors, fronts: Fronts,
        weights: Weights, registry: Registry | None, metrics: Metrics, static: list[str],
        governance: Governance,
    ) -> None:  # fmt: skip
        self.dispatcher, self.executors, self.fronts = dispatcher, executors, fronts
        self._weights, self._metrics = weights, metrics
        self.registry, self.static = registry, static
        self._topologies: list[Lease] = []
        self._seen_strategies: Mapping[str, str] = {}
        self._unshared: dict[str, str] = {}
        self._sharing = threading.Lock()
        self._unknown_devices = UnknownDevices()
        self._telling = threading.Lock()
        self._gangs, self._choosing = Gangs(random.Random()), threading.Lock()  # noqa: S311 - ties
        self._leaving = False
        self.redis_age_s: Callable[[], float] = lambda: math.inf
        self.governance = governance
        executors.changed = fronts.changed = governance.changed = self.tell_fronts
        self._credited = threading.Event()
        executors.credited = self._credited.set

    def catalog(self) -> Catalog:
        """Every model, and pipelines whose steps are on several executors."""
        catalog = self.executors.catalog()
        with self.dispatcher.lock:
            return self.dispatcher.steps.pipelines.follow(catalog)

    # out

    def tell_fronts(self) -> None:
        """Models or credits changed: tell every front. Absolute values, so repeats do no harm."""
        with self._telling:
            catalog = self.catalog()
            members = self.executors.members()
            self._metrics.executors.set(len(members))
            sharing = any(m.shares_memory for m in members)

            def credits_of(front: Front) -> Credits:
                if self._leaving:
                    return Credits()
                with self.dispatcher.lock:
                    return credits_for(
                        catalog,
                        self.dispatcher.steps.capacity,
                        len(self.fronts),
                        front.shares_memory and sharing,
                        self.governance.orders,
                        self.dispatcher.placer.row_ns,
                    )

            self.fronts.tell(catalog, credits_of)

    def leave(self) -> None:
        """From now on fronts may send nothing here; what they sent is still answered."""
        self._leaving = True
        self.tell_fronts()

    # in

    def poll_registry(self) -> None:
        """Follow leases, weights and strategies. Raises `RegistryUnavailable`."""
        if self.registry is None:
            return
        leases = self.registry.leases(Role.ROLE_EXECUTOR)
        self.executors.follow([*self.static, *(lease.address for lease in leases)])
        self._topologies = self.registry.leases(Role.ROLE_TOPOLOGY)
        weights = self._weights.update(self.registry.topologies())
        if weights is not None:
            with self.dispatcher.lock:
                self.dispatcher.table.set_affinity(weights)
            self.executors.follow_memory(free_memory(self._weights.snapshots()))
        linked = [member.hello for member in self.executors.members()]
        self._unknown_devices.look(linked, self._weights.snapshots())
        with self.dispatcher.lock:
            self.dispatcher.guard.on_bad_devices(on_bad_devices(linked, self._weights.snapshots()))
        self._share_strategies(self.registry)
        self._follow_strategies(self.registry.strategies())
        self.registry.publish_scale(self.governance.plan.scale_factor)
        self._publish_steps(self.registry)

    def _publish_steps(self, registry: Registry) -> None:
        """What Redis does not take is kept for later."""
        untold = self.governance.untold
        while untold:
            registry.publish_event(record(untold[0]))
            untold.popleft()

    def tick(self) -> None:
        """Several times a second: refuse what waited too long, govern, refresh gauges. What
        executors grant changes for many of them at once, and fronts hear it once."""
        self.dispatcher.expire()
        if self._credited.is_set():
            self._credited.clear()
            self.tell_fronts()
        self.governance.tick(now_ns())
        self._metrics.topology_age.set(self._weights.age_s())
        self._metrics.redis_age.set(self.redis_age_s())

    def hedge(self) -> None:
        """Every few milliseconds, where hedging is on."""
        self.dispatcher.hedge(now_ns())

    def switch(self, strategy: str, model: str = "") -> str:
        """Switch here at once and, through Redis, on every other dispatcher."""
        with self.dispatcher.lock:
            previous = self.dispatcher.placer.switch(strategy, model)
            if self.registry is not None:
                self._unshared[model] = strategy
        log.info("strategy.switched", previous=previous, current=strategy, model=model or "all")
        if self.registry is not None:
            try:
                self._share_strategies(self.registry)
            except RegistryUnavailable:
                log.warning("strategy.not_shared", reason="Redis does not answer; tried again")
        return previous

    def set_shadow(self, strategy: str) -> ShadowReport | None:
        with self.dispatcher.lock:
            return self.dispatcher.placer.set_shadow(strategy)

    def choose_gang(self, wanted: Wanted) -> Chosen:
        """GPUs of one link domain, by the newest weights. Raises `Unavailable`, or
        `InvalidArgument`."""
        linked = {member.hello.id for member in self.executors.members()}
        with self._choosing:
            return self._gangs.choose(wanted, self.snapshots(), linked, now_ns() / 1e9)

    def explain(self, request_id: str, limit: int) -> list[Explanation]:
        with self.dispatcher.lock:
            return self.dispatcher.placer.explain(request_id, limit)

    def _share_strategies(self, registry: Registry) -> None:
        """What Redis does not take is shared by a later poll. Raises `RegistryUnavailable`."""
        with self._sharing:
            for model, strategy in list(self._unshared.items()):
                registry.set_strategy(model, strategy)
                with self.dispatcher.lock:
                    if self._unshared[model] == strategy:  # not switched again meanwhile
                        del self._unshared[model]

    def _follow_strategies(self, shared: Mapping[str, str]) -> None:
        """Take over what changed since the last look, so that a local switch made while
        Redis was away is not undone by an old value."""
        changed = {m: s for m, s in shared.items() if self._seen_strategies.get(m) != s}
        self._seen_strategies = dict(shared)
        for model, strategy in changed.items():
            if self.dispatcher.placer.knows(strategy):
                with self.dispatcher.lock:
                    self.dispatcher.placer.switch(strategy, model)
            else:
                log.warning("strategy.unknown", strategy=strategy, model=model)

    # state

    def snapshots(self) -> list[TopologySnapshot]:
        """The newest topology of each host."""
        return self._weights.snapshots()

    def describe(self, state: GetStateResponse) -> None:
        """Fill in what an operator asks for."""
        placer = self.dispatcher.placer
        state.strategy = placer.default
        state.model_strategies.update(placer.by_model)
        state.strategies.extend(placer.names())
        if (shadow := shadow_report(placer.shadow())) is not None:
            state.shadow.CopyFrom(shadow)
        state.governance.CopyFrom(self.governance.describe())
        state.topology_age_s = self._weights.age_s()
        state.redis_configured = self.registry is not None
        state.redis_connected = self.redis_age_s() < CONNECTED_S
        state.models.extend(self.catalog().models)
        state.peers.extend(self._executor_states())
        state.peers.extend(self._topology_states())
        state.peers.extend(
            PeerState(
                hello=hello,
                address=link.peer,
                connected=True,
                transport=link.way(shared_payloads=front.shares_memory),
            )
            for link, hello, front in self.fronts.hellos()
        )

    def _topology_states(self) -> list[PeerState]:
        """Not linked to us: known by their leases, heard of through Redis."""
        return [
            PeerState(
                hello=Hello(
                    role=lease.role,
                    id=lease.id,
                    host=lease.host,
                    control_address=lease.control_address,
                ),
                address=lease.address,
                connected=True,
                transport="redis",
            )
            for lease in self._topologies
        ]

    def _executor_states(self) -> list[PeerState]:
        states = []
        for member in self.executors.members():
            with self.dispatcher.lock:
                table = self.dispatcher.table
                if member.hello.id not in table:
                    continue
                batches = table.batches_in_flight(member.hello.id)
                rows = table.rows_in_flight(member.hello.id)
            states.append(
                PeerState(
                    hello=member.hello,
                    address=member.link.peer,
                    connected=True,
                    transport=member.link.way(shared_payloads=member.shares_memory),
                    batches_in_flight=batches,
                    rows_in_flight=rows,
                    batches_total=member.results,
                )
            )
        return states
