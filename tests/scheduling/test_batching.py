"""When a batch closes, why, and what is in it."""

from hypothesis import given
from hypothesis import strategies as st

from sits_scheduling.batching import (
    PREFETCH_LEAD_NS,
    BatchPolicy,
    BatchQueue,
    Capacity,
    CloseReason,
    Entry,
)

MS = 1_000_000
IDLE = Capacity(room=2, idle=1)
FULL = Capacity(room=0, idle=0)


def queue(policy: BatchPolicy, *entries: Entry[str]) -> BatchQueue[str]:
    made: BatchQueue[str] = BatchQueue(policy)
    for entry in entries:
        made.add(entry)
    return made


def entry(
    name: str = "r",
    at: int = 0,
    rows: int = 1,
    size: int = 100,
    deadline: int = 0,
    priority: int = 2,
) -> Entry[str]:
    return Entry(name, rows, size, at, deadline, priority)


def test_an_idle_instance_means_no_waiting() -> None:
    assert queue(BatchPolicy(8), entry()).should_close(0, IDLE) is CloseReason.IDLE


def test_nothing_leaves_without_room() -> None:
    full = queue(BatchPolicy(2), entry(), entry())
    assert full.should_close(0, FULL) is None
    assert full.next_wakeup_ns(0, FULL) is None


def test_a_full_batch_waits_at_a_busy_instance_a_small_one_at_the_door() -> None:
    busy = Capacity(room=1, idle=0, next_idle_ns=200 * MS, service_ns=200 * MS)
    assert queue(BatchPolicy(2), entry(), entry()).should_close(0, busy) is CloseReason.ROWS
    small = queue(BatchPolicy(2), entry())
    assert small.should_close(0, busy) is None
    assert small.next_wakeup_ns(0, busy) == 200 * MS - PREFETCH_LEAD_NS
    assert small.should_close(200 * MS - PREFETCH_LEAD_NS, busy) is CloseReason.IDLE


def test_a_small_batch_waits_for_an_answer_while_run_times_are_unknown() -> None:
    waiting = queue(BatchPolicy(8), entry())
    assert waiting.should_close(0, Capacity(room=1, idle=0)) is None
    assert waiting.next_wakeup_ns(0, Capacity(room=1, idle=0)) is None


def test_the_window_counts_from_the_oldest_request() -> None:
    windowed = queue(BatchPolicy(8, window_ns=50 * MS), entry(at=0), entry(at=4 * MS))
    assert windowed.should_close(49 * MS, IDLE) is None
    assert windowed.next_wakeup_ns(4 * MS, IDLE) == 50 * MS
    assert windowed.should_close(50 * MS, IDLE) is CloseReason.WINDOW


def test_requests_bytes_and_rows_end_a_window_early() -> None:
    by_count = BatchPolicy(64, window_ns=MS, close_requests=2)
    by_bytes = BatchPolicy(64, window_ns=MS, close_bytes=150)
    by_rows = BatchPolicy(64, window_ns=MS, close_rows=2)
    for policy, reason in (
        (by_count, CloseReason.REQUESTS),
        (by_bytes, CloseReason.BYTES),
        (by_rows, CloseReason.ROWS),
    ):
        assert queue(policy, entry()).should_close(0, IDLE) is None
        assert queue(policy, entry(), entry()).should_close(0, IDLE) is reason


def test_an_urgent_request_flushes_at_once() -> None:
    busy = Capacity(room=1, idle=0, next_idle_ns=200 * MS)
    urgent = queue(BatchPolicy(8, window_ns=50 * MS), entry(priority=1))
    assert urgent.should_close(0, busy) is CloseReason.URGENT


def test_a_deadline_ends_the_wait_while_it_can_still_be_met() -> None:
    capacity = Capacity(room=1, idle=1, service_ns=10 * MS)
    due = queue(BatchPolicy(8, window_ns=500 * MS), entry(deadline=100 * MS))
    assert due.should_close(79 * MS, capacity) is None
    assert due.should_close(80 * MS, capacity) is CloseReason.DEADLINE


def test_a_model_that_does_not_batch_gets_one_request_at_a_time() -> None:
    single = queue(BatchPolicy(0), entry("a"), entry("b"))
    reason = single.should_close(0, IDLE)
    assert reason is CloseReason.UNBATCHED
    assert single.take(reason).items == ["a"]


def test_urgent_requests_go_first_then_arrival_decides() -> None:
    mixed = queue(
        BatchPolicy(2),
        entry("late"),
        entry("later"),
        entry("first", priority=1),
        entry("last", priority=9),
    )
    assert mixed.take(CloseReason.ROWS).items == ["first", "late"]
    assert mixed.take(CloseReason.ROWS).items == ["later", "last"]


def test_a_removed_request_never_leaves() -> None:
    gone = entry("gone")
    made = queue(BatchPolicy(8), entry("a"), gone, entry("b"))
    assert made.remove(gone)
    assert not made.remove(gone)
    assert (len(made), made.rows) == (2, 2)
    assert made.take(CloseReason.IDLE).items == ["a", "b"]
    assert made.should_close(0, IDLE) is None


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 50), st.integers(1, 4)), max_size=40))
def test_every_request_leaves_exactly_once_within_the_limits(
    sizes: list[tuple[int, int, int]],
) -> None:
    policy = BatchPolicy(8, max_bytes=60)
    made: BatchQueue[int] = BatchQueue(policy)
    for number, (rows, size, priority) in enumerate(sizes):
        made.add(Entry(number, rows, size, number, 0, priority))
    left: list[int] = []
    while (reason := made.should_close(0, IDLE)) is not None:
        batch = made.take(reason)
        assert batch.rows == sum(sizes[n][0] for n in batch.items) <= 8
        assert batch.payload_bytes <= 60 or len(batch.items) == 1
        left += batch.items
    assert sorted(left) == list(range(len(sizes)))
    assert (len(made), made.rows, made.payload_bytes) == (0, 0, 0)


def test_a_batch_leaves_as_long_before_an_instance_is_free_as_the_policy_says() -> None:
    free_ns = 10_000_000
    busy = Capacity(room=1, idle=0, next_idle_ns=free_ns)
    queue: BatchQueue[str] = BatchQueue(BatchPolicy(max_rows=8, lead_ns=200_000))
    queue.add(Entry("a", rows=1, payload_bytes=1, arrived_ns=0))
    assert queue.next_wakeup_ns(0, busy) == free_ns - 200_000
    assert queue.should_close(free_ns - 200_001, busy) is None
    assert queue.should_close(free_ns - 200_000, busy) is CloseReason.IDLE
