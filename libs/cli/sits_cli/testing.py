"""Fakes of the services, for tests of the command."""

from dataclasses import dataclass, field

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sits_core.errors import InvalidArgument, NotFound, Unavailable
from sits_core.rpc import Server
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1 import topology_pb2
from sits_protos.v1.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from sits_protos.v1.link_pb2 import Hello, Role
from sits_protos.v1.topology_pb2_grpc import TopologyServicer, add_TopologyServicer_to_server


@dataclass
class FakeControl(ControlServicer):
    """A dispatcher's Control with state that the test chooses."""

    state: pb.GetStateResponse = field(default_factory=pb.GetStateResponse)
    service: str = "dispatcher"
    spans: list[pb.Span] = field(default_factory=list)
    explanations: list[pb.Explanation] = field(default_factory=list)
    gangs: list[pb.Gang] = field(default_factory=list)

    def ChooseGang(
        self, request: pb.ChooseGangRequest, context: grpc.ServicerContext
    ) -> pb.ChooseGangResponse:
        found = [gang for gang in self.gangs if len(gang.devices) == request.size]
        if not found:
            raise Unavailable(f"no gang of {request.size} GPUs is free", reason="NO_GANG")
        return pb.ChooseGangResponse(chosen=found[0], alternatives=found[1:])

    def GetState(
        self, request: pb.GetStateRequest, context: grpc.ServicerContext
    ) -> pb.GetStateResponse:
        return self.state

    def SetStrategy(
        self, request: pb.SetStrategyRequest, context: grpc.ServicerContext
    ) -> pb.SetStrategyResponse:
        if request.strategy not in self.state.strategies:
            known = ", ".join(self.state.strategies)
            raise InvalidArgument(f"unknown strategy {request.strategy!r}, expected {known}")
        previous, self.state.strategy = self.state.strategy, request.strategy
        return pb.SetStrategyResponse(previous=previous, current=request.strategy)

    def SetShadow(
        self, request: pb.SetShadowRequest, context: grpc.ServicerContext
    ) -> pb.SetShadowResponse:
        before = pb.ShadowReport()
        before.CopyFrom(self.state.shadow)
        self.state.shadow.CopyFrom(pb.ShadowReport(strategy=request.strategy))
        return pb.SetShadowResponse(report=before)

    def Explain(
        self, request: pb.ExplainRequest, context: grpc.ServicerContext
    ) -> pb.ExplainResponse:
        wanted = request.request_id
        found = [e for e in self.explanations if not wanted or wanted in e.request_ids]
        if wanted and not found:
            raise NotFound(f"no decision about request {wanted!r} is remembered")
        return pb.ExplainResponse(explanations=found)

    def GetSpans(
        self, request: pb.GetSpansRequest, context: grpc.ServicerContext
    ) -> pb.GetSpansResponse:
        wanted = request.trace_id
        found = [span for span in self.spans if not wanted or span.trace_id == wanted]
        return pb.GetSpansResponse(service=self.service, spans=found)


@dataclass
class FakeTopology(TopologyServicer):
    snapshot: topology_pb2.TopologySnapshot

    def Get(
        self, request: topology_pb2.GetTopologyRequest, context: grpc.ServicerContext
    ) -> topology_pb2.TopologySnapshot:
        return self.snapshot


class FakeFront(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc] # untyped
    """A front door with one model `double`: FP32 [-1, 2] → twice that."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}

    def RepositoryIndex(
        self, request: service_pb2.RepositoryIndexRequest, context: grpc.ServicerContext
    ) -> service_pb2.RepositoryIndexResponse:
        entry = service_pb2.RepositoryIndexResponse.ModelIndex
        return service_pb2.RepositoryIndexResponse(
            models=[
                entry(name="double", version="1", state="READY"),
                entry(name="broken", version="1", state="UNAVAILABLE", reason="no such file"),
            ]
        )

    def ModelMetadata(
        self, request: service_pb2.ModelMetadataRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelMetadataResponse:
        if request.name != "double":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}'")
        tensor = service_pb2.ModelMetadataResponse.TensorMetadata
        return service_pb2.ModelMetadataResponse(
            name="double",
            versions=["1"],
            inputs=[tensor(name="x", datatype="FP32", shape=[-1, 2])],
            outputs=[tensor(name="y", datatype="FP32", shape=[-1, 2])],
        )

    def ModelInfer(
        self, request: service_pb2.ModelInferRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelInferResponse:
        self.metadata = {key: str(value) for key, value in context.invocation_metadata()}
        values = 2 * np.frombuffer(request.raw_input_contents[0], np.float32)
        output = service_pb2.ModelInferResponse.InferOutputTensor
        return service_pb2.ModelInferResponse(
            model_name="double",
            model_version="1",
            outputs=[output(name="y", datatype="FP32", shape=request.inputs[0].shape)],
            raw_output_contents=[values.tobytes()],
        )


def add(server: Server, servicer: object) -> None:
    if isinstance(servicer, ControlServicer):
        server.add(add_ControlServicer_to_server, servicer, "sits.v1.Control")
    elif isinstance(servicer, TopologyServicer):
        server.add(add_TopologyServicer_to_server, servicer, "sits.v1.Topology")
    else:
        register = service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server
        server.add(register, servicer, "inference.GRPCInferenceService")


def peer(role: Role.ValueType, address: str, *, connected: bool = True) -> pb.PeerState:
    hello = Hello(role=role, id=f"p-{address}", control_address=address, device="cpu:0")
    return pb.PeerState(
        hello=hello, address=address, connected=connected, transport="grpc", batches_total=12_345
    )
