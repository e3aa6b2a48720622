"""Outputs in shared memory: who gets slots, and how they come back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sits_channel.pool import PayloadPool
from sits_channel.pool_reader import PoolReader, StaleReference
from sits_core.testing import FakeClock
from sits_executor.payloads import PATIENCE_S, Payloads
from sits_protos.v1.common_pb2 import PayloadRef, Tensor

KB = 1024


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PayloadPool]:
    with PayloadPool(str(tmp_path), "test", "executor-1", 64 * KB) as opened:
        yield opened


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def payloads(pool: PayloadPool, tmp_path: Path, clock: FakeClock) -> Payloads:
    return Payloads(PoolReader(str(tmp_path)), pool, KB, clock)


def test_large_outputs_of_a_sender_that_shares_memory_get_a_slot(payloads: Payloads) -> None:
    room = payloads.reserve("a", by_reference=True)
    taken = room(2 * KB)
    assert taken is not None
    view, ref = taken
    view[:4] = b"data"
    assert bytes(payloads.read(ref)[:4]) == b"data"


def test_small_outputs_and_other_senders_go_inline(payloads: Payloads, pool: PayloadPool) -> None:
    assert payloads.reserve("a", by_reference=True)(KB - 1) is None
    assert payloads.reserve("a", by_reference=False)(2 * KB) is None
    assert pool.stats().slots_in_use == 0


def test_without_a_pool_everything_goes_inline(tmp_path: Path) -> None:
    none = Payloads(PoolReader(str(tmp_path)), None, 0)
    assert none.reserve("a", by_reference=True)(2 * KB) is None
    none.release([PayloadRef(pool="x")])
    none.release_all("a")


def test_slots_come_back_when_released_undone_or_their_link_is_gone(
    payloads: Payloads, pool: PayloadPool
) -> None:
    released = payloads.reserve("a", by_reference=True)(2 * KB)
    undone = payloads.reserve("b", by_reference=True)
    undone(2 * KB)
    payloads.reserve("c", by_reference=True)(2 * KB)
    assert released is not None
    payloads.release([released[1]])
    undone.undo()
    payloads.release_all("c")
    assert pool.stats().slots_in_use == 0


def test_a_release_that_is_not_ours_changes_nothing(payloads: Payloads, pool: PayloadPool) -> None:
    taken = payloads.take(2 * KB, "a")
    assert taken is not None
    payloads.release([PayloadRef(pool="other", offset=taken[1].offset,
                                 generation=taken[1].generation), PayloadRef()])  # fmt: skip
    assert pool.stats().slots_in_use == 1
    payloads.release_all("a")
    assert pool.stats().slots_in_use == 0


def test_a_full_pool_takes_back_only_what_was_lent_long_ago(
    payloads: Payloads, clock: FakeClock
) -> None:
    first = payloads.take(40 * KB, "a")
    assert first is not None
    assert payloads.take(40 * KB, "a") is None, "in use: send inline"
    clock.advance(PATIENCE_S)
    assert payloads.take(40 * KB, "b") is not None
    with pytest.raises(StaleReference):
        payloads.read(first[1])


def test_a_slot_taken_back_while_it_was_read_is_noticed(
    payloads: Payloads, pool: PayloadPool
) -> None:
    taken = payloads.take(2 * KB, "a")
    assert taken is not None
    tensors = [Tensor(name="x", reference=taken[1]), Tensor(name="y", inline=b"1")]
    view = payloads.read(taken[1])
    payloads.verify(tensors)
    pool.release(taken[1])
    with pytest.raises(StaleReference, match="'x' was taken back"):
        payloads.verify(tensors)
    assert len(view) == 2 * KB
