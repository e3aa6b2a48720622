"""What the owner of a pool may rely on."""

import os
import threading
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from sits_channel.pool import PayloadPool, Slot
from sits_channel.pool_files import PAGE_BYTES, PoolUnavailable
from sits_channel.pool_slots import HEADER_BYTES, read_header
from sits_core.clock import now_ns
from sits_protos.v1.common_pb2 import PayloadRef

CAPACITY_BYTES = 64 * PAGE_BYTES


@pytest.fixture
def pool(shm: str) -> Iterator[PayloadPool]:
    with PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES) as pool:
        yield pool


def lend(pool: PayloadPool, length: int, holder: str = "") -> Slot:
    slot = pool.allocate(length, holder)
    assert slot is not None
    return slot


def test_a_slot_begins_one_header_into_a_page_and_is_as_long_as_asked(pool: PayloadPool) -> None:
    slot = lend(pool, 5000)
    assert len(slot.view) == slot.ref.length == 5000
    assert slot.ref.offset % PAGE_BYTES == HEADER_BYTES
    assert slot.ref.pool == pool.name == "sits-test-owner-1.pool"
    assert not slot.view.readonly


def test_a_slot_header_tells_what_the_slot_is_for(pool: PayloadPool, shm: str) -> None:
    before = now_ns()
    slot = pool.allocate(10, "executor-1", req_id=42, tenant="gold", priority=3)
    assert slot is not None
    with open(os.path.join(shm, pool.name), "rb") as file:
        header = read_header(memoryview(file.read()), slot.ref.offset)
    assert (header.req_id, header.offset, header.length) == (42, slot.ref.offset, 10)
    assert header.generation == slot.ref.generation
    assert before <= header.allocated_unix_ns <= now_ns()
    assert (header.priority, header.tenant != 0, header.holder != 0) == (3, True, True)


def test_the_header_fields_lie_where_the_contract_puts_them(pool: PayloadPool, shm: str) -> None:
    slot = pool.allocate(10, req_id=42)
    assert slot is not None
    with open(os.path.join(shm, pool.name), "rb") as file:
        raw = file.read()[slot.ref.offset - HEADER_BYTES :]
    words = [int.from_bytes(raw[at : at + 8], "little") for at in (0, 8, 16, 24)]
    assert words == [42, slot.ref.offset, 10, slot.ref.generation]


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 20)), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_slots_never_overlap_and_all_bytes_come_back(
    pool: PayloadPool, steps: list[tuple[int, int]]
) -> None:
    held: list[tuple[Slot, int]] = []
    for mark, (length, released) in enumerate(steps):
        if (slot := pool.allocate(length)) is not None:
            slot.view[:] = bytes([mark]) * length
            held.append((slot, mark))
        if held and released < len(held):
            release_checked(pool, *held.pop(released))
    for slot, mark in held:
        release_checked(pool, slot, mark)
    stats = pool.stats()
    assert (stats.used_bytes, stats.slots_in_use, stats.oldest_unix_ns) == (0, 0, 0)
    assert stats.largest_free_bytes == stats.capacity_bytes == CAPACITY_BYTES


def release_checked(pool: PayloadPool, slot: Slot, mark: int) -> None:
    assert bytes(slot.view) == bytes([mark]) * slot.ref.length
    assert pool.release(slot.ref)


def test_a_full_pool_refuses_and_counts_it(pool: PayloadPool) -> None:
    slots = [lend(pool, PAGE_BYTES - HEADER_BYTES) for _ in range(64)]
    assert pool.allocate(0) is None
    assert pool.stats().refusals == 1
    assert pool.stats().used_bytes == pool.stats().capacity_bytes
    pool.release(slots[10].ref)
    assert lend(pool, 1).ref.offset == slots[10].ref.offset


def test_a_payload_takes_the_whole_pool_but_not_more(pool: PayloadPool) -> None:
    assert pool.allocate(CAPACITY_BYTES - HEADER_BYTES + 1) is None
    assert pool.allocate(1 << 62) is None
    whole = lend(pool, CAPACITY_BYTES - HEADER_BYTES)
    whole.view[-1] = 1
    assert pool.stats().refusals == 2


def test_a_payload_of_fewer_than_no_bytes_is_a_mistake(pool: PayloadPool) -> None:
    with pytest.raises(ValueError, match="0 or more bytes, got -1"):
        pool.allocate(-1)


