"""Recent requests and their stages, from the spans that all services remember."""

import threading
from collections.abc import Iterable

from sits_core.control import remembered
from sits_core.waterfall import (
    ROOT_NAME,
    Row,
    Span,
    Waterfall,
    build,
    linked_traces,
    reported,
)
from sits_dispatcher import admin_models as api
from sits_dispatcher.dashboard.peers import TIMEOUT_S, Peers
from sits_dispatcher.mesh import Mesh
from sits_protos.v1.control_pb2 import GetSpansRequest, GetStateResponse
from sits_protos.v1.link_pb2 import Role

NEWEST_SPANS = 600
"""Asked of each front door, which records two a request."""
ALL = 10_000
MAX_LINKED = 8


class Traces:
    """Asks for spans when somebody wants to see them; keeps nothing."""

    def __init__(self, mesh: Mesh, peers: Peers) -> None:
        self._mesh, self._peers = mesh, peers
        self._lock = threading.Lock()

    def recent(self, limit: int) -> api.Traces:
        """The requests that ended last."""
        with self._lock:
            spans, silent = self._ask(self._fronts(), b"", NEWEST_SPANS)
        roots = {span.trace_id: span for span in spans if span.name == ROOT_NAME}
        newest = sorted(roots.values(), key=lambda span: span.end_ns, reverse=True)
        return api.Traces(requests=[_request(span) for span in newest[:limit]], silent=silent)

    def one(self, trace_id: bytes) -> api.Trace | None:
        """None when no service remembers it."""
        with self._lock:
            peers = self._everyone()
            spans, silent = self._ask(peers, trace_id, ALL)
            spans += reported(remembered(self._mesh.dispatcher.tracer, trace_id, ALL))
            for other in linked_traces(spans, trace_id)[:MAX_LINKED]:
                spans += self._ask(peers, other, ALL)[0]
        found = build(trace_id, spans)
        return _trace(found, silent) if found.rows else None

    def _ask(
        self, addresses: Iterable[str], trace_id: bytes, limit: int
    ) -> tuple[list[Span], list[str]]:
        addresses = list(addresses)
        request = GetSpansRequest(trace_id=trace_id, limit=limit)
        answers = self._peers.ask(
            addresses,
            lambda stub: stub.GetSpans.future(
                request, timeout=TIMEOUT_S, metadata=self._peers.metadata
            ),
        )
        spans = [span for answer in answers.values() for span in reported(answer)]
        return spans, [address for address in addresses if address not in answers]

    def _fronts(self) -> list[str]:
        return [hello.control_address for _, hello, _ in self._mesh.fronts.hellos()]

    def _everyone(self) -> list[str]:
        state = GetStateResponse()
        self._mesh.describe(state)
        known = (
            peer.hello.control_address or peer.address
            for peer in state.peers
            if peer.hello.role != Role.ROLE_DISPATCHER
        )
        return list(dict.fromkeys(known))


def _request(root: Span) -> api.TracedRequest:
    rows = root.attributes.get("rows", "")
    return api.TracedRequest(
        trace_id=root.trace_id.hex(),
        ended_unix_ms=root.end_ns // 1_000_000,
        total_ms=(root.end_ns - root.start_ns) / 1e6,
        model=root.attributes.get("model", ""),
        tenant=root.attributes.get("tenant", ""),
        rows=int(rows) if rows.isdecimal() else None,
        error=root.error,
    )


def _trace(found: Waterfall, silent: list[str]) -> api.Trace:
    return api.Trace(
        trace_id=found.trace_id.hex(),
        total_ms=found.total_ns / 1e6,
        stage_ms=found.stage_ns / 1e6,
        travel_ms=found.travel_ns / 1e6,
        stages=[_stage(row) for row in found.rows],
        silent=silent,
    )


def _stage(row: Row) -> api.Stage:
    return api.Stage(
        service=row.service,
        name=row.name,
        kind=row.kind.value,
        depth=row.depth,
        start_ms=row.start_ns / 1e6,
        duration_ms=row.duration_ns / 1e6,
        attributes=dict(row.attributes),
        error=row.error,
    )
