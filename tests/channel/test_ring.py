"""Rules of the ring's core: one writer, one reader, whole messages in order."""

import mmap
import random
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits_core.testing import wait_until

_ring = pytest.importorskip("sits_channel._ring", reason="the C core is not compiled")

CAPACITY = 4096
CONTROL_BYTES = 4096
LINE = 64
LIMIT = 1 << 20
WAIT_S = 20.0

HEAD = struct.Struct("=Q")
TAIL_AT = LINE
ASLEEP_AT = {"reader": 2 * LINE, "writer": 3 * LINE}
RECORD = struct.Struct("=QQQQ")
"""number, length, at, total."""


class Pair:
    """Both sides of one direction, in one process."""

    def __init__(self, spin_ns: int = 0) -> None:
        self.memory = mmap.mmap(-1, CONTROL_BYTES + CAPACITY)
        self.writer = _ring.Writer(self.memory, 0, CAPACITY, spin_ns)
        self.reader = _ring.Reader(self.memory, 0, CAPACITY, LIMIT, spin_ns)

    @contextmanager
    def reading(self) -> Iterator[list[bytes]]:
        """What a thread reads, complete when the block has ended."""
        got: list[bytes] = []

        def read() -> None:
            while messages := self.reader.read():
                got.extend(messages)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        yield got
        self.reader.close()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.fixture(params=[0, 5_000], ids=["sleeping", "spinning"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=2 * CAPACITY))))
@settings(max_examples=300, deadline=None)
def test_what_is_taken_comes_out_whole_and_in_order(steps: list[bytes | None]) -> None:
    """None = read what there is. What does not fit is not taken, and leaves no trace."""
    pair, sent, got = Pair(), [], []
    for step in steps:
        if step is None:
            got += pair.reader.read(0)
        elif pair.writer.try_write(step):
            sent.append(step)
    assert got + pair.reader.read(0) == sent


