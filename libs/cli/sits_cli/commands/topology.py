"""`sits topology`: the devices of a node, how they are connected, and the weights."""

import time

from google.protobuf.json_format import MessageToDict
from rich.text import Text

from sits_cli.client import TIMEOUT_S, reached, tokens
from sits_cli.options import DEFAULT_TOPOLOGY, Json, Topology, topology_place
from sits_cli.output import (
    Column,
    bad,
    dim,
    duration,
    good,
    literal,
    print_json,
    print_table,
    say,
    size,
)
from sits_protos.v1 import topology_pb2 as pb
from sits_protos.v1.topology_pb2_grpc import TopologyStub

HEALTH = {
    pb.DEVICE_HEALTH_GOOD: good("good"),
    pb.DEVICE_HEALTH_DEGRADED: Text("degraded", style="yellow"),
    pb.DEVICE_HEALTH_BAD: bad("bad"),
}


def topology(address: Topology = DEFAULT_TOPOLOGY, as_json: Json = False) -> None:
    """Show the devices of a node, their links and affinity weights."""
    snapshot = get(address)
    if as_json:
        print_json(as_dict(snapshot))
        return
    show(snapshot)


def get(address: str) -> pb.TopologySnapshot:
    with reached(topology_place(address)) as channel:
        stub = TopologyStub(channel)
        return stub.Get(pb.GetTopologyRequest(), timeout=TIMEOUT_S, metadata=tokens())


def as_dict(snapshot: pb.TopologySnapshot) -> dict[str, object]:
    fields: dict[str, object] = MessageToDict(
        snapshot, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    fields.pop("trace_context", None)
    return fields | {"age_s": age_s(snapshot)}


def age_s(snapshot: pb.TopologySnapshot) -> float:
    return max(0.0, (time.time_ns() - snapshot.published_unix_ns) / 1e9)


def show(snapshot: pb.TopologySnapshot) -> None:
    sources = ", ".join(snapshot.sources) or "nothing"
    say(
        f"[bold]{literal(snapshot.node_name or snapshot.host)}[/]  version {snapshot.version}  "
        f"{duration(age_s(snapshot))} old  from {literal(sources)}\n"
    )
    columns = ("device", "kind", "name", Column("NUMA", right=True), Column("memory", right=True),
               Column("free", right=True), Column("busy", right=True), "health")  # fmt: skip
    print_table(columns, map(_device, snapshot.devices))
    if snapshot.links:
        say()
        print_table(("from", "to", "link", "known", "lanes", "bandwidth", "latency"),
                    map(_link, snapshot.links))  # fmt: skip
    if snapshot.weights:
        say()
        print_table(("from", "to", Column("weight", right=True), Column("cost per MB", right=True)),
                    map(_weight, snapshot.weights))  # fmt: skip


def _device(device: pb.Device) -> tuple[str | Text, ...]:
    return (
        device.id,
        _short(pb.DeviceKind.Name(device.kind), "DEVICE_KIND_"),
        device.name,
        str(device.numa_node) if device.numa_node >= 0 else "?",
        size(device.memory_total_bytes) if device.HasField("memory_total_bytes") else "?",
        size(device.memory_free_bytes) if device.HasField("memory_free_bytes") else "?",
        f"{device.utilization:.0%}" if device.HasField("utilization") else "?",
        _health(device),
    )


def _health(device: pb.Device) -> Text:
    text = HEALTH.get(device.health, dim("unknown"))
    return Text.assemble(text, f" ({device.health_reason})") if device.health_reason else text


def _link(link: pb.DeviceLink) -> tuple[str | Text, ...]:
    how = " measured" if link.measured else ""
    return (
        getattr(link, "from"),
        link.to,
        _short(pb.LinkKind.Name(link.kind), "LINK_KIND_"),
        _short(pb.LinkKnowledge.Name(link.knowledge), "LINK_KNOWLEDGE_"),
        str(link.lanes) if link.lanes else "",
        f"{link.bandwidth_gbps:.4g} GB/s{how}" if link.bandwidth_gbps else "?",
        f"{link.latency_us:.3g} µs" if link.latency_us else "?",
    )


def _weight(weight: pb.AffinityWeight) -> tuple[str, ...]:
    cost = duration(weight.cost_s_per_mb) if weight.cost_s_per_mb else "0"  # to itself
    return getattr(weight, "from"), weight.to, f"{weight.weight:.3f}", cost


def _short(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
