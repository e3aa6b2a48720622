"""Rules of links over rings beyond those that hold for every link (test_link.py)."""

import itertools
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog

from sits_channel import ring
from sits_channel.link import Link, LinkClient, link_handler
from sits_channel.ring import RingEnd
from sits_channel.ring_files import Rings
from sits_core.rpc import Server, open_channel
from sits_core.settings import Settings
from sits_core.testing import wait_until

Writer = pytest.importorskip("sits_channel._ring", reason="the C core is not compiled").Writer

SERVICE, METHOD = "test.Service", "/test.Service/Link"
SETTINGS = Settings()
GREETING = b"greeting"
WAIT_S = 20.0
LIMIT = 32 << 20


class Listener:
    """Counts lives and keeps messages."""

    def __init__(self, on_message: Callable[[Link, bytes], object] = lambda *_: None) -> None:
        self.opens: list[Link] = []
        self.closes: list[str] = []
        self.messages: list[bytes] = []
        self._on_message = on_message

    def opened(self, link: Link) -> None:
        self.opens.append(link)

    def received(self, link: Link, message: bytes) -> None:
        self.messages.append(message)
        self._on_message(link, message)

    def closed(self, link: Link, reason: str) -> None:
        self.closes.append(reason)

    def wait(self, condition: Callable[["Listener"], object]) -> None:
        wait_until(lambda: condition(self), WAIT_S)


def rings(directory: str) -> Rings:
    return Rings(directory, "test", "process", LIMIT)


class Ends:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def serve(self, listener: Listener, own: Rings | None) -> str:
        server = Server("127.0.0.1:0", SETTINGS)
        server.add_handler(link_handler(SERVICE, listener, lambda: GREETING, own), SERVICE)
        server.start()
        self._stack.callback(server.stop, 0.1)
        return f"127.0.0.1:{server.port}"

    def connect(self, address: str, listener: Listener, own: Rings | None) -> LinkClient:
        client = LinkClient(
            address, METHOD, listener, lambda at: open_channel(at, SETTINGS), rings=own
        )
        self._stack.callback(client.stop)
        client.start()
        return client


@pytest.fixture
def ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack)


def test_only_where_both_ends_want_and_share_them_are_rings_used(
    ends: Ends, shm: str, tmp_path: Path
) -> None:
    elsewhere = str(tmp_path)
    for near_own, far_own, way in (
        (rings(shm), rings(shm), "ring"),
        (rings(shm), None, "grpc"),
        (None, rings(shm), "grpc"),
        (rings(shm), rings(elsewhere), "grpc"),
        (rings("/nowhere"), rings(shm), "grpc"),
    ):
        near, far = Listener(), Listener(lambda link, message: link.write(message))
        client = ends.connect(ends.serve(far, far_own), near, near_own)
        near.wait(lambda heard: heard.opens)
        near.opens[0].write(b"ping")
        near.wait(lambda heard: heard.messages == [GREETING, b"ping"])
        assert (near.opens[0].transport, far.opens[0].transport) == (way, way)
        assert os.listdir(shm) == []
        client.stop()


@pytest.mark.parametrize("own", [True, False], ids=["ring", "grpc"])
def test_what_is_written_while_the_way_is_being_decided_arrives_once_and_in_order(
    ends: Ends, shm: str, own: bool
) -> None:
    """Some are written before the answer came, some after, all by threads at once."""
    near, far = Listener(), Listener()
    address = ends.serve(far, rings(shm))
    client = ends.connect(address, near, rings(shm) if own else None)
    wait_until(lambda: client.link, WAIT_S)
    link, writers, each = client.link, 4, 2000
    assert link is not None

    def write(writer: int) -> None:
        for number in range(each):
            size = (number * 7919) % 3000
            while not link.write(b"%d %d " % (writer, number) + bytes(size)).accepted:
                assert not link.closed

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    far.wait(lambda heard: len(heard.messages) == writers * each)
    seen: list[list[int]] = [[] for _ in range(writers)]
    for message in far.messages:
        writer, number, _ = message.split(b" ", 2)
        seen[int(writer)].append(int(number))
    assert seen == [list(range(each))] * writers


def test_small_messages_do_not_overtake_a_large_one(ends: Ends, shm: str) -> None:
    near, far = Listener(), Listener()
    ends.connect(ends.serve(far, rings(shm)), near, rings(shm))
    near.wait(lambda heard: heard.opens)
    sizes = [10, 5 * ring.CAPACITY_BYTES, 11, 12, 2 * ring.CAPACITY_BYTES, 0, 13]
    for size in sizes:
        assert near.opens[0].write(bytes(size)).accepted
    far.wait(lambda heard: len(heard.messages) == len(sizes))
    assert [len(message) for message in far.messages] == sizes