@given(
    st.lists(st.integers(0, 4 * CAPACITY), max_size=30),
    st.sampled_from([0, 5_000]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=100, deadline=None)
def test_messages_of_any_size_pass_while_a_thread_reads(
    sizes: list[int], spin_ns: int, rng: random.Random
) -> None:
    pair, sent = Pair(spin_ns), [rng.randbytes(size) for size in sizes]
    with pair.reading() as got:
        assert all(pair.writer.write(message) for message in sent)
    assert got == sent


def test_a_full_ring_takes_nothing_and_then_goes_on(pair: Pair) -> None:
    taken = 0
    while pair.writer.try_write(b"x" * 1000):
        taken += 1
    assert taken == CAPACITY // 1088
    assert not pair.writer.try_write(b"y" * 1000)
    assert pair.reader.read() == [b"x" * 1000] * taken
    assert pair.writer.try_write(b"y" * 1000)
    assert pair.reader.read() == [b"y" * 1000]


def test_a_message_larger_than_the_ring_is_never_taken_at_once(pair: Pair) -> None:
    assert not pair.writer.try_write(b"x" * CAPACITY)
    assert pair.reader.read(0) == []


def test_one_read_takes_all_there_is(pair: Pair) -> None:
    sent = [bytes([n]) * n for n in range(20)]
    assert all(pair.writer.try_write(message) for message in sent)
    assert pair.reader.read() == sent


def test_what_came_before_the_end_is_still_read(pair: Pair) -> None:
    assert pair.writer.try_write(b"last words")
    pair.reader.close()
    assert pair.reader.read() == [b"last words"]
    assert pair.reader.read() == []
    assert pair.reader.closed


def test_closing_wakes_a_reader_that_waits(pair: Pair) -> None:
    with pair.reading() as got:
        pass
    assert got == []


def test_closing_wakes_a_writer_that_waits(pair: Pair) -> None:
    answers: list[bool] = []
    started = threading.Event()

    def write() -> None:
        started.set()
        answers.append(pair.writer.write(b"x" * 10 * CAPACITY))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert started.wait(WAIT_S)
    pair.writer.close()
    thread.join(WAIT_S)
    assert answers == [False]
    assert not pair.writer.try_write(b"later")


@pytest.mark.parametrize("side", ["reader", "writer"])
def test_closing_wakes_who_was_to_be_woken_by_a_peer_that_died(side: str) -> None:
    """Killed after it had cleared the flag, and before it could wake."""
    pair, answers = Pair(), []

    def wait() -> None:
        answers.append(pair.reader.read() if side == "reader" else pair.writer.write(bytes(9999)))

    asleep_at = ASLEEP_AT[side]
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    wait_until(lambda: pair.memory[asleep_at] and in_futex(thread), WAIT_S, f"{side} sleeping")
    pair.memory[asleep_at] = 0
    (pair.reader if side == "reader" else pair.writer).close()
    thread.join(WAIT_S)
    assert answers == [[] if side == "reader" else False]


def in_futex(thread: threading.Thread) -> bool:
    """Whether the kernel has put it to sleep."""
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


def test_a_message_cut_off_by_the_end_is_not_delivered(pair: Pair) -> None:
    thread = threading.Thread(target=pair.writer.write, args=(b"x" * 10 * CAPACITY,), daemon=True)
    thread.start()
    wait_until(lambda: HEAD.unpack_from(pair.memory)[0], WAIT_S, "the beginning of the message")
    pair.writer.close()
    pair.reader.close()
    thread.join(WAIT_S)
    assert pair.reader.read() == []


def test_a_message_over_the_limit_is_refused_before_its_memory_is_taken(pair: Pair) -> None:
    pair.writer.close()
    reader = _ring.Reader(pair.memory, 0, CAPACITY, 99)
    other = _ring.Writer(pair.memory, 0, CAPACITY)
    assert other.try_write(b"x" * 99)
    assert len(reader.read()[0]) == 99
    assert other.try_write(b"x" * 100)
    with pytest.raises(ValueError, match="of a message of 100, limit 99"):
        reader.read()


@pytest.mark.parametrize("tail", [64, 2**63, 2**64 - CAPACITY - 64, 2**64 - 1])
def test_a_reader_that_lies_stops_the_writer(pair: Pair, tail: int) -> None:
    HEAD.pack_into(pair.memory, TAIL_AT, tail)
    assert not pair.writer.try_write(b"x")
    with pytest.raises(ValueError, match="the reader cannot be at"):
        pair.writer.write(b"x")


@pytest.mark.parametrize("head", [1, CAPACITY + 64, 2**63, 2**64 - 64])
def test_a_writer_that_lies_stops_the_reader(pair: Pair, head: int) -> None:
    HEAD.pack_into(pair.memory, 0, head)
    with pytest.raises(ValueError, match="the writer cannot be at"):
        pair.reader.read()


@pytest.mark.parametrize(
    "record",
    [
        (65, 5, 0, 5),
        (0, 0, 0, 0),
        (1, 33, 0, 33),
        (1, 2**64 - 1, 0, 2**64 - 1),
        (1, 5, 1, 6),
        (1, 5, 0, 4),
        (1, 0, 0, 5),
        (1, 5, 0, LIMIT + 1),
        (1, 5, 2**64 - 4, 5),
    ],
    ids=[
        "number",
        "fresh memory",
        "past the head",
        "length",
        "not its first",
        "too long",
        "empty",
        "limit",
        "at",
    ],
)
def test_a_broken_record_is_refused(pair: Pair, record: tuple[int, int, int, int]) -> None:
    RECORD.pack_into(pair.memory, CONTROL_BYTES, *record)
    HEAD.pack_into(pair.memory, 0, LINE)
    with pytest.raises(ValueError, match="broken record at 0"):
        pair.reader.read()


def test_random_bytes_never_crash_a_side() -> None:
    """Heads and records are often nearly right, so that every check is reached."""
    rng = random.Random(3)
    refused = 0
    for _ in range(10_000):
        pair = Pair()
        pair.memory[:256] = rng.randbytes(256)
        pair.memory[CONTROL_BYTES : CONTROL_BYTES + 512] = rng.randbytes(512)
        if rng.random() < 0.7:
            HEAD.pack_into(pair.memory, 0, LINE * rng.randrange(1, CAPACITY // LINE + 2))
            numbers = [rng.choice((0, 1, 64, 1000, LIMIT, 2**64 - 1)) for _ in range(4)]
            RECORD.pack_into(pair.memory, CONTROL_BYTES, *numbers)
        assert pair.writer.try_write(b"x") in (True, False)
        try:
            pair.reader.read(0)
        except ValueError:
            refused += 1
    assert refused > 5_000


@pytest.mark.parametrize(
    ("offset", "capacity", "why"),
    [
        (0, 5000, "power of two"),
        (0, 2048, "power of two"),
        (0, -CAPACITY, "power of two"),
        (64, CAPACITY, "no room"),
        (-64, CAPACITY, "no room"),
        (2**62, CAPACITY, "no room"),
    ],
)
def test_a_ring_that_cannot_be_is_refused(offset: int, capacity: int, why: str) -> None:
    memory = mmap.mmap(-1, CONTROL_BYTES + CAPACITY)
    with pytest.raises(ValueError, match=why):
        _ring.Writer(memory, offset, capacity)
    with pytest.raises(ValueError, match=why):
        _ring.Reader(memory, offset, capacity, LIMIT)


def test_only_bytes_are_written(pair: Pair) -> None:
    for wrong in ("text", bytearray(b"x"), None):
        with pytest.raises(TypeError):
            pair.writer.try_write(wrong)
