"""`sits.v1.Control` of the executor: state, models, drain."""

import threading
from concurrent.futures import Future
from typing import Final

import grpc
from prometheus_client import CollectorRegistry

from sits_core.control import BaseControl
from sits_core.drain import Drain
from sits_core.errors import DeadlineExceeded, SitsError
from sits_core.keepers import LeaseKeeper
from sits_executor.executor import Executor
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.link_pb2 import ModelState

_LONGEST_WAIT_S: Final = 86_400.0


class Control(BaseControl):
    """Load and unload return when they are done, or with the reason why they failed.

    `loaded` is set once the models of the start have loaded; `lease` None = no Redis.
    """

    def __init__(
        self,
        executor: Executor,
        drain: Drain,
        loaded: threading.Event,
        lease: LeaseKeeper | None,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        super().__init__(executor.identity.hello(), executor.tracer, drain, metrics)
        self._executor, self._manager = executor, executor.manager
        self._draining, self._loaded, self._lease = drain, loaded, lease

    def GetState(
        self, request: pb.GetStateRequest, context: grpc.ServicerContext
    ) -> pb.GetStateResponse:
        state = super().GetState(request, context)
        state.self.draining = self._draining.is_set()
        state.ready = state.ready and self._loaded.is_set() and self._executor.up
        state.models.extend(self._executor.catalog.entries())
        state.peers.extend(self._executor.listener.peers())
        state.redis_configured = self._lease is not None
        state.redis_connected = self._lease is not None and self._lease.connected
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
        future = self._manager.unload(request.model, with_steps=request.unload_dependents)
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