def test_a_message_over_the_limit_ends_the_link_and_the_next_one_works(
    ends: Ends, shm: str
) -> None:
    near, far = Listener(), Listener()
    client = ends.connect(ends.serve(far, rings(shm)), near, rings(shm))
    near.wait(lambda heard: heard.opens)
    assert near.opens[0].write(bytes(LIMIT + 1)).accepted
    far.wait(lambda heard: heard.closes)
    assert f"of a message of {LIMIT + 1}, limit {LIMIT}" in far.closes[0]
    near.wait(lambda heard: len(heard.opens) == 2 and client.link is heard.opens[1])
    near.opens[1].write(b"small")
    far.wait(lambda heard: heard.messages == [b"small"])
    assert len(near.closes) == len(far.closes) == 1


def break_tail(memory: mmap.mmap, start: int) -> None:
    memory[start + 64 : start + 72] = b"\x01" * 8


def break_record(memory: mmap.mmap, start: int) -> None:
    """A line that nobody wrote counts as written, and a good record behind it wakes the reader."""
    head = struct.unpack_from("=Q", memory, start)[0]
    struct.pack_into("=Q", memory, start, head + 64)
    Writer(memory, start, ring.CAPACITY_BYTES).try_write(b"x")


@pytest.mark.parametrize("direction", ["to the server", "to the client"])
@pytest.mark.parametrize("damage", [break_tail, break_record])
def test_a_ring_that_a_peer_broke_is_left_and_a_new_one_works(
    ends: Ends,
    shm: str,
    damage: Callable[[mmap.mmap, int], None],
    direction: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[mmap.mmap] = []
    client_end = ring.client_end

    def recording(memory: mmap.mmap, capacity: int, limit: int) -> RingEnd:
        made.append(memory)
        return client_end(memory, capacity, limit)

    monkeypatch.setattr(ring, "client_end", recording)
    near, far = Listener(), Listener(lambda link, message: link.write(message))
    ends.connect(ends.serve(far, rings(shm)), near, rings(shm))
    near.wait(lambda heard: heard.messages)
    far.wait(lambda heard: heard.opens)  # the greeting is written before the server opens
    to_client = 4096 + ring.CAPACITY_BYTES if direction == "to the client" else 0
    with structlog.testing.capture_logs():
        damage(made[0], 4096 + to_client)
        if damage is break_tail:  # which a writer sees when it writes
            writer = far if to_client else near
            writer.opens[0].write(b"does it still work?")
        near.wait(lambda heard: len(heard.opens) == 2)
    far.wait(lambda heard: len(heard.opens) == 2)
    near.opens[1].write(b"it does")
    near.wait(lambda heard: heard.messages[-1] == b"it does")
    assert len(near.closes) == len(far.closes) == 1


def test_links_that_come_and_go_leave_no_file_no_mapping_and_no_descriptor(
    ends: Ends, shm: str
) -> None:
    far = Listener()
    address = ends.serve(far, rings(shm))
    for life in range(30):
        near = Listener()
        client = ends.connect(address, near, rings(shm))
        near.wait(lambda heard: heard.messages)
        client.stop()
        near.opens.clear()
        far.wait(lambda heard, life=life: len(heard.closes) == life + 1)
    far.opens.clear()
    assert os.listdir(shm) == []
    wait_until(lambda: shm not in Path("/proc/self/maps").read_text(), WAIT_S)


def test_a_server_killed_again_and_again_under_traffic_costs_no_order_and_no_file(
    ends: Ends, shm: str
) -> None:
    """Each life of the link brings an unbroken beginning of what was written in it."""
    script = str(Path(__file__).with_name("ring_link_peer.py"))
    near, port = Listener(), ""
    for life in range(1, 6):
        command = [sys.executable, script, shm, port]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            line = server.stdout.readline().strip()
            if not port:
                port = line
                ends.connect(f"127.0.0.1:{port}", near, rings(shm))
            near.wait(lambda heard, life=life: len(heard.opens) == life)
            link = near.opens[-1]
            assert link.transport == "ring"
            near.messages.clear()
            numbers = itertools.count()
            while len(near.messages) < 500:
                link.write(b"%d" % next(numbers))
            server.send_signal(signal.SIGKILL)
        near.wait(lambda heard, life=life: len(heard.closes) == life)
        echoes = [int(message) for message in near.messages if message != GREETING]
        assert echoes == list(range(len(echoes)))
        assert not link.write(b"late").accepted
        assert [name for name in os.listdir(shm) if not name.startswith("sits-test-process")] == []
