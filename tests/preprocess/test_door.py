"""While requests are refused, those that would be are turned away before they are read."""

from collections.abc import Callable

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from sits_core.errors import SitsError, Unavailable
from sits_preprocess.door import PACE, TAKEN, Door, Turn
from sits_preprocess.gates import Look
from sits_preprocess.oip.reading import OipMessage, beginning
from sits_preprocess.transport.call import LATER, Limits, Pairs, Routes
from sits_preprocess.transport.native import BACKLOG, EVENTS, MOST, NativeTransport
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest
from sits_scheduling.gate import Needs

MS = 1_000_000
SHED = Unavailable("too much work", reason="SHED_UNDER_OVERLOAD", retry_after_ms=7)
LATE = Unavailable("too late", reason="DEADLINE_UNREACHABLE", retry_after_ms=3)
WAIT = Look(None, Needs(10 * MS, 6 * MS, 2 * MS))
"""One more row is let in with 10 ms left, the next with 12."""


@pytest.fixture
def transport() -> str:
    return "native"


def message(model: str = "rows", version: str = "", tenant: str = "") -> bytes:
    request = ModelInferRequest(model_name=model, model_version=version)
    if tenant:
        request.parameters["sits_tenant"].string_param = tenant
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))
    return request.SerializeToString()


@pytest.fixture
def turn(served) -> Turn:
    """Of a door before which requests are judged by `WAIT`."""
    served.engine.looks = WAIT
    found = Door(served.front.inference, lambda _arrivals, _foreseen: None).turn(0)
    assert found is not None
    return found


def reasons(turn: Turn, *left_ms: float, **metadata: str) -> list[str]:
    """Why calls with so much time left are refused, one after the other."""
    pairs: Pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    errors = [turn.refusal(message(), pairs, left / 1e3) for left in left_ms]
    return [error.reason if error else "" for error in errors]


UNREACHABLE, PASSED = "DEADLINE_UNREACHABLE", "DEADLINE_EXCEEDED"


def test_nobody_is_looked_at_while_nothing_is_refused(served) -> None:
    door = Door(served.front.inference, lambda _arrivals, _foreseen: None)
    assert door.turn(0) is None
    served.engine.looks = WAIT
    assert door.turn(0) is not None
    served.front.inference.drain()
    assert door.turn(0) is None


def test_each_that_is_let_in_stands_before_the_next(turn, served) -> None:
    assert reasons(turn, 13, 13, 13, 15, 13) == ["", "", UNREACHABLE, "", UNREACHABLE]
    assert len(served.engine.asked) == 1


def test_a_refusal_for_lack_of_time_says_how_much_is_missing(turn) -> None:
    error = turn.refusal(message(), (), 0.005)
    assert error is not None
    assert "requests wait about 6 ms, 5 ms too long" in str(error)
    assert error.retry_after_ms == 5


def test_it_holds_for_those_with_less_time_and_not_for_those_with_more(turn, served) -> None:
    served.engine.looks = WAIT._replace(error=LATE)
    assert reasons(turn, 9, 8, 11, 9.5) == [UNREACHABLE, UNREACHABLE, "", UNREACHABLE]


def test_other_refusals_hold_for_all(turn, served) -> None:
    served.engine.looks = WAIT._replace(error=SHED)
    assert reasons(turn, 9, 1e6) == ["SHED_UNDER_OVERLOAD"] * 2
    assert turn.refusal(message(), (), None) is SHED
    assert len(served.engine.asked) == 1


def test_no_more_are_let_in_than_may_queue(turn, served) -> None:
    served.engine.looks = Look(None, places=2)
    assert [turn.refusal(message(), (), None) for _ in range(2)] == [None, None]
    assert reasons(turn, 50) == ["QUEUE_FULL"]


def test_what_came_too_late_is_refused_whatever_is_known(turn, served) -> None:
    served.engine.looks = Look(None)
    assert reasons(turn, 1, 0, 1) == ["", PASSED, ""]


def test_the_servers_own_timeout_counts_where_there_is_no_other(serve) -> None:
    served = serve(preprocess_default_timeout_s=0.011)
    served.engine.looks = WAIT
    turn = Door(served.front.inference, lambda _arrivals, _foreseen: None).turn(0)
    assert turn.refusal(message(), (), None) is None
    assert isinstance(turn.refusal(message(), (), None), SitsError)


