"""What a reader of other processes' pools may rely on, whatever lies in shared memory."""

import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from sits_channel.pool import PayloadPool, Slot
from sits_channel.pool_files import PAGE_BYTES
from sits_channel.pool_reader import PoolReader, StaleReference
from sits_channel.pool_slots import HEADER_BYTES
from sits_protos.v1.common_pb2 import PayloadRef

CAPACITY_BYTES = 64 * PAGE_BYTES
FUZZ_ROUNDS = 10_000


@pytest.fixture
def pool(shm: str) -> Iterator[PayloadPool]:
    with PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES) as pool:
        yield pool


@pytest.fixture
def reader(shm: str) -> Iterator[PoolReader]:
    reader = PoolReader(shm)
    yield reader
    reader.close()


def filled(pool: PayloadPool, payload: bytes = b"payload") -> Slot:
    slot = pool.allocate(len(payload))
    assert slot is not None
    slot.view[:] = payload
    return slot


def mapped_files(directory: str) -> int:
    with open("/proc/self/maps") as maps:
        return sum(directory in line for line in maps)


def test_a_payload_is_read_in_place(pool: PayloadPool, reader: PoolReader) -> None:
    slot = filled(pool, np.arange(1000, dtype="<f4").tobytes())
    array = np.frombuffer(reader.view(slot.ref), dtype="<f4")
    assert array[999] == 999.0
    slot.view[:4] = np.float32(5).tobytes()
    assert array[0] == 5.0
    assert reader.still_valid(slot.ref)


def test_a_reader_cannot_write(pool: PayloadPool, reader: PoolReader) -> None:
    view = reader.view(filled(pool).ref)
    assert view.readonly
    assert not np.frombuffer(view, dtype="u1").flags.writeable


def test_an_empty_payload_is_empty(pool: PayloadPool, reader: PoolReader) -> None:
    ref = filled(pool, b"").ref
    assert bytes(reader.view(ref)) == b""
    assert reader.still_valid(ref)


def test_a_slot_taken_back_before_reading_is_stale(pool: PayloadPool, reader: PoolReader) -> None:
    ref = filled(pool).ref
    pool.release(ref)
    with pytest.raises(StaleReference, match="expected Claim"):
        reader.view(ref)


def test_a_slot_taken_back_while_reading_is_noticed_afterwards(
    pool: PayloadPool, reader: PoolReader
) -> None:
    ref = filled(pool).ref
    view = reader.view(ref)
    assert reader.still_valid(ref)
    pool.release_all("")
    assert not reader.still_valid(ref)
    again = filled(pool, b"another")
    assert bytes(view) == b"another"
    assert not reader.still_valid(ref)
    assert bytes(reader.view(again.ref)) == b"another"


def test_a_slot_that_became_part_of_another_is_stale(pool: PayloadPool, reader: PoolReader) -> None:
    refs = [filled(pool).ref for _ in range(4)]
    for ref in refs:
        pool.release(ref)
    whole = filled(pool, b"\xff" * (4 * PAGE_BYTES - HEADER_BYTES))
    assert whole.ref.offset == refs[0].offset
    for ref in refs:
        with pytest.raises(StaleReference):
            reader.view(ref)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../sits-test-owner-1.pool",
        "/etc/passwd",
        "sits-test-none.pool",
        "sits-test-\0.pool",
        "sits-test-" + "x" * 5000 + ".pool",
        "other.pool",
    ],
)
def test_a_pool_that_cannot_be_named_is_a_stale_reference(reader: PoolReader, name: str) -> None:
    with pytest.raises(StaleReference):
        reader.view(PayloadRef(pool=name, offset=PAGE_BYTES + HEADER_BYTES, length=1))
    assert not reader.still_valid(PayloadRef(pool=name))


def test_what_is_no_pool_is_not_mapped(shm: str, reader: PoolReader) -> None:
    odd = {
        name: Path(shm, f"sits-test-{name}.pool") for name in ("fifo", "folder", "text", "empty")
    }
    os.mkfifo(odd["fifo"])
    odd["folder"].mkdir()
    odd["text"].write_bytes(b"not a pool" * 10_000)
    odd["empty"].touch()
    for path in odd.values():
        with pytest.raises(StaleReference):
            reader.view(PayloadRef(pool=path.name, offset=PAGE_BYTES + HEADER_BYTES, length=1))
    assert mapped_files(shm) == 0


def test_a_link_does_not_lead_out_of_the_directory(
    pool: PayloadPool, shm: str, reader: PoolReader
) -> None:
    ref = filled(pool).ref
    Path(shm, "elsewhere").mkdir()
    os.rename(Path(shm, pool.name), Path(shm, "elsewhere", pool.name))
    Path(shm, pool.name).symlink_to(Path(shm, "elsewhere", pool.name))
    with pytest.raises(StaleReference, match="cannot open pool"):
        reader.view(ref)


