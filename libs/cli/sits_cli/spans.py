"""Fetches spans from all services of a running mesh."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import grpc

from sits_cli.client import TIMEOUT_S, Place, open_channel, reached, tokens
from sits_core.waterfall import Span, Waterfall, build, linked_traces, reported
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import ControlStub

LIMIT = 10_000


def state(dispatcher: Place) -> pb.GetStateResponse:
    with reached(dispatcher) as channel:
        stub = ControlStub(channel)
        return stub.GetState(pb.GetStateRequest(), timeout=TIMEOUT_S, metadata=tokens())


def control_places(dispatcher: Place, topology: Place) -> list[Place]:
    """Everything that serves Control, as far as the dispatcher knows; the topology service
    is not connected to it, so its address has to be known."""
    found = {dispatcher.address: dispatcher}
    for peer in state(dispatcher).peers:
        address = peer.hello.control_address or peer.address
        found.setdefault(address, Place("peer", address))
    found.setdefault(topology.address, topology)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Fetched:
    """`silent` are the places that did not answer: their spans are missing."""

    spans: list[Span]
    silent: tuple[Place, ...]


def fetch(places: Iterable[Place], trace_id: bytes = b"", limit: int = LIMIT) -> Fetched:
    """Spans of one trace, or the newest of all."""
    request = pb.GetSpansRequest(trace_id=trace_id, limit=limit)
    answers = [(place, _ask(place, request)) for place in places]
    spans = [span for _, answer in answers for span in answer or ()]
    return Fetched(spans, tuple(place for place, answer in answers if answer is None))


def waterfall(places: Sequence[Place], trace_id: bytes) -> Waterfall:
    """The trace and, one step further, the spans in other traces that it points at."""
    spans = fetch(places, trace_id).spans
    for other in linked_traces(spans, trace_id):
        spans += fetch(places, other).spans
    return build(trace_id, spans)


def _ask(place: Place, request: pb.GetSpansRequest) -> list[Span] | None:
    with open_channel(place.address) as channel:
        try:
            answer = ControlStub(channel).GetSpans(request, timeout=TIMEOUT_S, metadata=tokens())
        except grpc.RpcError:
            return None
    return reported(answer)
