"""Names of dispatchers stand for all their addresses, and are looked up again and again."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest
import structlog

from sits_channel.link import Link, link_handler
from sits_core.errors import Unavailable
from sits_core.rpc import Server, open_channel
from sits_core.settings import Settings
from sits_core.testing import wait_until
from sits_preprocess.dispatchers import Dispatchers, addresses_of
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server

SETTINGS = Settings()
NAME = "dispatcher.example:8010"


class Silent:
    """A listener that remembers which links are open, by peer."""

    def __init__(self) -> None:
        self.open: list[str] = []

    def opened(self, link: Link) -> None:
        self.open.append(link.peer)

    def received(self, link: Link, message: bytes) -> None:
        pass

    def closed(self, link: Link, reason: str) -> None:
        self.open.remove(link.peer)


class State(ControlServicer):
    def GetState(self, request, context):
        return pb.GetStateResponse(strategy="here")


@pytest.fixture
def start_dispatcher() -> Iterator[Callable[[], tuple[Server, str]]]:
    with ExitStack() as servers:

        def start() -> tuple[Server, str]:
            server = Server("127.0.0.1:0", SETTINGS)
            handler = link_handler("sits.v1.Dispatch", Silent(), lambda: b"")
            server.add_handler(handler, "sits.v1.Dispatch")
            server.add(add_ControlServicer_to_server, State(), "sits.v1.Control")
            servers.enter_context(server)
            return server, f"127.0.0.1:{server.port}"

        yield start


class Names:
    """A name server: what `found` holds, or an error."""

    def __init__(self, *found: str) -> None:
        self.found: set[str] | None = set(found)

    def __call__(self, name: str) -> set[str]:
        assert name == NAME
        if self.found is None:
            raise OSError("no name server")
        return self.found


@pytest.fixture
def front() -> Iterator[Callable[[Names], tuple[Dispatchers, Silent]]]:
    with ExitStack() as running:

        def start(names: Names) -> tuple[Dispatchers, Silent]:
            listener = Silent()
            channel = partial(open_channel, settings=SETTINGS)
            dispatchers = Dispatchers([NAME], listener, channel, (), look_up=names)
            running.callback(dispatchers.stop)
            dispatchers.refresh()
            return dispatchers, listener

        yield start


def test_every_address_of_a_name_is_linked(start_dispatcher, front) -> None:
    (_, one), (_, two) = start_dispatcher(), start_dispatcher()
    _, listener = front(Names(one, two))
    wait_until(lambda: sorted(listener.open) == sorted([one, two]))


def test_a_dispatcher_that_comes_is_linked_and_one_that_went_is_forgotten(
    start_dispatcher, front
) -> None:
    (first, one), (_, two) = start_dispatcher(), start_dispatcher()
    names = Names(one)
    dispatchers, listener = front(names)
    wait_until(lambda: listener.open == [one])
    names.found = {one, two}
    dispatchers.refresh()
    wait_until(lambda: sorted(listener.open) == sorted([one, two]))
    first.stop(0)
    names.found = {two}
    wait_until(lambda: listener.open == [two])
    dispatchers.refresh()
    assert repr(dispatchers) == "<Dispatchers 1/1 linked>"


def test_an_address_with_a_link_stays_when_its_name_forgets_it(start_dispatcher, front) -> None:
    _, one = start_dispatcher()
    names = Names(one)
    dispatchers, listener = front(names)
    wait_until(lambda: listener.open == [one])
    names.found = set()
    dispatchers.refresh()
    assert repr(dispatchers) == "<Dispatchers 1/1 linked>"


def test_what_was_known_stays_in_force_without_a_name_server(start_dispatcher, front) -> None:
    server, one = start_dispatcher()
    names = Names(one)
    dispatchers, listener = front(names)
    wait_until(lambda: listener.open == [one])
    names.found = None
    server.stop(0)
    wait_until(lambda: listener.open == [])
    dispatchers.refresh()
    assert repr(dispatchers) == "<Dispatchers 0/1 linked>"


def test_a_name_that_stands_for_nothing_is_named_once_each_time_it_goes(
    start_dispatcher, front
) -> None:
    _, one = start_dispatcher()
    names = Names(one)
    with structlog.testing.capture_logs() as logs:
        dispatchers, _ = front(names)
        for found in (None, None, {one}, None):
            names.found = found
            dispatchers.refresh()
    warned = [line for line in logs if line["event"] == "dispatchers.unknown"]
    assert [(line["name"], line["log_level"]) for line in warned] == [(NAME, "warning")] * 2


def test_nothing_is_linked_after_the_stop(start_dispatcher, front) -> None:
    _, one = start_dispatcher()
    dispatchers, listener = front(Names())
    dispatchers.stop()
    dispatchers._look_up.found = {one}
    dispatchers.refresh()
    assert repr(dispatchers) == "<Dispatchers 0/0 linked>"
    assert listener.open == []


def test_control_is_that_of_a_linked_dispatcher(start_dispatcher, front) -> None:
    _, one = start_dispatcher()
    names = Names()
    dispatchers, listener = front(names)
    with pytest.raises(Unavailable, match="no dispatcher"), dispatchers.control():
        pass
    names.found = {one}
    dispatchers.refresh()
    wait_until(lambda: listener.open == [one])
    with dispatchers.control() as stub:
        assert stub.GetState(pb.GetStateRequest(), timeout=5).strategy == "here"


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("127.0.0.1:8010", {"127.0.0.1:8010"}),
        ("[::1]:8010", {"[::1]:8010"}),
        ("localhost:8010", {"127.0.0.1:8010"}),
    ],
)
def test_numbers_stand_for_themselves_and_one_family_is_enough(
    name: str, addresses: set[str]
) -> None:
    assert addresses_of(name) == addresses


def test_an_unknown_name_is_an_error_to_try_again_after() -> None:
    with pytest.raises(OSError, match=r"."):
        addresses_of("nobody.invalid:8010")
