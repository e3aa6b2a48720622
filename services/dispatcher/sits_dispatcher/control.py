"""`sits.v1.Control` of the dispatcher: state, strategies, and models on all executors."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import grpc
from prometheus_client import CollectorRegistry

from sits_core.control import BaseControl
from sits_core.drain import Drain
from sits_core.errors import SitsError, Unavailable, from_rpc
from sits_core.rpc import open_channel, token_metadata
from sits_core.settings import Settings
from sits_core.tracing import Tracer
from sits_dispatcher.gangs import COLLECTIVE_BYTES, Wanted
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.messages import explanation, shadow_report
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import Hello, ModelEntry

T = TypeVar("T")

LOAD_TIMEOUT_S = 600.0
"""Loading a large model takes minutes."""
LIST_TIMEOUT_S = 10.0
DEFAULT_EXPLANATIONS, MAX_EXPLANATIONS = 10, 1000


class ExecutorControls:
    """Calls the Control service of every linked executor at once. Such calls are rare, so each
    gets a channel of its own, with the certificate of now."""

    def __init__(self, mesh: Mesh, settings: Settings) -> None:
        self._mesh, self._settings = mesh, settings
        token = settings.secret("admin_token") or settings.secret("mesh_token")
        self.metadata = token_metadata(token)

    def call(self, method: Callable[[ControlStub], T]) -> list[T]:
        """All answers. Raises the first error when any executor failed, `Unavailable`
        when there is none."""
        addresses = [m.hello.control_address for m in self._mesh.executors.members()]
        if not addresses:
            raise Unavailable("no executor is connected", reason="NO_EXECUTOR")
        with ThreadPoolExecutor(min(32, len(addresses))) as pool:
            outcomes = list(pool.map(lambda a: self._one(a, method), addresses))
        for outcome in outcomes:
            if isinstance(outcome, SitsError):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, SitsError)]

    def _one(self, address: str, method: Callable[[ControlStub], T]) -> T | SitsError:
        with open_channel(address, self._settings) as channel:
            try:
                return method(ControlStub(channel))
            except grpc.RpcError as error:
                return from_rpc(error)


class Control(BaseControl):
    """Answers for the mesh as this dispatcher sees it."""

    def __init__(
        self, hello: Hello, tracer: Tracer, drain: Drain, mesh: Mesh,
        executors: ExecutorControls, metrics: CollectorRegistry | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hello, tracer, drain, metrics)
        self._mesh, self._executors = mesh, executors

    def GetState(
        self, request: pb.GetStateRequest, context: grpc.ServicerContext
    ) -> pb.GetStateResponse:
        state = super().GetState(request, context)
        self._mesh.describe(state)
        return state

    def SetStrategy(
        self, request: pb.SetStrategyRequest, context: grpc.ServicerContext
    ) -> pb.SetStrategyResponse:
        previous = self._mesh.switch(request.strategy, request.model)
        return pb.SetStrategyResponse(previous=previous, current=request.strategy)

    def SetShadow(
        self, request: pb.SetShadowRequest, context: grpc.ServicerContext
    ) -> pb.SetShadowResponse:
        return pb.SetShadowResponse(report=shadow_report(self._mesh.set_shadow(request.strategy)))

    def Explain(
        self, request: pb.ExplainRequest, context: grpc.ServicerContext
    ) -> pb.ExplainResponse:
        limit = min(request.limit or DEFAULT_EXPLANATIONS, MAX_EXPLANATIONS)
        found = self._mesh.explain(request.request_id, limit)
        return pb.ExplainResponse(explanations=map(explanation, found))

    def ChooseGang(
        self, request: pb.ChooseGangRequest, context: grpc.ServicerContext
    ) -> pb.ChooseGangResponse:
        wanted = Wanted(
            request.size, request.host, frozenset(request.among),
            request.collective_bytes or COLLECTIVE_BYTES, request.holder,
        )  # fmt: skip
        chosen = self._mesh.choose_gang(wanted)
        return pb.ChooseGangResponse(
            chosen=pb.Gang(**chosen.gang._asdict()),
            alternatives=[pb.Gang(**gang._asdict()) for gang in chosen.alternatives],
        )

    def LoadModel(
        self, request: pb.LoadModelRequest, context: grpc.ServicerContext
    ) -> pb.LoadModelResponse:
        metadata = self._executors.metadata
        self._executors.call(
            lambda stub: stub.LoadModel(request, timeout=LOAD_TIMEOUT_S, metadata=metadata)
        )
        return pb.LoadModelResponse()

    def UnloadModel(
        self, request: pb.UnloadModelRequest, context: grpc.ServicerContext
    ) -> pb.UnloadModelResponse:
        metadata = self._executors.metadata
        self._executors.call(
            lambda stub: stub.UnloadModel(request, timeout=LOAD_TIMEOUT_S, metadata=metadata)
        )
        return pb.UnloadModelResponse()

    def ListRepository(
        self, request: pb.ListRepositoryRequest, context: grpc.ServicerContext
    ) -> pb.ListRepositoryResponse:
        """Each model of the executors' repositories once."""
        metadata = self._executors.metadata
        answers = self._executors.call(
            lambda stub: stub.ListRepository(request, timeout=LIST_TIMEOUT_S, metadata=metadata)
        )
        found: dict[tuple[str, str], ModelEntry] = {}
        for answer in answers:
            for model in answer.models:
                found.setdefault((model.name, model.version), model)
        return pb.ListRepositoryResponse(models=[found[key] for key in sorted(found)])
