"""Unknown, malformed, loading and failed models are told apart, by every call (OIP-08)."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as oip
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub as Stub

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import serves, status_of, write_model
from sits_core.testing import wait_until

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
Call = Callable[[Stub, str, str], object]


@pytest.fixture(scope="module")
def stub(mesh: Mesh) -> Iterator[Stub]:
    with grpc.insecure_channel(mesh.addresses.front) as channel:
        yield Stub(channel)


def infer(stub: Stub, name: str, version: str) -> object:
    request = oip.ModelInferRequest(model_name=name, model_version=version)
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(bytes(4))
    return stub.ModelInfer(request, timeout=TIMEOUT_S)


class StreamRefused(Exception):
    def __init__(self, answer: oip.ModelStreamInferResponse) -> None:
        self._answer = answer

    def code(self) -> grpc.StatusCode:
        name = self._answer.infer_response.parameters["sits_status"].string_param
        return grpc.StatusCode[name]

    def details(self) -> str:
        return str(self._answer.error_message)


def stream(stub: Stub, name: str, version: str) -> object:
    request = oip.ModelInferRequest(model_name=name, model_version=version)
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(bytes(4))
    (answer,) = stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S)
    if answer.error_message:
        raise StreamRefused(answer)
    return answer


def metadata(stub: Stub, name: str, version: str) -> object:
    request = oip.ModelMetadataRequest(name=name, version=version)
    return stub.ModelMetadata(request, timeout=TIMEOUT_S)


def config(stub: Stub, name: str, version: str) -> object:
    return stub.ModelConfig(oip.ModelConfigRequest(name=name, version=version), timeout=TIMEOUT_S)


def statistics(stub: Stub, name: str, version: str) -> object:
    request = oip.ModelStatisticsRequest(name=name, version=version)
    return stub.ModelStatistics(request, timeout=TIMEOUT_S)


CALLS: tuple[Call, ...] = (infer, stream, metadata, config, statistics)
every_call = pytest.mark.parametrize("call", CALLS)


def refused(call: Call, stub: Stub, name: str, version: str = "") -> tuple[grpc.StatusCode, str]:
    with pytest.raises((grpc.RpcError, StreamRefused)) as raised:
        call(stub, name, version)
    return raised.value.code(), raised.value.details()


@every_call
@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("nobody", "", NOT_FOUND),
        ("brief", "999", NOT_FOUND),
        ("brief", "abc", INVALID),
        ("brief", "1p0", INVALID),
        ("brief", "-1", INVALID),
        ("a/b", "", NOT_FOUND),
        ("../brief", "", NOT_FOUND),
        ("brief\0", "", INVALID),
    ],
)
def test_wrong_names_and_versions(
    stub: Stub, call: Call, name: str, version: str, status: grpc.StatusCode
) -> None:
    code, text = refused(call, stub, name, version)
    assert code == status, text


@pytest.mark.parametrize("call", [infer, stream, metadata, config])
def test_an_empty_name_is_refused(stub: Stub, call: Call) -> None:
    """Of statistics it means all models."""
    assert refused(call, stub, "")[0] in (INVALID, NOT_FOUND)


@every_call
def test_an_empty_version_is_the_newest(stub: Stub, call: Call) -> None:
    assert call(stub, "brief", "") is not None
    assert call(stub, "brief", "1") is not None


def failed(stub: Stub) -> bool:
    time.sleep(0.1)
    return "no_such_function" in refused(infer, stub, "broken")[1]


@pytest.fixture(scope="module")
def broken(mesh: Mesh, models: Path) -> Iterator[str]:
    """A model whose load failed on all executors. One of them may tell the front door so before
    another one has told that it is loading: it is over when nothing changes for a second."""
    write_model(models, "broken", "no_such_function")
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        status_of(lambda: client.load_model("broken"))
        with grpc.insecure_channel(mesh.addresses.front) as channel:
            stub = Stub(channel)
            wait_until(lambda: all(failed(stub) for _ in range(10)), TIMEOUT_S)
        yield "broken"
        client.unload_model("broken")
    shutil.rmtree(models / "broken")


@every_call
def test_a_failed_model_is_unavailable_and_says_why(stub: Stub, broken: str, call: Call) -> None:
    code, text = refused(call, stub, broken)
    assert code == UNAVAILABLE
    assert "no_such_function" in text


def test_a_failed_model_shows_in_the_index_and_is_not_ready(
    client: triton.InferenceServerClient, broken: str
) -> None:
    index = {m.name: m for m in client.get_model_repository_index().models}
    assert index[broken].state == "UNAVAILABLE"
    assert "no_such_function" in index[broken].reason
    assert not client.is_model_ready(broken)
    assert client.is_server_ready()


def test_a_loading_model_is_unavailable_until_it_is_ready(
    mesh: Mesh, models: Path, stub: Stub, client: triton.InferenceServerClient
) -> None:
    """It takes long: its warm-up sleeps two seconds."""
    warm_up = (
        'model_warmup { name: "w" count: 20 inputs { key: "X" value: '
        "{ data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } }"
    )
    write_model(models, "loads_long", "sleep", more=warm_up, sleep_ms=100)
    loading = threading.Thread(target=client.load_model, args=("loads_long",))
    loading.start()

    def states() -> set[str]:
        found = client.get_model_repository_index().models
        return {m.state for m in found if m.name == "loads_long"}

    wait_until(lambda: states() == {"LOADING"}, what="loading")
    told = [refused(call, stub, "loads_long") for call in CALLS]
    assert {code for code, _ in told} == {UNAVAILABLE}
    assert all("LOADING" in text.upper() for _, text in told), told
    loading.join(TIMEOUT_S)
    assert serves(mesh, "loads_long")
    for call in CALLS:
        assert call(stub, "loads_long", "") is not None
    client.unload_model("loads_long")
    assert {refused(call, stub, "loads_long")[0] for call in CALLS} <= {UNAVAILABLE, NOT_FOUND}
    shutil.rmtree(models / "loads_long")
