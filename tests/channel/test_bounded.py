"""A bounded queue whose writers never block."""

import threading

import pytest

from sits_channel.bounded import BoundedChannel, Pressure


def test_items_come_out_in_the_order_they_went_in() -> None:
    channel: BoundedChannel[int] = BoundedChannel(4)
    for number in range(3):
        assert channel.write(number).accepted
    assert [channel.read() for _ in range(3)] == [0, 1, 2]


def test_a_full_channel_refuses_and_tells_how_full_it_is() -> None:
    channel: BoundedChannel[int] = BoundedChannel(2)
    answers = [channel.write(number) for number in range(3)]
    assert answers == [Pressure(True, 0.5), Pressure(True, 1.0), Pressure(False, 1.0)]
    assert len(channel) == 2


def test_reading_makes_room() -> None:
    channel: BoundedChannel[int] = BoundedChannel(1)
    channel.write(1)
    channel.read()
    assert channel.write(2) == Pressure(True, 1.0)


def test_a_read_waits_for_the_next_write() -> None:
    channel: BoundedChannel[str] = BoundedChannel(1)
    read: list[str | None] = []
    reader = threading.Thread(target=lambda: read.append(channel.read(30)))
    reader.start()
    channel.write("x")
    reader.join(30)
    assert read == ["x"]


def test_a_read_gives_up_when_its_time_is_up() -> None:
    assert BoundedChannel[int](1).read(timeout_s=0.0) is None


def test_a_closed_channel_takes_nothing_and_gives_what_it_has() -> None:
    channel: BoundedChannel[int] = BoundedChannel(2)
    channel.write(1)
    channel.close()
    assert not channel.write(2).accepted
    assert (channel.read(), channel.read()) == (1, None)
    assert channel.closed


def test_closing_may_throw_away_what_waits() -> None:
    channel: BoundedChannel[bytes] = BoundedChannel(2, weigh=len, max_weight=10)
    channel.write(b"x")
    channel.close(discard=True)
    assert (channel.read(), len(channel)) == (None, 0)


def test_closing_wakes_every_reader() -> None:
    channel: BoundedChannel[int] = BoundedChannel(1)
    read: list[int | None] = []
    readers = [threading.Thread(target=lambda: read.append(channel.read(60))) for _ in range(3)]
    for reader in readers:
        reader.start()
    channel.close()
    for reader in readers:
        reader.join(30)
    assert read == [None, None, None]


def test_weights_are_bounded_too() -> None:
    channel: BoundedChannel[bytes] = BoundedChannel(100, weigh=len, max_weight=10)
    assert channel.write(b"12345") == Pressure(True, 0.5)
    assert channel.write(b"123456") == Pressure(False, 0.5)
    assert channel.write(b"12345") == Pressure(True, 1.0)
    assert not channel.write(b"1").accepted
    channel.read()
    assert channel.write(b"1") == Pressure(True, 0.6)


def test_an_item_heavier_than_the_bound_travels_alone() -> None:
    channel: BoundedChannel[bytes] = BoundedChannel(100, weigh=len, max_weight=10)
    assert channel.write(bytes(50)) == Pressure(True, 1.0)
    assert not channel.write(b"1").accepted
    assert channel.read() == bytes(50)
    assert channel.write(b"1").accepted


@pytest.mark.parametrize("writers", [1, 4])
def test_what_was_accepted_comes_out_once_whoever_writes(writers: int) -> None:
    channel: BoundedChannel[tuple[int, int]] = BoundedChannel(8)
    accepted: list[tuple[int, int]] = []
    taken: list[tuple[int, int]] = []

    def write(writer: int) -> None:
        items = [(writer, number) for number in range(2000)]
        accepted.extend(item for item in items if channel.write(item).accepted)

    def read() -> None:
        while (item := channel.read(30)) is not None:
            taken.append(item)

    reader = threading.Thread(target=read)
    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join(30)
    channel.close()
    reader.join(30)
    assert sorted(taken) == sorted(accepted)
    for writer in range(writers):
        own = [number for who, number in taken if who == writer]
        assert own == sorted(own)


def test_its_state_shows_in_one_line() -> None:
    channel: BoundedChannel[int] = BoundedChannel(4)
    channel.write(1)
    assert repr(channel) == "<BoundedChannel 1/4 open>"
    channel.close()
    assert repr(channel) == "<BoundedChannel 1/4 closed>"
