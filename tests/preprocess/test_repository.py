"""Rules of the model repository extension, against a dispatcher's Control over real gRPC."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext

import grpc
import pytest

from sits_core.clock import Deadline
from sits_core.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    SitsError,
    Unavailable,
    Unimplemented,
)
from sits_core.rpc import Server
from sits_core.settings import Settings
from sits_preprocess.repository import Repository
from sits_preprocess.testing import FakeCatalog, make_model
from sits_protos.oip import grpc_service_pb2 as pb
from sits_protos.v1 import control_pb2
from sits_protos.v1.control_pb2_grpc import (
    ControlServicer,
    ControlStub,
    add_ControlServicer_to_server,
)
from sits_protos.v1.link_pb2 import ModelEntry, ModelState

TOKEN = "mesh-token"  # noqa: S105 - not a secret


class FakeControl(ControlServicer):
    """A dispatcher: remembers what it was asked, announces, or fails with `error`."""

    def __init__(self, catalog: FakeCatalog) -> None:
        self._catalog = catalog
        self.asked: list[object] = []
        self.error: SitsError | None = None
        self.announces = True
        self.listed: list[ModelEntry] = []
        self.hold = threading.Event()
        self.hold.set()

    def LoadModel(self, request, context):  # type: ignore[no-untyped-def]
        self._take(request)
        if self.announces:
            self._catalog.known = [make_model(request.model)]
        return control_pb2.LoadModelResponse()

    def UnloadModel(self, request, context):  # type: ignore[no-untyped-def]
        self._take(request)
        if self.announces:
            self._catalog.known = []
        return control_pb2.UnloadModelResponse()

    def ListRepository(self, request, context):  # type: ignore[no-untyped-def]
        self._take(request)
        return control_pb2.ListRepositoryResponse(models=self.listed)

    def _take(self, request: object) -> None:
        self.asked.append(request)
        self.hold.wait(10)
        if self.error is not None:
            raise self.error


@pytest.fixture
def catalog() -> FakeCatalog:
    return FakeCatalog()


@pytest.fixture
def control(catalog: FakeCatalog) -> FakeControl:
    return FakeControl(catalog)


@pytest.fixture
def stub(control: FakeControl) -> Iterator[ControlStub]:
    server = Server("127.0.0.1:0", Settings(), tokens=[TOKEN])
    server.add(add_ControlServicer_to_server, control, "sits.v1.Control")
    with server, grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield ControlStub(channel)


@pytest.fixture
def repository(catalog: FakeCatalog, stub: ControlStub) -> Repository:
    return Repository(catalog, lambda: nullcontext(stub), token=TOKEN, announce_timeout_s=0.05)


def unreachable() -> ControlStub:
    raise Unavailable("no dispatcher is connected")


def load(name: str = "m", **parameters: object) -> pb.RepositoryModelLoadRequest:
    request = pb.RepositoryModelLoadRequest(model_name=name)
    for key, value in parameters.items():
        kind = {str: "string_param", bytes: "bytes_param", bool: "bool_param"}[type(value)]
        setattr(request.parameters[key], kind, value)
    return request


# Index


def test_the_index_lists_every_model_with_its_state(
    repository: Repository, control: FakeControl
) -> None:
    control.listed = [
        ModelEntry(name="a", version="1", state=ModelState.MODEL_STATE_READY),
        ModelEntry(name="b", version="2", state=ModelState.MODEL_STATE_LOADING),
        ModelEntry(name="c", version="3", state=ModelState.MODEL_STATE_UNLOADING),
        ModelEntry(name="d", version="4", state=ModelState.MODEL_STATE_UNAVAILABLE, reason="bad"),
        ModelEntry(name="e"),
    ]
    index = repository.index(pb.RepositoryIndexRequest())
    assert [(m.name, m.version, m.state, m.reason) for m in index.models] == [
        ("a", "1", "READY", ""),
        ("b", "2", "LOADING", ""),
        ("c", "3", "UNLOADING", ""),
        ("d", "4", "UNAVAILABLE", "bad"),
        ("e", "", "", ""),
    ]


def test_the_ready_index_lists_ready_models_only(
    repository: Repository, control: FakeControl
) -> None:
    control.listed = [
        ModelEntry(name="a", version="1", state=ModelState.MODEL_STATE_READY),
        ModelEntry(name="b", version="1", state=ModelState.MODEL_STATE_LOADING),
    ]
    index = repository.index(pb.RepositoryIndexRequest(ready=True))
    assert [m.name for m in index.models] == ["a"]
    assert control.asked == [control_pb2.ListRepositoryRequest(ready_only=True)]


def test_without_a_dispatcher_the_index_is_what_was_announced_last(catalog: FakeCatalog) -> None:
    catalog.known = [make_model("m"), make_model("n", state=ModelState.MODEL_STATE_LOADING)]
    repository = Repository(catalog, unreachable)
    everything = repository.index(pb.RepositoryIndexRequest())
    ready = repository.index(pb.RepositoryIndexRequest(ready=True))
    assert [(m.name, m.state) for m in everything.models] == [("m", "READY"), ("n", "LOADING")]
    assert [m.name for m in ready.models] == ["m"]


def test_a_repository_name_is_not_supported(repository: Repository, control: FakeControl) -> None:
    calls = (
        lambda: repository.index(pb.RepositoryIndexRequest(repository_name="r")),
        lambda: repository.load(pb.RepositoryModelLoadRequest(repository_name="r")),
        lambda: repository.unload(pb.RepositoryModelUnloadRequest(repository_name="r")),
    )
    for call in calls:
        with pytest.raises(Unimplemented, match="'repository_name' specification"):
            call()
    assert control.asked == []


# Load


def test_a_load_carries_config_and_files(repository: Repository, control: FakeControl) -> None:
    repository.load(load("m", config='{"name": "m"}', **{"file:1/model.onnx": b"\x00\xff"}))
    assert control.asked == [
        control_pb2.LoadModelRequest(
            model="m", config_json='{"name": "m"}', files={"1/model.onnx": b"\x00\xff"}
        )
    ]


def test_a_load_returns_when_the_model_is_announced(
    repository: Repository, catalog: FakeCatalog
) -> None:
    repository.load(load("m"))
    assert catalog.find("m", "").ready


def test_a_load_that_nobody_announces_is_unavailable(
    repository: Repository, control: FakeControl
) -> None:
    control.announces = False
    with pytest.raises(Unavailable, match="'m' was loaded, but no executor has announced it"):
        repository.load(load("m"))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (load("m", color="red"), "unrecognized load parameter 'color'"),
        (load("m", config=b"{}"), "load parameter 'config', expected string_param"),
        (load("m", config="{}", **{"file:x": "x"}), "'file:x', expected bytes_param"),
        (load("m", config="{"), "load parameter 'config' is not JSON"),
        (load("m", config="[" * 200_000), "load parameter 'config' is not JSON"),
        (load("m", config="[]"), "to be a JSON object, got list"),
        (load("m", **{"file:x": b"x"}), "'config' is needed with 'file:' parameters"),
        (load(""), "expected a model name"),
        (load("a\0b"), "model name .* contains control characters"),
    ],
)
def test_a_wrong_load_is_refused_before_it_is_sent(
    repository: Repository,
    control: FakeControl,
    request_: pb.RepositoryModelLoadRequest,
    text: str,
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        repository.load(request_)
    assert control.asked == []


# Unload


@pytest.mark.parametrize("dependents", [False, True])
def test_an_unload_carries_its_parameter(
    repository: Repository, control: FakeControl, dependents: bool
) -> None:
    request = pb.RepositoryModelUnloadRequest(model_name="m")
    request.parameters["unload_dependents"].bool_param = dependents
    repository.unload(request)
    assert control.asked == [
        control_pb2.UnloadModelRequest(model="m", unload_dependents=dependents)
    ]


def test_an_unload_returns_when_requests_are_refused(
    repository: Repository, catalog: FakeCatalog
) -> None:
    catalog.known = [make_model("m")]
    repository.unload(pb.RepositoryModelUnloadRequest(model_name="m"))
    with pytest.raises(NotFound):
        catalog.find("m", "")


def test_wrong_unload_parameters_are_refused(repository: Repository, control: FakeControl) -> None:
    wrong = pb.RepositoryModelUnloadRequest(model_name="m")
    wrong.parameters["unload_dependents"].string_param = "yes"
    with pytest.raises(InvalidArgument, match="'unload_dependents' parameter, expected bool_param"):
        repository.unload(wrong)
    unknown = pb.RepositoryModelUnloadRequest(model_name="m")
    unknown.parameters["force"].bool_param = True
    with pytest.raises(InvalidArgument, match="unrecognized unload parameter 'force'"):
        repository.unload(unknown)
    assert control.asked == []


# The other side


@pytest.mark.parametrize(
    "error",
    [
        NotFound("failed to load 'm': expected a folder of that name in the model repository"),
        InvalidArgument("file path '../x' leaves the model's folder"),
        Internal("failed to load 'm': the model has no input 'x'"),
        Unimplemented("explicit load is off"),
    ],
)
def test_errors_of_the_dispatcher_arrive_intact(
    repository: Repository, control: FakeControl, error: SitsError
) -> None:
    control.error = error
    with pytest.raises(type(error)) as caught:
        repository.load(load("m"))
    assert (caught.value.status, str(caught.value)) == (error.status, str(error))


def test_no_dispatcher_is_unavailable(catalog: FakeCatalog) -> None:
    repository = Repository(catalog, unreachable)
    with pytest.raises(Unavailable, match="no dispatcher is connected"):
        repository.load(load("m"))
    with pytest.raises(Unavailable, match="no dispatcher is connected"):
        repository.unload(pb.RepositoryModelUnloadRequest(model_name="m"))


def test_a_refused_mesh_token_is_not_blamed_on_the_caller(
    catalog: FakeCatalog, stub: ControlStub
) -> None:
    repository = Repository(catalog, lambda: nullcontext(stub), token="another")  # noqa: S106
    with pytest.raises(Internal, match="SITS_MESH_TOKEN must be the same"):
        repository.load(load("m"))


def test_the_callers_deadline_ends_a_slow_load(
    repository: Repository, control: FakeControl
) -> None:
    control.hold.clear()
    with pytest.raises(DeadlineExceeded):
        repository.load(load("m"), Deadline.after(0.05))
    control.hold.set()
