"""The loopback behaves as a link does."""

from collections.abc import Callable

import pytest

from sits_channel.link import Link
from sits_channel.testing import Loopback


class Recorder:
    def __init__(self, answer: Callable[[bytes], bytes | None] = lambda _: None) -> None:
        self.events: list[str | bytes] = []
        self._answer = answer

    def opened(self, link: Link) -> None:
        self.events.append("opened")

    def received(self, link: Link, message: bytes) -> None:
        self.events.append(message)
        if (answer := self._answer(message)) is not None:
            link.write(answer)

    def closed(self, link: Link, reason: str) -> None:
        self.events.append(f"closed: {reason}")


def echo(message: bytes) -> bytes:
    return b"re: " + message


def test_messages_and_their_answers_are_delivered_in_order() -> None:
    client, server = Recorder(), Recorder(echo)
    loop = Loopback(client, server)
    loop.open()
    for message in (b"1", b"2"):
        assert loop.client.write(message).accepted
    assert loop.deliver() == 4
    assert client.events == ["opened", b"re: 1", b"re: 2"]
    assert server.events == ["opened", b"1", b"2"]


@pytest.mark.parametrize("side", ["client", "server"])
def test_closing_one_end_closes_both_and_tells_both_once(side: str) -> None:
    client, server = Recorder(), Recorder()
    loop = Loopback(client, server)
    loop.open()
    loop.client.write(b"lost")
    getattr(loop, side).close()
    loop.close()
    assert client.events == server.events == ["opened", "closed: closed by the peer"]
    assert loop.client.closed
    assert not loop.server.write(b"late").accepted
    assert loop.deliver() == 0


def test_as_a_context_it_delivers_by_itself() -> None:
    answered: list[bytes] = []
    client, server = Recorder(answered.append), Recorder(echo)
    with Loopback(client, server) as loop:
        loop.client.write(b"1")
        while not answered:
            pass
    assert client.events == ["opened", b"re: 1", "closed: closed by the peer"]
