"""A stand-in for a Triton server: the calls that an executor makes, over real gRPC."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import grpc
import numpy as np
from google.protobuf import text_format
from google.protobuf.message import Message

from sits_core import datatypes
from sits_executor.contract import DATATYPES
from sits_protos.oip import grpc_service_pb2 as oip
from sits_protos.oip.model_config_pb2 import ModelConfig

Key = tuple[str, str]
SERVICE = "inference.GRPCInferenceService"


class FakeTriton:
    """Multiplies what it gets by `factor`: input `x` to output `y`. Use as a context manager.

    `refuse` answers every inference with this status; `holding` makes them wait; `may_share`:
    clients may register shared memory.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.models: dict[Key, ModelConfig] = {}
        self.known: dict[Key, str] = {}
        self.refuse: grpc.StatusCode | None = None
        self.factor = 2
        self.may_share = True
        self.regions: dict[str, str] = {}
        self.inferred: list[oip.ModelInferRequest] = []
        self.loads: list[oip.RepositoryModelLoadRequest] = []
        self.go = threading.Event()
        self.go.set()
        self._server: grpc.Server | None = None

    def add(self, name: str, config: str = "", version: str = "1", *, dims: str = "2") -> None:
        """A model that is ready; `config` is the rest of its configuration."""
        tensor = f"data_type: TYPE_FP32 dims: [ {dims} ]"
        text = (
            f'name: "{name}" backend: "python" max_batch_size: 8 '
            f'input {{ name: "x" {tensor} }} output {{ name: "y" {tensor} }} {config}'
        )
        self.models[name, version] = text_format.Parse(text, ModelConfig())

    def remove(self, name: str, version: str = "1", reason: str = "unloaded") -> None:
        del self.models[name, version]
        self.known[name, version] = reason

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Anew: it knows no shared memory that was registered before."""
        self.regions.clear()
        server = grpc.server(ThreadPoolExecutor(8))
        calls: dict[str, tuple[Callable[..., Message], type[Message]]] = {
            "RepositoryIndex": (self._index, oip.RepositoryIndexRequest),
            "ModelConfig": (self._config, oip.ModelConfigRequest),
            "ModelStatistics": (self._statistics, oip.ModelStatisticsRequest),
            "ModelInfer": (self._infer, oip.ModelInferRequest),
            "RepositoryModelLoad": (self._load, oip.RepositoryModelLoadRequest),
            "RepositoryModelUnload": (self._unload, oip.RepositoryModelUnloadRequest),
            "SystemSharedMemoryRegister": (self._share, oip.SystemSharedMemoryRegisterRequest),
            "SystemSharedMemoryUnregister": (
                self._unshare, oip.SystemSharedMemoryUnregisterRequest,
            ),
        }  # fmt: skip
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (call, request) in calls.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if server.add_insecure_port(self.address) == 0:
            raise OSError(f"{self.address} is taken")
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def _index(
        self, _request: oip.RepositoryIndexRequest, _context: grpc.ServicerContext
    ) -> oip.RepositoryIndexResponse:
        index = oip.RepositoryIndexResponse()
        for name, version in self.models:
            index.models.add(name=name, version=version, state="READY")
        for (name, version), reason in self.known.items():
            if (name, version) not in self.models:
                index.models.add(name=name, version=version, state="UNAVAILABLE", reason=reason)
        return index

    def _config(
        self, request: oip.ModelConfigRequest, _context: grpc.ServicerContext
    ) -> oip.ModelConfigResponse:
        return oip.ModelConfigResponse(config=self.models[request.name, request.version])

    def _statistics(
        self, _request: oip.ModelStatisticsRequest, _context: grpc.ServicerContext
    ) -> oip.ModelStatisticsResponse:
        answer = oip.ModelStatisticsResponse()
        for name, version in self.models:
            stats = answer.model_stats.add(name=name, version=version)
            stats.inference_count = len(self.inferred)
            stats.inference_stats.queue.ns = 2_000_000_000
        return answer

    def _infer(
        self, request: oip.ModelInferRequest, context: grpc.ServicerContext
    ) -> oip.ModelInferResponse:
        self.inferred.append(request)
        self.go.wait(20)
        if self.refuse is not None:
            context.abort(self.refuse, "it would not")
        answer = oip.ModelInferResponse(model_name=request.model_name, model_version="1")
        given = iter(request.raw_input_contents)
        (tensor,) = request.inputs
        where = tensor.parameters
        if "shared_memory_region" in where:
            raw = self._shared(where["shared_memory_region"].string_param, context)
            offset = where["shared_memory_offset"].int64_param
            raw = raw[offset : offset + where["shared_memory_byte_size"].int64_param]
        else:
            raw = next(given)
        array = datatypes.decode(raw, tensor.datatype, tuple(tensor.shape))
        config = self.models[request.model_name, request.model_version]
        datatype = DATATYPES[config.output[0].data_type]
        answer.outputs.add(name="y", datatype=datatype, shape=tensor.shape)
        out = array if self.factor == 1 or array.dtype == object else array * self.factor
        answer.raw_output_contents.append(datatypes.encode(np.asarray(out)))
        return answer

    def _shared(self, region: str, context: grpc.ServicerContext) -> bytes:
        if region not in self.regions:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"Unable to find shared memory region: {region}"
            )
        return Path("/dev/shm", self.regions[region].strip("/")).read_bytes()  # noqa: S108 - its place

    def _load(
        self, request: oip.RepositoryModelLoadRequest, context: grpc.ServicerContext
    ) -> oip.RepositoryModelLoadResponse:
        self.loads.append(request)
        if request.model_name.startswith("no"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no such model {request.model_name}")
        self.add(request.model_name)
        return oip.RepositoryModelLoadResponse()

    def _unload(
        self, request: oip.RepositoryModelUnloadRequest, _context: grpc.ServicerContext
    ) -> oip.RepositoryModelUnloadResponse:
        self.remove(request.model_name)
        return oip.RepositoryModelUnloadResponse()

    def _share(
        self, request: oip.SystemSharedMemoryRegisterRequest, context: grpc.ServicerContext
    ) -> oip.SystemSharedMemoryRegisterResponse:
        if not self.may_share:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "client shared memory is off")
        self.regions[request.name] = request.key
        return oip.SystemSharedMemoryRegisterResponse()

    def _unshare(
        self, request: oip.SystemSharedMemoryUnregisterRequest, _context: grpc.ServicerContext
    ) -> oip.SystemSharedMemoryUnregisterResponse:
        self.regions.pop(request.name, None)
        return oip.SystemSharedMemoryUnregisterResponse()
