"""Connections to the configured dispatchers: a link for requests, a channel for control.

A name stands for all its addresses, as behind a headless service, and is looked up again and
again: dispatchers that come are linked to, those that went are forgotten.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import grpc
import structlog

from sits_channel.link import LinkClient, LinkListener
from sits_channel.ring_files import Rings
from sits_core.errors import Unavailable
from sits_core.keepers import Periodic
from sits_core.settings import host_of
from sits_protos.v1.control_pb2_grpc import ControlStub

LINK = "/sits.v1.Dispatch/Link"
LOOK_UP_PERIOD_S = 2.0

log = structlog.get_logger()


class OpenChannel(Protocol):
    """`server_name` is the name that was looked up, which the certificate must carry."""

    def __call__(self, address: str, *, server_name: str) -> grpc.Channel: ...


class Dispatchers:
    """Keeps a link open to every address of every name, from `start` to `stop`.

    An address whose link is up stays even when its name no longer says so: the dispatcher
    itself ends the link when it leaves, and a name server may only be out of order.
    """

    def __init__(
        self,
        names: Sequence[str],
        listener: LinkListener,
        open_channel: OpenChannel,
        metadata: tuple[tuple[str, str], ...],
        look_up: Callable[[str], set[str]] | None = None,
        rings: Rings | None = None,
    ) -> None:
        self._names, self._listener, self._metadata = names, listener, metadata
        self._open_channel, self._look_up = open_channel, look_up or addresses_of
        self._rings = rings
        self._clients: dict[str, LinkClient] = {}
        self._known: dict[str, set[str]] = {name: set() for name in names}
        self._unknown: set[str] = set()
        self._stopping = False
        self._lock = threading.Lock()
        self._keeper = Periodic(self.refresh, LOOK_UP_PERIOD_S, "dispatcher names")

    def start(self) -> None:
        self._keeper.start()

    def stop(self) -> None:
        self._keeper.stop()
        with self._lock:
            self._stopping, clients = True, list(self._clients.values())
        for client in clients:
            client.stop()

    def refresh(self) -> None:
        """Look all names up and link to what they stand for now."""
        for name in self._names:
            try:
                self._known[name] = self._look_up(name)
                self._unknown.discard(name)
            except OSError as error:  # what it last stood for stays in force
                if name not in self._unknown:
                    self._unknown.add(name)
                    log.warning("dispatchers.unknown", name=name, error=str(error))
        self._follow({a: name for name, found in self._known.items() for a in found})

    def _follow(self, wanted: dict[str, str]) -> None:
        """`wanted` maps each address to the name that it was found by."""
        with self._lock:
            if self._stopping:
                return
            for address in wanted.keys() - self._clients.keys():
                self._clients[address] = client = self._client(address, wanted[address])
                client.start()
            gone = [a for a, c in self._clients.items() if a not in wanted and c.link is None]
            dropped = [self._clients.pop(address) for address in gone]
        for client in dropped:
            client.stop()

    def _client(self, address: str, name: str) -> LinkClient:
        opened = partial(self._open_channel, server_name=host_of(name))
        return LinkClient(address, LINK, self._listener, opened, self._metadata, self._rings)

    @contextmanager
    def control(self) -> Iterator[ControlStub]:
        """Control of a connected dispatcher, served beside its links. Raises `Unavailable`.
        Such calls are rare, so each gets a channel of its own, with the certificate of now."""
        for client in self._linked():
            name = next((n for n, found in self._known.items() if client.address in found), "")
            with self._open_channel(client.address, server_name=host_of(name)) as channel:
                yield ControlStub(channel)
            return
        raise Unavailable("no dispatcher is connected", reason="NO_DISPATCHER")

    def _linked(self) -> list[LinkClient]:
        with self._lock:
            return [client for client in self._clients.values() if client.link is not None]

    def __repr__(self) -> str:
        return f"<Dispatchers {len(self._linked())}/{len(self._clients)} linked>"


def split_addresses(text: str) -> list[str]:
    return [address.strip() for address in text.split(",") if address.strip()]


def addresses_of(name: str) -> set[str]:
    """host:port → number:port for each of the host's addresses, IPv4 where it has any: both
    kinds would lead to the same dispatchers. Raises `OSError` when it cannot be looked up."""
    port = name.rpartition(":")[2]
    found = socket.getaddrinfo(host_of(name), port, type=socket.SOCK_STREAM)
    v4 = {f"{place[0]}:{port}" for family, *_, place in found if family == socket.AF_INET}
    v6 = {f"[{place[0]}]:{port}" for family, *_, place in found if family == socket.AF_INET6}
    return v4 or v6
