"""The model repository extension: index, load and unload, through the dispatcher's Control."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

import grpc

from sits_core.clock import Deadline
from sits_core.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    PermissionDenied,
    SitsError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    from_rpc,
)  # fmt: skip
from sits_core.rpc import token_metadata
from sits_preprocess.catalog import Catalog, Model
from sits_preprocess.metadata import check_model_name
from sits_protos.oip import grpc_service_pb2 as pb
from sits_protos.v1 import control_pb2
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import ModelState

LOAD_TIMEOUT_S = 600.0
"""Large models take minutes to load and warm up."""

ANNOUNCE_TIMEOUT_S = 5.0
"""From an executor's answer to its catalog reaching this process: milliseconds."""

INDEX_TIMEOUT_S = 5.0

POLL_S = 0.005

Request = TypeVar("Request")
Response = TypeVar("Response")
Parameters = Mapping[str, pb.ModelRepositoryParameter]

_STATES = {
    ModelState.MODEL_STATE_READY: "READY",
    ModelState.MODEL_STATE_LOADING: "LOADING",
    ModelState.MODEL_STATE_UNLOADING: "UNLOADING",
    ModelState.MODEL_STATE_UNAVAILABLE: "UNAVAILABLE",
}


class Repository:
    """Every method may block for as long as a model takes: not for an event loop.

    `control` opens a stub to a dispatcher, or raises `Unavailable` when none is connected.
    Errors of the other side arrive with their status and text. `loaded` is told the name of
    a model before its load is said to be done.
    """

    def __init__(
        self,
        catalog: Catalog,
        control: Callable[[], AbstractContextManager[ControlStub]],
        *,
        token: str | None = None,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        announce_timeout_s: float = ANNOUNCE_TIMEOUT_S,
    ) -> None:
        self._catalog, self._control = catalog, control
        self._metadata = token_metadata(token)
        self._load_timeout_s, self._announce_timeout_s = load_timeout_s, announce_timeout_s
        self.loaded: Callable[[str], object] = lambda name: None

    def index(
        self, request: pb.RepositoryIndexRequest, deadline: Deadline | None = None
    ) -> pb.RepositoryIndexResponse:
        """All models in the repositories, loaded or not.

        While no dispatcher answers: those that executors announced last.
        """
        _check_repository_name(request.repository_name)
        ask = control_pb2.ListRepositoryRequest(ready_only=request.ready)
        try:
            limit = _within(INDEX_TIMEOUT_S, deadline)
            with self._control() as stub:
                listed = self._call(stub.ListRepository, ask, limit).models
            models = [_index(m.name, m.version, m.state, m.reason) for m in listed]
        except (Unavailable, DeadlineExceeded):
            known = self._catalog.models()
            models = [_index(m.name, m.version, m.state, m.reason) for m in known]
        return pb.RepositoryIndexResponse(
            models=[m for m in models if m.state == "READY" or not request.ready]
        )

    def load(
        self, request: pb.RepositoryModelLoadRequest, deadline: Deadline | None = None
    ) -> pb.RepositoryModelLoadResponse:
        """Load or reload on all executors; returns when requests for the model are accepted."""
        _check_repository_name(request.repository_name)
        check_model_name(request.model_name)
        config, files = _load_parameters(request.parameters)
        ask = control_pb2.LoadModelRequest(
            model=request.model_name, config_json=config, files=files
        )
        with self._control() as stub:
            self._call(stub.LoadModel, ask, _within(self._load_timeout_s, deadline))
        if not self._announced(request.model_name, True, deadline):
            raise Unavailable(
                f"model '{request.model_name}' was loaded, but no executor has announced it"
            )
        self.loaded(request.model_name)
        return pb.RepositoryModelLoadResponse()

    def unload(
        self, request: pb.RepositoryModelUnloadRequest, deadline: Deadline | None = None
    ) -> pb.RepositoryModelUnloadResponse:
        """Accept no more requests for the model; those that were accepted finish."""
        _check_repository_name(request.repository_name)
        check_model_name(request.model_name)
        ask = control_pb2.UnloadModelRequest(
            model=request.model_name, unload_dependents=_unload_dependents(request.parameters)
        )
        with self._control() as stub:
            self._call(stub.UnloadModel, ask, _within(self._load_timeout_s, deadline))
        if not self._announced(request.model_name, False, deadline):
            raise Unavailable(f"model '{request.model_name}' is still announced as ready")
        return pb.RepositoryModelUnloadResponse()

    def _call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        limit: Deadline,
    ) -> Response:
        try:
            return method(request, timeout=limit.left_s(), metadata=self._metadata)
        except grpc.RpcError as error:
            raise _explain(from_rpc(error)) from None

    def _announced(self, name: str, ready: bool, deadline: Deadline | None) -> bool:
        """Wait until the catalog says so too: a client may ask for the model at once."""
        limit = _within(self._announce_timeout_s, deadline)
        while _is_ready(self._catalog.models(), name) != ready:
            if limit.passed():
                return False
            time.sleep(POLL_S)
        return True


def _within(seconds: float, deadline: Deadline | None) -> Deadline:
    limit = Deadline.after(seconds)
    return limit if deadline is None else min(limit, deadline)


def _explain(error: SitsError) -> SitsError:
    """A refused mesh token is a fault of the deployment, not of the caller's credentials."""
    if isinstance(error, Unauthenticated | PermissionDenied):
        return Internal("the dispatcher refused this server: SITS_MESH_TOKEN must be the same")
    return error


def _is_ready(models: Iterable[Model], name: str) -> bool:
    return any(model.name == name and model.ready for model in models)


def _index(
    name: str, version: str, state: ModelState.ValueType, reason: str
) -> pb.RepositoryIndexResponse.ModelIndex:
    """A model that is in the repository but was never loaded has no state."""
    return pb.RepositoryIndexResponse.ModelIndex(
        name=name, version=version, state=_STATES.get(state, ""), reason=reason
    )


def _check_repository_name(name: str) -> None:
    if name:
        raise Unimplemented("'repository_name' specification is not supported")


def _load_parameters(parameters: Parameters) -> tuple[str, dict[str, bytes]]:
    """The `config` and the `file:` parameters; the executor checks the paths."""
    config, files = "", {}
    for key, value in parameters.items():
        if key == "config":
            config = _config(value)
        elif key.startswith("file:"):
            _check_kind(key, value, "bytes_param")
            files[key.removeprefix("file:")] = value.bytes_param
        else:
            raise InvalidArgument(f"unrecognized load parameter '{key}'.")
    if files and not config:
        raise InvalidArgument("load parameter 'config' is needed with 'file:' parameters")
    return config, files


def _config(value: pb.ModelRepositoryParameter) -> str:
    _check_kind("config", value, "string_param")
    try:
        parsed = json.loads(value.string_param)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"load parameter 'config' is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidArgument(
            f"expected load parameter 'config' to be a JSON object, got {type(parsed).__name__}"
        )
    return value.string_param


def _check_kind(key: str, value: pb.ModelRepositoryParameter, expected: str) -> None:
    if value.WhichOneof("parameter_choice") != expected:
        raise InvalidArgument(
            f"invalid value type for load parameter '{key}', expected {expected}."
        )


def _unload_dependents(parameters: Parameters) -> bool:
    for key, value in parameters.items():
        if key != "unload_dependents":
            raise InvalidArgument(f"unrecognized unload parameter '{key}'.")
        if value.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidArgument(
                "invalid value type for 'unload_dependents' parameter, expected bool_param."
            )
        return value.bool_param
    return False
