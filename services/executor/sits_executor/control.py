"""`sits.v1.Control` of the executor: state, models, drain."""

import threading
from concurrent.futures import Future
from typing import Final

import grpc

from sits_core.control import BaseControl
from sits_core.errors import DeadlineExceeded, SitsError
from sits_core.tracing import Tracer
from sits_executor.repository.catalog import Catalog
from sits_executor.repository.manager import Manager
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.link_pb2 import Hello, ModelState

_LONGEST_WAIT_S: Final = 86_400.0


class Control(BaseControl):
    """Load and unload return when they are done, or with the reason why they failed."""

    def __init__(
        self,
        hello: Hello,
        tracer: Tracer,
        drain: threading.Event,
        catalog: Catalog,
        manager: Manager,
        loaded: threading.Event,
    ) -> None:
        super().__init__(hello, tracer, drain)
        self._catalog, self._manager = catalog, manager
        self._draining, self._loaded = drain, loaded

    def GetState(
        self, request: pb.GetStateRequest, context: grpc.ServicerContext
    ) -> pb.GetStateResponse:
        state = super().GetState(request, context)
        state.self.draining = self._draining.is_set()
        state.ready = state.ready and self._loaded.is_set()
        state.models.extend(self._catalog.entries())
        return state

    def LoadModel(
        self, request: pb.LoadModelRequest, context: grpc.ServicerContext
    ) -> pb.LoadModelResponse:
        future = self._manager.load(request.model, request.config_json, request.files)
        _wait(future, context, f"model '{request.model}' is still loading")
        return pb.LoadModelResponse()

    def UnloadModel(
        self, request: pb.UnloadModelRequest, context: grpc.ServicerContext
    ) -> pb.UnloadModelResponse:
        future = self._manager.unload(request.model)
        _wait(future, context, f"model '{request.model}' is still being unloaded")
        return pb.UnloadModelResponse()

    def ListRepository(
        self, request: pb.ListRepositoryRequest, context: grpc.ServicerContext
    ) -> pb.ListRepositoryResponse:
        ready = ModelState.MODEL_STATE_READY
        models = [
            entry
            for entry in self._manager.listing()
            if entry.state == ready or not request.ready_only
        ]
        return pb.ListRepositoryResponse(models=models)


def _wait(future: "Future[None]", context: grpc.ServicerContext, late: str) -> None:
    """The outcome of `future`, or `DeadlineExceeded` when the caller's time is up first."""
    left_s = context.time_remaining()
    timeout_s = _LONGEST_WAIT_S if left_s is None else min(left_s, _LONGEST_WAIT_S)
    try:
        future.result(timeout_s)
    except SitsError:
        raise
    except TimeoutError:
        raise DeadlineExceeded(late) from None