def test_models_and_tenants_are_judged_apart(turn, served) -> None:
    assert reasons(turn, 11, 11) == ["", UNREACHABLE]
    assert reasons(turn, 11, sits_tenant="gold") == [""]
    assert turn.refusal(message("two"), (), 0.011) is None
    assert turn.refusal(message("rows", "1"), (), 0.011) is None
    assert reasons(turn, 11, traceparent="00-1-2-01") == [UNREACHABLE], "no matter who is traced"
    tenants = [request.tenant for request in served.engine.asked]
    assert tenants[1] == "gold"
    assert len(tenants) == 4


def test_what_the_door_cannot_judge_is_taken_and_told_so_later(serve, tmp_path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"secret": "gold"}')
    served = serve(preprocess_api_keys_file=str(keys))
    served.engine.looks = Look(SHED)
    turn = Door(served.front.inference, lambda _arrivals, _foreseen: None).turn(0)
    assert turn.refusal(message(), (), 1.0) is None, "without a key"
    key = (("authorization", "Bearer secret"),)
    assert turn.refusal(message(), key, 1.0) is SHED
    assert turn.refusal(message("nobody"), key, 1.0) is None
    assert turn.refusal(message(tenant="gold"), key, 1.0) is None, "its tenant has to be read"
    assert turn.refusal(b"\xff", key, 1.0) is None


def test_only_those_that_were_asked_about_are_not_foreseen_again(served) -> None:
    taken: list[bool] = []
    door = Door(served.front.inference, lambda _arrivals, foreseen: taken.append(foreseen))
    for look in (WAIT, Look(None, each=True)):
        served.engine.looks = look
        turn = door.turn(0)
        assert turn.refusal(message(), (), 1.0) is None
        turn.take([])
    assert taken == [True, False]


def ended(turn: Turn, calls: int) -> None:
    """A turn that looks at so many calls which nothing is wrong with."""
    if calls:
        let_in(turn, calls)
    turn.end(0)


def let_in(turn: Turn, calls: int, left_s: float = 1.0, **metadata: str) -> list[str]:
    """What becomes of so many calls: `in`, `later` or `no`, and how often in a row."""
    pairs: Pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    found = [turn.refusal(message(), pairs, left_s) for _ in range(calls)]
    said = ["in" if error is None else "later" if error is LATER else "no" for error in found]
    return [f"{said.count(word)} {word}" for word in dict.fromkeys(said)]


def test_no_more_are_let_in_at_once_than_delay_what_is_newer_for_a_moment(turn, served) -> None:
    served.engine.looks = Look(None)
    assert let_in(turn, TAKEN + 3) == [f"{TAKEN} in", "3 later"]
    turn.end(2 * MS)
    assert served.engine.away == {}, "nobody was refused"


def test_models_and_tenants_share_what_is_let_in_at_once(served) -> None:
    served.engine.looks = Look(None)
    door = Door(served.front.inference, lambda _arrivals, _foreseen: None)
    first = door.turn(0)
    for tenant in ("gold", "silver"):
        assert let_in(first, 1, sits_tenant=tenant) == ["1 in"]
    first.end(0)
    second = door.turn(1)
    half = TAKEN // 2
    for tenant in ("gold", "silver"):
        assert let_in(second, half + 1, sits_tenant=tenant) == [f"{half} in", "1 later"]


def test_what_waits_before_the_door_waits_for_the_turns_of_those_that_go_before_it(served) -> None:
    served.engine.looks = Look(None)
    door = Door(served.front.inference, lambda _arrivals, _foreseen: None)
    ended(door.turn(0), TAKEN + 1)
    turn_ns = 40 * MS
    second = door.turn(turn_ns)
    row_s = PACE * turn_ns / TAKEN / 1e9
    in_time = TAKEN + 10
    found = let_in(second, in_time + 5, left_s=(in_time - 0.5) * row_s)
    assert found == [f"{TAKEN} in", "10 later", "5 no"]


def test_it_forgets_how_long_turns_took_once_nothing_waits(served) -> None:
    served.engine.looks = Look(None)
    door = Door(served.front.inference, lambda _arrivals, _foreseen: None)
    for now in (0, 1000 * MS):
        ended(door.turn(now), TAKEN + 1)
    for number in range(2, 40):
        ended(door.turn(number * 1000 * MS), 0)
    turn = door.turn(40_000 * MS)
    assert let_in(turn, TAKEN, left_s=0.1) == [f"{TAKEN} in"]


