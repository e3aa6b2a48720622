"""Asks other services over their `Control`."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import grpc

from sits_core.rpc import open_channel, token_metadata
from sits_core.settings import Settings
from sits_protos.v1.control_pb2_grpc import ControlStub

T = TypeVar("T")

TIMEOUT_S = 0.8
"""Whoever looks at the page gets the figures of the others after this."""


class _Peer(NamedTuple):
    channel: grpc.Channel
    stub: ControlStub


class Peers:
    """Keeps a channel to each service that it was asked about last, for as long as it works:
    a new one is opened with the certificate of then. Not thread-safe: its owner holds a lock.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        token = settings.secret("mesh_token") or settings.secret("admin_token")
        self.metadata = token_metadata(token)
        self._peers: dict[str, _Peer] = {}

    def ask(
        self, addresses: Iterable[str], call: Callable[[ControlStub], "grpc.CallFuture[T]"]
    ) -> dict[str, T]:
        """Answers by address, asked for at the same time; the silent are missing."""
        wanted = dict.fromkeys(addresses)
        for address in self._peers.keys() - wanted.keys():
            self._close(address)
        calls = {address: call(self._stub(address)) for address in wanted}
        answers = {}
        for address, pending in calls.items():
            try:
                answers[address] = pending.result()
            except grpc.RpcError:
                self._close(address)
        return answers

    def _stub(self, address: str) -> ControlStub:
        if address not in self._peers:
            channel = open_channel(address, self._settings)
            self._peers[address] = _Peer(channel, ControlStub(channel))
        return self._peers[address].stub

    def _close(self, address: str) -> None:
        self._peers.pop(address).channel.close()
