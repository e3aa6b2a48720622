"""Links over real gRPC, with and without rings: order, ends, reconnects, back-pressure."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import structlog

from sits_channel import link as links
from sits_channel import ring
from sits_channel.link import Link, LinkClient, link_handler
from sits_channel.ring_files import Rings
from sits_core.rpc import Server, open_channel, token_metadata
from sits_core.settings import Settings
from sits_core.testing import wait_until

SERVICE, METHOD = "test.Service", "/test.Service/Link"
SETTINGS = Settings()
GREETING = b"greeting"
TOKEN, WRONG = "secret", "wrong"


class Recorder:
    """Remembers what it hears, in order; what it is told to do may block or raise."""

    def __init__(self, on_message: Callable[[Link, bytes], object] = lambda *_: None) -> None:
        self.heard: queue.Queue[tuple[str, bytes | str]] = queue.Queue()
        self.links: list[Link] = []
        self._on_message = on_message

    def opened(self, link: Link) -> None:
        self.links.append(link)
        self.heard.put(("opened", ""))

    def received(self, link: Link, message: bytes) -> None:
        self.heard.put(("received", message))
        self._on_message(link, message)

    def closed(self, link: Link, reason: str) -> None:
        self.heard.put(("closed", reason))

    def next(self) -> tuple[str, bytes | str]:
        return self.heard.get(timeout=20)


def echo(link: Link, message: bytes) -> None:
    link.write(message)


class Ends:
    """Servers and clients of one test. `shm`: where they may share memory, empty = nowhere."""

    def __init__(self, stack: ExitStack, shm: str) -> None:
        self._stack, self.shm = stack, shm

    def rings(self, process: str) -> Rings | None:
        limit = SETTINGS.max_message_bytes
        return Rings(self.shm, "test", process, limit) if self.shm else None

    def serve(self, listener: Recorder, bind: str = "127.0.0.1:0", tokens: str = "") -> Server:
        server = Server(bind, SETTINGS, tokens=[tokens] if tokens else [])
        server.add_handler(
            link_handler(SERVICE, listener, lambda: GREETING, self.rings("server")), SERVICE
        )
        server.start()
        self._stack.callback(server.stop, 0.1)
        return server

    def connect(self, port: int, listener: Recorder, token: str | None = None) -> LinkClient:
        client = LinkClient(
            f"127.0.0.1:{port}",
            METHOD,
            listener,
            lambda address: open_channel(address, SETTINGS),
            token_metadata(token),
            self.rings("client"),
        )
        client.start()
        self._stack.callback(client.stop)
        return client


@pytest.fixture(params=["grpc", "ring"])
def ends(request: pytest.FixtureRequest, shm: str) -> Iterator[Ends]:
    if request.param == "ring" and not ring.available():
        pytest.skip("the C core is not compiled")
    with ExitStack() as stack:
        yield Ends(stack, shm if request.param == "ring" else "")
    assert os.listdir(shm) == []


def test_a_link_tells_which_way_its_messages_go(ends: Ends) -> None:
    near, far = Recorder(), Recorder()
    ends.connect(ends.serve(far).port, near)
    assert [near.next(), far.next()] == [("opened", ""), ("opened", "")]
    expected = "ring" if ends.shm else "grpc"
    assert near.links[0].transport == far.links[0].transport == expected


def test_a_link_opens_then_delivers_in_order_then_closes(ends: Ends) -> None:
    near, far = Recorder(), Recorder(echo)
    client = ends.connect(ends.serve(far).port, near)
    assert near.next() == ("opened", "")
    assert near.next() == ("received", GREETING)
    assert client.link is near.links[0]
    messages = [b"%d" % number for number in range(500)]
    for message in messages:
        assert near.links[0].write(message).accepted
    assert [near.next() for _ in messages] == [("received", message) for message in messages]
    client.stop()
    assert near.next()[0] == "closed"
    assert client.link is None
    assert [far.next() for _ in range(501)] == [
        ("opened", ""),
        *(("received", message) for message in messages),
    ]
    assert far.next()[0] == "closed"
    assert near.heard.empty()
    assert far.heard.empty()


@pytest.mark.parametrize("side", ["near", "far"])
def test_closing_either_end_closes_both(ends: Ends, side: str) -> None:
    near, far = Recorder(), Recorder()
    ends.connect(ends.serve(far).port, near)
    assert (near.next(), near.next(), far.next()) == (
        ("opened", ""),
        ("received", GREETING),
        ("opened", ""),
    )
    closing = near.links[0] if side == "near" else far.links[0]
    closing.close()
    assert near.next()[0] == "closed"
    assert far.next()[0] == "closed"
    assert not near.links[0].write(b"late").accepted
    assert not far.links[0].write(b"late").accepted


def test_a_link_comes_back_after_its_server_restarts(ends: Ends) -> None:
    near, far = Recorder(), Recorder(echo)
    first = ends.serve(far)
    client = ends.connect(first.port, near)
    assert [near.next() for _ in range(2)] == [("opened", ""), ("received", GREETING)]
    first.stop(0.1)
    event, reason = near.next()
    assert event == "closed"
    assert reason
    ends.serve(far, f"127.0.0.1:{first.port}")
    assert [near.next() for _ in range(2)] == [("opened", ""), ("received", GREETING)]
    assert client.link is near.links[1]
    client.link.write(b"again")
    assert near.next() == ("received", b"again")


def test_a_client_waits_for_a_server_that_starts_later_and_says_so_once(ends: Ends) -> None:
    far, near = Recorder(), Recorder()
    spare = ends.serve(Recorder())
    spare.stop(0)
    with structlog.testing.capture_logs() as lines:
        ends.connect(spare.port, near)
        wait_until(lambda: lines)
        ends.serve(far, f"127.0.0.1:{spare.port}")
        assert near.next() == ("opened", "")
    assert [line["event"] for line in lines] == ["link.unreachable"]
    assert "UNAVAILABLE" in lines[0]["reason"]


def test_a_refused_token_is_said_and_opens_nothing(ends: Ends) -> None:
    near, far = Recorder(), Recorder()
    server = ends.serve(far, tokens=TOKEN)
    with structlog.testing.capture_logs() as lines:
        ends.connect(server.port, near, token=WRONG)
        wait_until(lambda: lines)
    assert "UNAUTHENTICATED" in lines[0]["reason"]
    assert near.heard.empty()
    assert far.heard.empty()
    right = Recorder()
    ends.connect(server.port, right, token=TOKEN)
    assert right.next() == ("opened", "")


def test_stopping_a_client_that_reaches_nobody_ends_its_thread(ends: Ends) -> None:
    client = ends.connect(1, Recorder())
    client.stop()
    wait_until(lambda: not client._thread.is_alive())


def test_a_server_with_fifty_open_links_stops_within_its_grace(ends: Ends) -> None:
    far = Recorder()
    server = ends.serve(far)
    nears = [Recorder() for _ in range(50)]
    for near in nears:
        ends.connect(server.port, near)
    for near in nears:
        assert near.next() == ("opened", "")
    began = time.monotonic()
    server.stop(grace_s=0.5)
    assert time.monotonic() - began < 20  # and not for ever
    for near in nears:
        assert near.next() == ("received", GREETING)
        assert near.next()[0] == "closed"
    assert sorted(far.next()[0] for _ in range(100)) == ["closed"] * 50 + ["opened"] * 50


def test_a_client_that_is_killed_ends_the_handler(ends: Ends) -> None:
    far = Recorder()
    server = ends.serve(far)
    script = str(Path(__file__).with_name("link_peer.py"))
    command = [sys.executable, script, f"127.0.0.1:{server.port}", ends.shm]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        assert peer.stdout.readline() == "READY\n"
        assert [far.next() for _ in range(2)] == [("opened", ""), ("received", b"hello")]
        readers = [t for t in threading.enumerate() if t.name.startswith("link ipv4")]
        assert readers
        peer.send_signal(signal.SIGKILL)
    assert far.next()[0] == "closed"
    for reader in readers:
        reader.join(20)
        assert not reader.is_alive()
    assert not far.links[0].write(b"late").accepted


@pytest.mark.parametrize("direction", ["to the server", "to the client"])
def test_writes_to_a_peer_that_does_not_read_are_refused_not_piled_up(
    ends: Ends, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "QUEUE_BYTES", 8 << 20)
    go_on = threading.Event()

    def block(_link: Link, message: bytes) -> None:
        if message != GREETING:
            go_on.wait(60)

    slow, writer = Recorder(block), Recorder()
    near, far = (writer, slow) if direction == "to the server" else (slow, writer)
    ends.connect(ends.serve(far).port, near)
    assert writer.next() == ("opened", "")
    link, message, accepted = writer.links[0], bytes(1 << 20), 0
    # Beyond the queue only what gRPC itself buffers is taken.
    give_up = time.monotonic() + 60
    refused = 0
    while refused < 50:
        assert time.monotonic() < give_up
        assert accepted < 64
        if link.write(message).accepted:
            accepted, refused = accepted + 1, 0
        else:
            refused += 1
            time.sleep(0.01)
    assert len(link._outgoing) == 8
    go_on.set()
    wait_until(lambda: sum(size(item) for item in list(slow.heard.queue)) == accepted << 20, 60)


def size(item: tuple[str, bytes | str]) -> int:
    return len(item[1]) if item[0] == "received" and item[1] != GREETING else 0


def test_a_hundred_megabytes_travel_both_ways(ends: Ends) -> None:
    near, far = Recorder(), Recorder(echo)
    ends.connect(ends.serve(far).port, near)
    assert [near.next() for _ in range(2)] == [("opened", ""), ("received", GREETING)]
    large = bytes(100 << 20)
    assert near.links[0].write(large).accepted
    event, echoed = near.heard.get(timeout=60)
    assert event == "received"
    assert echoed == large


@pytest.mark.parametrize("side", ["near", "far"])
def test_a_listener_that_raises_costs_its_link_and_not_the_next_one(ends: Ends, side: str) -> None:
    def burst(_link: Link, message: bytes) -> None:
        if message == b"bad":
            raise ValueError("a bug")

    near, far = Recorder(burst), Recorder(burst)
    server = ends.serve(far)
    ends.connect(server.port, near)
    assert near.next() == ("opened", "")
    assert near.next() == ("received", GREETING)
    assert far.next() == ("opened", "")
    broken, writer = (near, far) if side == "near" else (far, near)
    with structlog.testing.capture_logs() as lines:
        writer.links[0].write(b"bad")
        assert broken.next() == ("received", b"bad")
        assert broken.next() == ("closed", "the listener failed")
        assert writer.next()[0] == "closed"
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "link.listener_failed"
    ]
    assert near.next() == ("opened", "")


def test_no_thread_stays_behind(ends: Ends) -> None:
    before = set(threading.enumerate())

    def ours() -> list[threading.Thread]:
        fresh = set(threading.enumerate()) - before
        return [t for t in fresh if t.name.startswith("link ")]

    near, far = Recorder(), Recorder()
    server = ends.serve(far)
    client = ends.connect(server.port, near)
    assert near.next() == ("opened", "")
    wait_until(lambda: len(ours()) == 2)
    client.stop()
    wait_until(lambda: not ours())


def test_its_state_shows_in_one_line() -> None:
    link = Link(METHOD, "peer:1")
    link.write(b"x")
    assert repr(link) == f"<Link {METHOD} to peer:1 <BoundedChannel 1/4096 open>>"


def test_the_other_methods_of_the_service_are_unimplemented(ends: Ends) -> None:
    port = ends.serve(Recorder()).port
    with (
        open_channel(f"127.0.0.1:{port}", SETTINGS) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(f"/{SERVICE}/Other", None, None)(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