def test_all_are_accounted_for_together(turn, served) -> None:
    reasons(turn, 11, 11, 11, 0)
    turn.end(2 * MS)
    labels = {"model": "rows", "tenant": "bronze", "outcome": "UNAVAILABLE"}
    assert served.metric("sits_requests_total", **labels) == 3
    model = {"model": "rows", "tenant": "bronze"}
    assert served.metric("sits_request_seconds_count", **model) == 3
    assert served.metric("sits_request_seconds_sum", **model) == pytest.approx(0.006)
    assert served.engine.away == {UNREACHABLE: 3}
    failed = served.client().get_inference_statistics("rows").model_stats[0].inference_stats.fail
    assert failed.count == 3
    assert served.front.inference.open_requests == 0


def test_a_client_is_told_why_and_when_to_come_back(served) -> None:
    served.engine.looks = Look(SHED)
    with grpc.insecure_channel(served.address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            infer(message(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["sits-reason"] == "SHED_UNDER_OVERLOAD"
        assert trailers["sits-retry-after-ms"] == "7"
        served.engine.looks = Look(None)
        answer = pb.ModelInferResponse.FromString(infer(message(), timeout=20))
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).shape == (4,)
    assert len(served.engine.taken) == 1


@given(st.text(max_size=130), st.text(max_size=130), st.binary(max_size=20))
def test_messages_that_begin_the_same_name_the_same(model: str, version: str, rest: bytes) -> None:
    request = ModelInferRequest(model_name=model, model_version=version, id="r")
    whole = request.SerializeToString()
    head = beginning(whole)
    if head is not None:
        assert OipMessage(whole).names() == (model, version)
        assert whole.startswith(head)
        assert ModelInferRequest.FromString(head).model_name == model
        assert ModelInferRequest.FromString(head).model_version == version
    assert (head is not None) == (0 < len(model.encode()) < 128 and len(version.encode()) < 128)
    assert beginning(rest) is None or rest.startswith(b"\x0a")


class Front:
    """Stands for the library: keeps what calls were refused with."""

    def __init__(self) -> None:
        self.refused: list[int] = []

    def fail(self, call_id: int, _code: int, _message: str, _trailers: object) -> None:
        self.refused.append(call_id)


class Crowd:
    """A `Turn` that refuses by `judge` and remembers what it was asked."""

    def __init__(self, judge: Callable[[bytes], SitsError | None]) -> None:
        self.judge, self.seen, self.taken, self.ended = judge, [], [], 0
        self.left_s = []
        self.calls = []

    def refusal(self, message: bytes, _metadata: Pairs, left_s: float | None):
        self.seen.append(message)
        self.left_s.append(left_s)
        return self.judge(message)

    def take(self, arrivals) -> None:
        self.taken += [message for message, _ in arrivals]
        self.calls += [call for _, call in arrivals]

    def end(self, _now: int) -> None:
        self.ended += 1


def taking(crowd: Crowd | None) -> tuple[NativeTransport, list[bytes]]:
    """A transport that was never started, and what it hands over without a look."""
    unseen: list[bytes] = []
    routes = Routes(
        batched={"/a/A": lambda arrivals: unseen.extend(m for m, _ in arrivals)},
        turns={"/a/A": lambda _now: crowd},
    )
    return NativeTransport("127.0.0.1:0", routes, Limits(100, 1, 1)), unseen


def call(call_id: int, body: bytes):
    return 0, call_id, 0, body, "peer", ((), "peer", 1.0)


def cancel(call_id: int):
    return 1, call_id, 0, None, None, None


def odd(body: bytes) -> SitsError | None:
    return SHED if body[0] % 2 else None


def test_the_newest_is_looked_at_first_and_what_is_taken_keeps_its_order() -> None:
    crowd, front = Crowd(odd), Front()
    transport, unseen = taking(crowd)
    transport._take(front, [call(n, bytes([n])) for n in range(5)])
    assert crowd.seen == [b"\4", b"\3", b"\2", b"\1", b"\0"]
    assert crowd.taken == [b"\0", b"\2", b"\4"]
    assert sorted(front.refused) == [1, 3]
    assert sorted(transport._calls) == [0, 2, 4], "what is refused never becomes a call"
    assert (unseen, crowd.ended) == ([], 1)


def test_what_has_no_time_left_is_answered_by_the_library() -> None:
    crowd, front = Crowd(odd), Front()
    transport, _ = taking(crowd)
    late = (0, 3, 0, b"\3", "peer", ((), "peer", 0.0))
    transport._take(front, [call(1, b"\1"), late])
    assert (len(crowd.seen), front.refused, transport._calls) == (2, [1], {})


def test_in_quiet_times_all_are_handed_over_unseen() -> None:
    transport, unseen = taking(None)
    assert transport._take(Front(), [call(n, bytes([n])) for n in range(EVENTS)]) == EVENTS
    assert len(unseen) == EVENTS


def test_a_call_whose_client_left_meanwhile_is_cancelled_once_it_is_taken() -> None:
    crowd = Crowd(odd)
    transport, _ = taking(crowd)
    transport._take(Front(), [call(2, b"\2"), call(1, b"\1"), cancel(2), cancel(1)])
    left: list[bool] = []
    crowd.calls[0].on_cancel(lambda: left.append(True))
    assert left == [True]


def test_a_look_that_fails_lets_all_in() -> None:
    crowd = Crowd(lambda body: 1 // 0)
    transport, _ = taking(crowd)
    transport._take(Front(), [call(n, bytes([n])) for n in range(3)])
    assert crowd.taken == [b"\0", b"\1", b"\2"]


def test_a_message_that_is_too_large_is_no_matter_of_the_door() -> None:
    crowd, front = Crowd(odd), Front()
    transport, _ = taking(crowd)
    transport._take(front, [call(1, bytes(101))])
    assert (crowd.seen, front.refused) == ([], [1])


def later(body: bytes) -> SitsError | None:
    return LATER if body[0] < 10 else None


def test_what_is_to_be_looked_at_later_stands_behind_what_comes_next() -> None:
    crowd, front = Crowd(later), Front()
    transport, _ = taking(crowd)
    transport._take(front, [call(n, bytes([n])) for n in (1, 11)])
    assert (transport._open(), list(transport._calls)) == (2, [11])
    crowd.seen, crowd.judge = [], lambda body: SHED if body[0] < 10 else None
    transport._take(front, [call(12, b"\x0c")])
    assert crowd.seen == [b"\x0c", b"\1"]
    assert crowd.left_s[-1] < 1.0, "its time runs"
    assert (front.refused, transport._open()) == ([1], 2)


def test_what_was_to_be_looked_at_later_is_taken_once_nothing_is_refused_any_more() -> None:
    transport, unseen = taking(Crowd(later))
    transport._take(Front(), [call(1, b"\1")])
    transport._turns = []
    transport._take(Front(), [call(2, b"\2")])
    assert unseen == [b"\1", b"\2"]
    assert transport._calls[1].deadline < transport._calls[2].deadline


def test_a_client_that_leaves_while_its_call_waits_is_not_waited_for() -> None:
    crowd = Crowd(later)
    transport, _ = taking(crowd)
    transport._take(Front(), [call(1, b"\1")])
    transport._take(Front(), [cancel(1)])
    assert crowd.taken == [b"\1"]
    left: list[bool] = []
    crowd.calls[0].on_cancel(lambda: left.append(True))
    assert left == [True]


class Library:
    """Stands for the library: so many events wait."""

    def __init__(self, events: int) -> None:
        self.left, self.waits = events, []

    def recv_batch_details(self, most: int, wait_ms: int | None) -> list[None]:
        self.waits.append(wait_ms)
        taken = min(most, self.left)
        self.left -= taken
        return [None] * taken


def test_while_some_are_refused_all_events_that_wait_are_received_before_a_look() -> None:
    transport, _ = taking(Crowd(later))
    assert len(transport._events(Library(2000), EVENTS)) == EVENTS
    assert len(transport._events(Library(2000), BACKLOG)) == 2000
    assert len(transport._events(Library(100_000), BACKLOG)) == MOST


def test_it_waits_for_events_only_while_nothing_is_to_be_looked_at_again() -> None:
    transport, _ = taking(Crowd(later))
    library = Library(1)
    transport._events(library, EVENTS)
    transport._take(Front(), [call(1, b"\1")])
    transport._events(library, EVENTS)
    assert library.waits == [None, 0]


def test_while_some_are_refused_all_that_wait_are_taken_at_once() -> None:
    events = [call(n, b"\0") for n in range(EVENTS)]
    transport, _ = taking(Crowd(odd))
    assert transport._take(Front(), events) == BACKLOG
    assert transport._take(Front(), events[1:]) == EVENTS
    assert transport._take(Front(), None) == 0
