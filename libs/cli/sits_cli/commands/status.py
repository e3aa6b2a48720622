"""`sits status`: which services there are, how they are, and what connects them."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from rich.text import Text

from sits_cli import health, spans
from sits_cli.client import CliError
from sits_cli.options import (
    DEFAULT_DISPATCHER,
    DEFAULT_FRONT,
    DEFAULT_TOPOLOGY,
    Dispatcher,
    Front,
    Json,
    Topology,
    dispatcher_place,
)
from sits_cli.output import Column, bad, dim, duration, good, literal, print_json, print_table, say
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.link_pb2 import Role


@dataclass(frozen=True, slots=True)
class ServiceLine:
    """One service; the numbers are the dispatcher's view of it, None where it has none."""

    role: str
    address: str
    ready: bool
    draining: bool = False
    device: str = ""
    transport: str = ""
    batches_in_flight: int | None = None
    batches_total: int | None = None
    errors_total: int | None = None


def status(
    front: Front = DEFAULT_FRONT,
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    topology: Topology = DEFAULT_TOPOLOGY,
    as_json: Json = False,
) -> None:
    """Show the services, their links, the strategy and how fresh the topology is."""
    state = spans.state(dispatcher_place(dispatcher))
    lines = [
        *_fronts(front, state.peers),
        ServiceLine("dispatcher", dispatcher, state.ready, draining=state.self.draining),
        *(_peer(peer) for peer in state.peers if peer.hello.role != Role.ROLE_PREPROCESS),
        *_unknown_topology(topology, state.peers),
    ]
    if as_json:
        print_json(summary(state) | {"services": [asdict(line) for line in lines]})
    else:
        _show(state, lines)
    if not all(line.ready for line in lines):
        down = next(line for line in lines if not line.ready)
        raise CliError(f"{down.role} at {down.address} is not ready: its log says why")


def summary(state: pb.GetStateResponse) -> dict[str, object]:
    age_s = state.topology_age_s
    return {
        "strategy": state.strategy,
        "model_strategies": dict(state.model_strategies),
        "strategies": list(state.strategies),
        "topology_age_s": age_s if age_s >= 0 else None,
        "redis": redis(state),
        "governance": state.governance.level or None,
        "shed_tiers": list(state.governance.shed_tiers),
        "scale_factor": state.governance.scale_factor or None,
        "up_s": max(0.0, (time.time_ns() - state.started_unix_ns) / 1e9),
        "version": state.self.software_version,
    }


def governance(state: pb.Governance) -> str:
    """The level, who is refused, and what caused the last step while it is not normal."""
    if state.level == "normal":
        return "normal"
    shed = f", refuses {', '.join(state.shed_tiers)}" if state.shed_tiers else ""
    cause = f": {state.events[0].cause}" if state.events else ""
    return f"{state.level}{shed}, {state.scale_factor:.1f}x the capacity wanted{cause}"


def redis(state: pb.GetStateResponse) -> str:
    if not state.redis_configured:
        return "not configured"
    return "connected" if state.redis_connected else "lost"


def _fronts(address: str, peers: Iterable[pb.PeerState]) -> list[ServiceLine]:
    """A linked front door is known by its link, not by the address clients use: with just
    one, it is the one at `address`."""
    linked = [_peer(peer) for peer in peers if peer.hello.role == Role.ROLE_PREPROCESS]
    ready = health.ready(address)
    if len(linked) == 1:
        return [replace(linked[0], address=address, ready=ready and linked[0].ready)]
    return [ServiceLine("preprocess", address, ready), *linked]


def _unknown_topology(address: str, peers: Iterable[pb.PeerState]) -> list[ServiceLine]:
    """The service at `address`, when no lease tells the dispatcher of any."""
    if any(peer.hello.role == Role.ROLE_TOPOLOGY for peer in peers):
        return []
    return [ServiceLine("topology", address, health.ready(address))]


def _peer(peer: pb.PeerState) -> ServiceLine:
    return ServiceLine(
        Role.Name(peer.hello.role).removeprefix("ROLE_").lower(),
        peer.hello.control_address or peer.address,
        peer.connected and not peer.hello.draining,
        peer.hello.draining,
        peer.hello.device,
        peer.transport,
        peer.batches_in_flight,
        peer.batches_total,
        peer.errors_total,
    )


def _show(state: pb.GetStateResponse, lines: list[ServiceLine]) -> None:
    columns = ("service", "address", "state", "device", "link", Column("in flight", right=True),
               Column("batches", right=True), Column("errors", right=True))  # fmt: skip
    print_table(columns, map(_row, lines))
    say()
    for title, text in _facts(state):
        say(f"{title:<10}  {text}")


def _facts(state: pb.GetStateResponse) -> list[tuple[str, str]]:
    others = ", ".join(s for s in state.strategies if s != state.strategy)
    age_s = state.topology_age_s
    facts = [
        ("strategy", f"[bold]{literal(state.strategy)}[/]  (others: {literal(others or 'none')})"),
        ("topology", f"{duration(age_s)} old" if age_s >= 0 else "none seen yet"),
        ("redis", redis(state)),
        ("up", f"{duration((time.time_ns() - state.started_unix_ns) / 1e9)}, "
               f"version {literal(state.self.software_version or '?')}"),
    ]  # fmt: skip
    if state.HasField("governance"):
        facts.append(("governance", literal(governance(state.governance))))
    per_model = ", ".join(f"{m}: {s}" for m, s in sorted(state.model_strategies.items()))
    return facts + ([("by model", literal(per_model))] if per_model else [])


def _row(line: ServiceLine) -> tuple[str | Text, ...]:
    return (
        line.role,
        line.address,
        _state(line),
        line.device,
        line.transport,
        _count(line.batches_in_flight),
        _count(line.batches_total),
        _count(line.errors_total),
    )


def _state(line: ServiceLine) -> Text:
    if line.draining:
        return Text("draining", style="yellow")
    return good("ready") if line.ready else bad("not ready")


def _count(value: int | None) -> str | Text:
    return dim("–") if value is None else f"{value:,}"