@pytest.mark.parametrize("size", [100, PAGE_BYTES, PAGE_BYTES + HEADER_BYTES])
def test_a_truncated_pool_is_read_no_further_than_it_reaches(
    pool: PayloadPool, shm: str, reader: PoolReader, size: int
) -> None:
    ref = filled(pool).ref
    short = Path(shm, "sits-test-short.pool")
    short.write_bytes(Path(shm, pool.name).read_bytes()[:size])
    ref.pool = short.name
    with pytest.raises(StaleReference, match="no slot at"):
        reader.view(ref)


def test_a_pool_of_another_layout_is_refused(
    pool: PayloadPool, shm: str, reader: PoolReader
) -> None:
    ref = filled(pool).ref
    with open(os.path.join(shm, pool.name), "r+b") as file:
        file.seek(8)
        file.write((2).to_bytes(4, "little"))
    with pytest.raises(StaleReference, match="this release can read"):
        reader.view(ref)


@given(
    st.builds(
        PayloadRef,
        pool=st.just("sits-test-owner-1.pool"),
        offset=st.integers(0, 2**64 - 1) | st.integers(0, 2 * CAPACITY_BYTES),
        length=st.integers(0, 2**64 - 1) | st.integers(0, 2 * CAPACITY_BYTES),
        generation=st.integers(0, 2**64 - 1),
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_reference_that_was_not_given_out_is_stale(
    pool: PayloadPool, reader: PoolReader, ref: PayloadRef
) -> None:
    with pytest.raises(StaleReference):
        reader.view(ref)


def test_random_bytes_in_headers_never_do_more_than_make_references_stale(
    pool: PayloadPool, shm: str, reader: PoolReader
) -> None:
    rng = random.Random(3)
    ref = filled(pool).ref
    stale = 0
    with open(os.path.join(shm, pool.name), "r+b", buffering=0) as file:
        for _ in range(FUZZ_ROUNDS):
            at = rng.randrange(HEADER_BYTES)
            os.pwrite(file.fileno(), rng.randbytes(rng.randint(1, 16)), _header(ref) + at)
            try:
                assert len(reader.view(ref)) == ref.length
            except StaleReference:
                stale += 1
    assert stale > FUZZ_ROUNDS * 0.9
    assert pool.release(ref)


def _header(ref: PayloadRef) -> int:
    return ref.offset - HEADER_BYTES


def test_a_pickle_in_a_header_or_a_payload_is_only_bytes(
    pool: PayloadPool, shm: str, reader: PoolReader, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"

    class Crafted:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(marker),)

    crafted = pickle.dumps(Crafted())
    slot = filled(pool, crafted)
    assert bytes(reader.view(slot.ref)) == crafted
    with open(os.path.join(shm, pool.name), "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), crafted[:HEADER_BYTES], _header(slot.ref))
    with pytest.raises(StaleReference):
        reader.view(slot.ref)
    assert not marker.exists()


def test_a_view_outlives_pool_owner_and_reader(shm: str) -> None:
    reader = PoolReader(shm)
    with PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES) as pool:
        ref = filled(pool).ref
        view = reader.view(ref)
    del pool
    assert reader.drop_gone() == 1
    assert reader.still_valid(ref)
    reader.close()
    assert bytes(view) == b"payload"
    assert mapped_files(shm) == 1
    del view
    assert mapped_files(shm) == 0


def test_pools_that_are_gone_are_forgotten_when_a_new_one_comes(shm: str) -> None:
    reader = PoolReader(shm)
    for life in range(20):
        with PayloadPool(shm, "test", f"owner-{life}", CAPACITY_BYTES) as pool:
            assert bytes(reader.view(filled(pool).ref)) == b"payload"
            del pool
        assert mapped_files(shm) == 1
    assert repr(reader) == f"<PoolReader {shm} maps ['sits-test-owner-19.pool']>"
    reader.close()


def test_a_mapped_pool_that_is_gone_can_still_be_read(shm: str, reader: PoolReader) -> None:
    with PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES) as pool:
        first, second = filled(pool, b"first").ref, filled(pool, b"second").ref
        reader.view(first)
    assert bytes(reader.view(second)) == b"second"


def test_a_pool_of_the_same_name_is_mapped_anew(shm: str, reader: PoolReader) -> None:
    for _ in range(2):
        with PayloadPool(shm, "test", "owner-1", CAPACITY_BYTES) as pool:
            ref = filled(pool).ref
            with_retry = _view_or_none(reader, ref) or reader.view(ref)
            assert bytes(with_retry) == b"payload"


def _view_or_none(reader: PoolReader, ref: PayloadRef) -> memoryview | None:
    """Process ids do not repeat; where they do, the first reference heals the reader."""
    try:
        return reader.view(ref)
    except StaleReference:
        return None
