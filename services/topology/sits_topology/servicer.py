"""sits.v1.Topology over gRPC, and the state of this service for Control."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from prometheus_client import CollectorRegistry

from sits_core.control import BaseControl
from sits_core.drain import Drain
from sits_core.errors import Unavailable
from sits_core.tracing import Tracer
from sits_protos.v1 import control_pb2
from sits_protos.v1 import topology_pb2 as pb
from sits_protos.v1.link_pb2 import Hello
from sits_protos.v1.topology_pb2_grpc import TopologyServicer
from sits_topology.publisher import Publisher
from sits_topology.store import SnapshotStore

MAX_WATCHERS = 256
"""Each holds a thread of the server; the rest stay free for Get, Control and health."""


class SnapshotServicer(TopologyServicer):
    """Get and Watch over the newest snapshot."""

    def __init__(self, store: SnapshotStore, max_watchers: int = MAX_WATCHERS) -> None:
        self._store, self._max_watchers = store, max_watchers
        self._lock = threading.Lock()
        self.watchers = 0

    def Get(
        self, request: pb.GetTopologyRequest, context: grpc.ServicerContext
    ) -> pb.TopologySnapshot:
        newest = self._store.newest
        if newest is None:
            raise Unavailable("no topology was read yet")
        return newest

    def Watch(
        self, request: pb.WatchTopologyRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.TopologySnapshot]:
        """The newest at once, then each new one; a slow reader misses those in between.

        gRPC asks for the next message when the last one has left, so nothing piles up here.
        Ends when the client goes (the callback wakes the wait) or the store is closed.
        """
        with self._seat(context):
            yield from self._follow(context)

    @contextmanager
    def _seat(self, context: grpc.ServicerContext) -> Iterator[None]:
        with self._lock:
            if self.watchers >= self._max_watchers:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{self._max_watchers} watchers are connected already",
                )
            self.watchers += 1
        try:
            yield
        finally:
            with self._lock:
                self.watchers -= 1

    def _follow(self, context: grpc.ServicerContext) -> Iterator[pb.TopologySnapshot]:
        gone = threading.Event()

        def leave() -> None:
            gone.set()
            self._store.wake()

        if not context.add_callback(leave):
            return
        version = 0
        while (snapshot := self._store.newer_than(version, gone.is_set)) is not None:
            version = snapshot.version
            yield snapshot
        if not gone.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the topology service is stopping")


class TopologyControl(BaseControl):
    """Adds the age of the topology and the state of Redis."""

    def __init__(
        self,
        hello: Hello,
        tracer: Tracer,
        drain: Drain,
        store: SnapshotStore,
        publisher: Publisher,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        super().__init__(hello, tracer, drain, metrics)
        self._store, self._publisher = store, publisher

    def GetState(
        self, request: control_pb2.GetStateRequest, context: grpc.ServicerContext
    ) -> control_pb2.GetStateResponse:
        state = super().GetState(request, context)
        age_s = self._store.age_s()
        state.topology_age_s = -1 if age_s is None else age_s
        state.ready = state.ready and age_s is not None
        state.redis_configured = self._publisher.redis_configured
        state.redis_connected = self._publisher.redis_connected
        return state