def test_a_reference_releases_its_slot_once(pool: PayloadPool) -> None:
    slot = lend(pool, 10)
    assert pool.release(slot.ref)
    again = lend(pool, 10)
    assert again.ref.offset == slot.ref.offset
    assert not pool.release(slot.ref)
    assert pool.stats().stale_releases == 1
    assert pool.stats().slots_in_use == 1


@pytest.mark.parametrize(
    "change",
    [{"pool": "sits-test-other.pool"}, {"offset": 1}, {"generation": 1}, {"offset": 2**64 - 1}],
)
def test_a_reference_to_something_else_releases_nothing(
    pool: PayloadPool, change: dict[str, object]
) -> None:
    ref = PayloadRef()
    ref.CopyFrom(lend(pool, 10).ref)
    for field, value in change.items():
        setattr(ref, field, value)
    assert not pool.release(ref)
    assert pool.stats().slots_in_use == 1


def test_every_slot_and_every_release_has_a_generation_of_its_own(pool: PayloadPool) -> None:
    seen = set()
    for _ in range(100):
        slot = lend(pool, 10)
        seen.add(slot.ref.generation)
        pool.release(slot.ref)
    assert len(seen) == 100


def test_generations_are_not_numbers_that_a_tensor_is_likely_to_hold(shm: str) -> None:
    generations = []
    for name in "abc":
        with PayloadPool(shm, "test", name, CAPACITY_BYTES) as pool:
            generations.append(lend(pool, 1).ref.generation)
    assert len({generation >> 32 for generation in generations}) == 3


def test_slots_of_a_dead_holder_are_reclaimed_and_no_others(pool: PayloadPool) -> None:
    lost = [lend(pool, 5000, "executor-1") for _ in range(3)]
    kept = lend(pool, 5000, "executor-2")
    assert pool.release_all("executor-1") == 3
    assert pool.release_all("executor-1") == 0
    assert not pool.release(lost[0].ref)
    assert pool.release(kept.ref)
    assert pool.stats().reclaimed == 3


def test_the_age_of_the_oldest_slot_shows_a_leak(pool: PayloadPool) -> None:
    first, second = lend(pool, 1), lend(pool, 1)
    oldest = pool.stats().oldest_unix_ns
    pool.release(first.ref)
    assert 0 < oldest <= pool.stats().oldest_unix_ns <= now_ns()
    pool.release(second.ref)
    assert pool.stats().oldest_unix_ns == 0


def test_a_pool_that_is_not_open_is_full(shm: str) -> None:
    pool = PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES)
    assert pool.allocate(1) is None
    with pool:
        slot = lend(pool, 1)
    assert pool.allocate(1) is None
    assert not pool.release(slot.ref)
    assert pool.release_all("") == 0
    assert pool.stats().capacity_bytes == 0


def test_closing_removes_the_file_and_leaves_views_alone(shm: str) -> None:
    with PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES) as pool:
        slot = lend(pool, 5000)
        slot.view[:] = b"x" * 5000
    assert os.listdir(shm) == []
    assert bytes(slot.view) == b"x" * 5000
    assert mapped_files(shm) == 1
    del slot
    assert mapped_files(shm) == 0


def mapped_files(directory: str) -> int:
    with open("/proc/self/maps") as maps:
        return sum(directory in line for line in maps)


def test_a_pool_closes_twice_and_opens_again(shm: str) -> None:
    pool = PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES)
    for _ in range(2):
        pool.open()
        assert pool.allocate(1) is not None
        pool.close()
        pool.close()
    assert os.listdir(shm) == []


def test_a_name_belongs_to_one_live_pool(pool: PayloadPool, shm: str) -> None:
    with pytest.raises(PoolUnavailable, match="File exists"):
        PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES).open()
    assert os.listdir(shm) == [pool.name]


def test_threads_share_a_pool(pool: PayloadPool) -> None:
    failures: list[str] = []

    def work(mark: int) -> None:
        for length in range(1, 20_000, 97):
            if (slot := pool.allocate(length, str(mark))) is None:
                continue
            slot.view[:] = bytes([mark]) * length
            if bytes(slot.view) != bytes([mark]) * length or not pool.release(slot.ref):
                failures.append(f"{mark}: {length}")

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert pool.stats().used_bytes == 0


def test_the_repr_tells_how_full_a_pool_is(pool: PayloadPool) -> None:
    lend(pool, 5000)
    assert repr(pool) == (
        "<PayloadPool sits-test-owner-1.pool 1 slots <FreePages 62/64 in 1 runs>>"
    )
