"""The mesh and its topology as the admin API tells them."""

from collections.abc import Iterable, Sequence
from typing import TypeVar
from zlib import crc32

from sits_core.clock import now_ns
from sits_dispatcher import admin_models as api
from sits_dispatcher.mesh import Mesh
from sits_protos.v1 import topology_pb2 as topo
from sits_protos.v1.control_pb2 import GetStateResponse, Governance, PeerState
from sits_protos.v1.link_pb2 import ModelEntry, ModelState, Role
from sits_scheduling.signals import RULES

T = TypeVar("T", int, float)


def state(mesh: Mesh, version: str, started_unix_ns: int) -> api.State:
    """What the dispatcher knows by itself; nobody else is asked."""
    seen = GetStateResponse()
    mesh.describe(seen)
    by_role = _by_role(seen.peers)
    return api.State(
        version=version,
        started_unix_ms=started_unix_ns // 1_000_000,
        strategy=seen.strategy,
        strategies=list(seen.strategies),
        model_strategies=dict(seen.model_strategies),
        redis=_redis(mesh, seen),
        topology_age_s=seen.topology_age_s if seen.topology_age_s >= 0 else None,
        executors=[_executor(mesh, peer) for peer in by_role.get(Role.ROLE_EXECUTOR, ())],
        fronts=[_front(peer) for peer in by_role.get(Role.ROLE_PREPROCESS, ())],
        models=[_model(entry, seen) for entry in seen.models],
        governance=_governance(seen.governance, acts=mesh.governance.acts),
    )


def _by_role(peers: Iterable[PeerState]) -> dict[Role.ValueType, list[PeerState]]:
    found: dict[Role.ValueType, list[PeerState]] = {}
    for peer in peers:
        found.setdefault(peer.hello.role, []).append(peer)
    return found


def _redis(mesh: Mesh, seen: GetStateResponse) -> api.Redis:
    age_s = mesh.redis_age_s()
    return api.Redis(
        configured=seen.redis_configured,
        connected=seen.redis_connected,
        age_s=age_s if age_s != float("inf") else None,
    )


def _executor(mesh: Mesh, peer: PeerState) -> api.Executor:
    ready = [
        entry
        for entry in mesh.executors.models_of(peer.hello.id)
        if entry.state == ModelState.MODEL_STATE_READY
    ]
    return api.Executor(
        id=peer.hello.id,
        host=peer.hello.host,
        device=peer.hello.device,
        address=peer.address,
        transport=peer.transport,
        draining=peer.hello.draining,
        batches_in_flight=peer.batches_in_flight,
        rows_in_flight=peer.rows_in_flight,
        batches_total=peer.batches_total,
        parallel=max((entry.instances for entry in ready), default=0),
        slots=max((entry.slots for entry in ready), default=0),
    )


def _front(peer: PeerState) -> api.Front:
    hello = peer.hello
    return api.Front(
        id=hello.id,
        host=hello.host,
        address=hello.control_address or peer.address,
        transport=peer.transport,
    )


def _model(entry: ModelEntry, seen: GetStateResponse) -> api.ServedModel:
    return api.ServedModel(
        name=entry.name,
        version=entry.version,
        state=_word(ModelState.Name(entry.state), "MODEL_STATE_"),
        reason=entry.reason,
        strategy=seen.model_strategies.get(entry.name, seen.strategy),
    )


def _governance(seen: Governance, *, acts: bool) -> api.Governance:
    return api.Governance(
        acts=acts,
        level=seen.level,
        scale_factor=seen.scale_factor,
        shed_tiers=list(seen.shed_tiers),
        signals=[
            api.Signal(name=name, value=value, limits=_limits(name))
            for name, value in sorted(seen.signals.items())
        ],
        steps=[
            api.Step(
                at_unix_ms=event.at_unix_ns // 1_000_000,
                before=event.before,
                after=event.after,
                shed_tiers=list(event.shed_tiers),
                cause=event.cause,
            )
            for event in seen.events
        ],
    )


def _limits(signal: str) -> list[api.Limit]:
    return [
        api.Limit(level=rule.level.name.lower(), above=rule.enter)
        for rule in RULES
        if rule.signal == signal
    ]


# Topology


def topology(snapshots: Iterable[topo.TopologySnapshot]) -> api.Topology:
    return api.Topology(hosts=[_host(s) for s in sorted(snapshots, key=lambda s: s.node_name)])


def revision(snapshots: Iterable[topo.TopologySnapshot]) -> str:
    """Changes with every snapshot, of whichever host."""
    newest = sorted((s.host, s.published_unix_ns) for s in snapshots)
    return f"{crc32(repr(newest).encode()):08x}" if newest else ""


def _host(snapshot: topo.TopologySnapshot) -> api.Host:
    return api.Host(
        host=snapshot.host,
        node_name=snapshot.node_name,
        version=snapshot.version,
        age_s=max(0, now_ns() - snapshot.published_unix_ns) / 1e9,
        sources=list(snapshot.sources),
        devices=[_device(device) for device in snapshot.devices],
        links=_links(snapshot.links),
        weights=[
            api.Weight(from_=_from(weight), to=weight.to, weight=round(weight.weight, 4))
            for weight in snapshot.weights
        ],
    )


def _device(device: topo.Device) -> api.Device:
    return api.Device(
        id=device.id,
        kind=_word(topo.DeviceKind.Name(device.kind), "DEVICE_KIND_"),
        name=device.name,
        numa_node=device.numa_node if device.numa_node >= 0 else None,
        index=device.index if device.index >= 0 else None,
        memory_total_bytes=_given(device, "memory_total_bytes", device.memory_total_bytes),
        memory_free_bytes=_given(device, "memory_free_bytes", device.memory_free_bytes),
        utilization=_given(device, "utilization", device.utilization),
        health=_word(topo.DeviceHealth.Name(device.health), "DEVICE_HEALTH_"),
        health_reason=device.health_reason,
    )


def _links(links: Sequence[topo.DeviceLink]) -> list[api.Link]:
    return [
        api.Link(
            from_=_from(link),
            to=link.to,
            kind=_word(topo.LinkKind.Name(link.kind), "LINK_KIND_"),
            knowledge=_word(topo.LinkKnowledge.Name(link.knowledge), "LINK_KNOWLEDGE_"),
            lanes=link.lanes or None,
            bandwidth_gbps=link.bandwidth_gbps or None,
            latency_us=link.latency_us or None,
            measured=link.measured,
        )
        for link in links
    ]


def _given(device: topo.Device, field: str, value: T) -> T | None:
    """Absent is unknown, which is not zero."""
    return value if device.HasField(field) else None  # type: ignore[arg-type]  # a literal there


def _from(message: topo.DeviceLink | topo.AffinityWeight) -> str:
    # `from` is a Python keyword, so the field needs getattr.
    return str(getattr(message, "from"))


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
