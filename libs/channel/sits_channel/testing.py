"""Links without a network, for tests."""

import threading
from typing import Self

from sits_channel.link import Link, LinkListener


class Loopback:
    """The two ends of one link, joined in memory, each with its listener.

    `deliver()` moves what was written, on the calling thread, until nothing is left. As a
    context manager, one reader thread for each end does so in the background instead.

        loop = Loopback(client_listener, server_listener)
        loop.open()
        loop.client.write(message)   # what client code does
        loop.deliver()               # server_listener.received(loop.server, message)
    """

    def __init__(self, client: LinkListener, server: LinkListener) -> None:
        self.client, self.server = Link("loopback", "server"), Link("loopback", "client")
        self._listeners = {self.client: client, self.server: server}
        self._threads: list[threading.Thread] = []
        self._closing = threading.Lock()
        for end in self._listeners:
            end._on_close = self.close

    def open(self) -> None:
        """Tell both listeners, the server first, as over the network."""
        for end in (self.server, self.client):
            self._listeners[end].opened(end)

    def deliver(self) -> int:
        """How many messages were moved, answers to them included."""
        moved = 0
        while len(self.client._outgoing) or len(self.server._outgoing):
            for writer, reader in self._directions():
                if len(writer._outgoing) and (message := writer._outgoing.read()) is not None:
                    self._listeners[reader].received(reader, message)
                    moved += 1
        return moved

    def close(self, reason: str = "closed by the peer") -> None:
        """Both ends are closed, unread messages are lost, both listeners hear of it once.

        Closing either link does the same."""
        if not self._closing.acquire(blocking=False):
            return
        for end in self._listeners:
            end._outgoing.close(discard=True)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5.0)
        for end, listener in self._listeners.items():
            listener.closed(end, reason)

    def _directions(self) -> tuple[tuple[Link, Link], tuple[Link, Link]]:
        return (self.client, self.server), (self.server, self.client)

    def _pump(self, writer: Link, reader: Link) -> None:
        while (message := writer._outgoing.read()) is not None:
            self._listeners[reader].received(reader, message)

    def __enter__(self) -> Self:
        self.open()
        for directions in self._directions():
            thread = threading.Thread(target=self._pump, args=directions, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
