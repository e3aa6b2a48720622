"""The order in which waiting batches run."""

import itertools
import threading

import pytest

from sits_core.testing import wait_until
from sits_executor.batch import Batch
from sits_executor.queue import BatchQueue, rank
from sits_protos.v1.link_pb2 import BatchHeader, RequestHeader


def queued(name: int, priority: int = 0, deadline: int = 0, holder: str = "a") -> Batch:
    header = BatchHeader(batch_id=name, priority=priority, earliest_deadline_unix_ns=deadline)
    return Batch(header, [RequestHeader()], [], [1], 0, lambda _: True, holder)


def order(queue: BatchQueue) -> list[int]:
    queue.close()
    return [batch.header.batch_id for batch in iter(queue.read, None)]


def test_urgent_first_then_earliest_deadline_then_arrival() -> None:
    waiting = [
        queued(5), queued(6), queued(4, deadline=9), queued(3, deadline=5),
        queued(2, priority=2), queued(1, priority=1, deadline=99),
        queued(0, priority=1, deadline=7),
    ]  # fmt: skip
    queue = BatchQueue(10)
    for batch in waiting:
        assert queue.write(batch).accepted
    assert order(queue) == [0, 1, 2, 3, 4, 5, 6]


def test_no_priority_means_the_models_default() -> None:
    default = rank(BatchHeader(), 0, 2)
    assert rank(BatchHeader(priority=1), 1, 2) < default < rank(BatchHeader(priority=3), 1, 2)


def test_a_full_queue_refuses_and_tells_its_level() -> None:
    queue = BatchQueue(2)
    assert [queue.write(queued(n)) for n in range(3)] == [(True, 0.5), (True, 1.0), (False, 1.0)]


def test_a_closed_queue_refuses_but_gives_out_what_it_has() -> None:
    queue = BatchQueue(2)
    queue.write(queued(1))
    queue.close()
    assert not queue.write(queued(2)).accepted
    assert order(queue) == [1]


def test_removed_batches_are_not_read_and_leave_room() -> None:
    queue = BatchQueue(3)
    for n, holder in enumerate("aba"):
        queue.write(queued(n, holder=holder))
    removed = queue.remove(lambda batch: batch.holder == "a")
    assert {b.header.batch_id for b in removed} == {0, 2}
    assert queue.write(queued(3)).accepted
    assert order(queue) == [1, 3]


@pytest.mark.parametrize("readers", [1, 3])
def test_every_batch_is_read_exactly_once(readers: int) -> None:
    queue, seen = BatchQueue(1000), []
    threads = [
        threading.Thread(target=lambda: seen.extend(iter(queue.read, None))) for _ in range(readers)
    ]
    for thread in threads:
        thread.start()
    batches = [queued(n, priority=n % 3) for n in range(500)]
    assert all(queue.write(batch).accepted for batch in batches)
    queue.close()
    for thread in threads:
        thread.join(20)
    assert sorted(b.header.batch_id for b in seen) == list(range(500))


def test_the_repr_tells_the_state() -> None:
    queue = BatchQueue(2)
    queue.write(queued(1))
    assert repr(queue) == "<BatchQueue 1/2 open>"
    assert list(itertools.islice(iter(queue.read, None), 1))


def reading(queue: BatchQueue) -> tuple[threading.Thread, list[Batch | None]]:
    """A reader that waits for one batch, and what it got."""
    got: list[Batch | None] = []
    thread = threading.Thread(target=lambda: got.append(queue.read()))
    thread.start()
    wait_until(lambda: queue._idle, what="a reader that waits")
    return thread, got


def test_the_place_of_a_reader_is_lent_only_while_one_waits_for_nothing() -> None:
    queue = BatchQueue(2)
    assert not queue.lend()
    thread, got = reading(queue)
    assert queue.lend()
    assert not queue.lend()
    queue.give_back()
    assert queue.lend()
    queue.write(queued(1))
    queue.give_back()
    thread.join(10)
    assert [batch.header.batch_id for batch in got if batch] == [1]


def test_who_lent_its_place_reads_nothing_until_it_is_given_back() -> None:
    queue = BatchQueue(2)
    thread, got = reading(queue)
    assert queue.lend()
    queue.write(queued(1))
    assert not queue.lend(), "what waits goes first"
    assert not queue._has_turn()
    assert len(queue) == 1
    queue.give_back()
    thread.join(10)
    assert [batch.header.batch_id for batch in got if batch] == [1]


def test_a_closed_queue_ends_for_who_lent_its_place_when_it_is_given_back() -> None:
    """Until then a run is under way that needs the backend."""
    queue = BatchQueue(2)
    thread, got = reading(queue)
    assert queue.lend()
    queue.close()
    assert not queue.lend()
    assert not queue._has_turn()
    queue.give_back()
    thread.join(10)
    assert got == [None]
