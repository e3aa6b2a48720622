"""`sits.v1.Control` of the front door."""

from collections.abc import Callable

import grpc
from prometheus_client import CollectorRegistry

from sits_core.control import BaseControl
from sits_core.drain import Drain
from sits_core.tracing import Tracer
from sits_preprocess.engine import Engine
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.link_pb2 import Hello, ModelEntry


class Control(BaseControl):
    """Adds the models known here and the dispatchers linked to `GetState`."""

    def __init__(
        self,
        hello: Hello,
        tracer: Tracer,
        drain: Drain,
        engine: Engine,
        ready: Callable[[], bool],
        metrics: CollectorRegistry | None = None,
    ) -> None:
        super().__init__(hello, tracer, drain, metrics)
        self._engine, self._ready = engine, ready

    def GetState(
        self, request: pb.GetStateRequest, context: grpc.ServicerContext
    ) -> pb.GetStateResponse:
        state = super().GetState(request, context)
        state.ready = self._ready()
        models = self._engine.catalog.models()
        for link in self._engine.links():
            shared = any(link.shares_memory((model.name, model.version)) for model in models)
            state.peers.add(
                hello=Hello(id=link.process_id),
                address=link.address,
                connected=True,
                transport=link.link.way(shared_payloads=shared),
                batches_in_flight=len(link.in_flight),
            )
        for model in models:
            state.models.append(
                ModelEntry(
                    name=model.name, version=model.version, state=model.state, reason=model.reason
                )
            )
        return state
