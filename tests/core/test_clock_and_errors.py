"""Deadlines, and the errors SITS answers with."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_core import errors
from sits_core.clock import Deadline, earliest, epoch_offset_ns, now_ns
from sits_core.errors import MAX_MESSAGE_BYTES, InvalidArgument, SitsError, from_proto, safe_text
from sits_protos.v1.common_pb2 import Error

SECOND = 10**9
KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SitsError)
]


def test_an_interruption_between_two_readings_does_not_shift_the_clock() -> None:
    """Processes of a host must agree, or a stage would seem to end before it began."""
    interrupted = iter([True, False, True] * 20)
    at = [1_000]

    def monotonic() -> int:
        at[0] += 100
        return at[0]

    def wall() -> int:
        at[0] += 20_000_000 if next(interrupted) else 0
        return at[0] + 5_000_000

    assert abs(epoch_offset_ns(wall, monotonic) - 5_000_000) <= 100


def test_the_clock_never_runs_backwards() -> None:
    readings = [now_ns() for _ in range(1000)]
    assert readings == sorted(readings)


def test_a_deadline_passes_once_its_time_is_up() -> None:
    deadline = Deadline.after(2.0, now=10 * SECOND)
    assert deadline.left_s(now=11 * SECOND) == 1.0
    assert not deadline.passed(now=12 * SECOND - 1)
    assert deadline.passed(now=12 * SECOND)
    assert deadline.left_s(now=99 * SECOND) == 0.0


@pytest.mark.parametrize("seconds", [-1.0, -1e300, 0.0])
def test_a_deadline_before_now_has_passed(seconds: float) -> None:
    assert Deadline.after(seconds, now=5).passed(now=5)


@pytest.mark.parametrize("seconds", [1e12, 1e300, float("inf")])
def test_a_deadline_in_the_far_future_is_a_year_away_and_fits_its_field(seconds: float) -> None:
    deadline = Deadline.after(seconds)
    assert 31_000_000 < deadline.left_s() <= 31_536_000
    assert deadline.unix_ns < 2**63


def test_a_deadline_that_is_no_number_has_passed() -> None:
    assert Deadline.after(float("nan"), now=5).passed(now=5)


def test_the_earliest_of_two_deadlines_counts_and_none_is_never() -> None:
    soon, late = Deadline(1), Deadline(2)
    assert earliest(soon, late) == earliest(late, soon) == soon
    assert earliest(None, late) == earliest(late, None) == late
    assert earliest(None, None) is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not SitsError])
def test_an_error_survives_the_wire(kind: type[SitsError]) -> None:
    back = from_proto(kind("what came", reason="IN_SHORT").to_proto())
    assert (type(back), back.message, back.reason) == (kind, "what came", "IN_SHORT")
    assert back.status is kind.status


def test_the_reason_of_a_kind_is_its_default() -> None:
    assert from_proto(InvalidArgument("x").to_proto()).reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize("code", [0, 2, 9, 999])
def test_an_unknown_code_is_internal(code: int) -> None:
    assert type(from_proto(Error(code=code, message="x"))) is errors.Internal


def test_a_call_without_a_status_is_internal() -> None:
    assert isinstance(errors.from_rpc(grpc.RpcError()), errors.Internal)


@given(st.text(max_size=5000))
def test_any_text_becomes_short_printable_and_encodable(text: str) -> None:
    safe = safe_text(text)
    assert len(safe.encode()) <= MAX_MESSAGE_BYTES
    assert safe.isprintable()


@given(st.text(alphabet=st.characters(categories=["L", "N"]), max_size=200))
def test_a_short_plain_text_stays_as_it_is(text: str) -> None:
    assert safe_text(text) == text
