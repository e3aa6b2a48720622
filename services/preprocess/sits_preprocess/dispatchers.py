"""Connections to the configured dispatchers: a link for requests, a channel for control."""

from collections.abc import Callable, Sequence

import grpc

from sits_channel.link import LinkClient, LinkListener
from sits_core.errors import Unavailable
from sits_protos.v1.control_pb2_grpc import ControlStub

LINK = "/sits.v1.Dispatch/Link"


class Dispatchers:
    """Keeps a link to each address open from `start` to `stop`."""

    def __init__(
        self,
        addresses: Sequence[str],
        listener: LinkListener,
        open_channel: Callable[[str], grpc.Channel],
        metadata: tuple[tuple[str, str], ...],
    ) -> None:
        self._clients = [
            LinkClient(address, LINK, listener, open_channel, metadata) for address in addresses
        ]
        self._open_channel = open_channel
        self._channels: dict[str, grpc.Channel] = {}

    def start(self) -> None:
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        for client in self._clients:
            client.stop()
        for channel in self._channels.values():
            channel.close()

    def control(self) -> ControlStub:
        """Control of a connected dispatcher, served beside its links. Raises `Unavailable`."""
        for client in self._clients:
            if client.link is not None:
                return ControlStub(self._channel(client.address))
        raise Unavailable("no dispatcher is connected", reason="NO_DISPATCHER")

    def _channel(self, address: str) -> grpc.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels.setdefault(address, self._open_channel(address))
        return channel

    def __repr__(self) -> str:
        linked = sum(client.link is not None for client in self._clients)
        return f"<Dispatchers {linked}/{len(self._clients)} linked>"


def split_addresses(text: str) -> list[str]:
    return [address.strip() for address in text.split(",") if address.strip()]
