"""Control calls and internal ports are closed to those who may not use them (SEC-01)."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_reflection.v1alpha import reflection_pb2 as reflection
from tritonclient.grpc import service_pb2 as oip
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub as Stub

from sits_cli.mesh import Mesh
from sits_cli.ports import free_ports
from sits_cli.supervisor import EXIT_WRONG_SETTING
from sits_cli.testing_mesh import metric, pid_of, plan, running, serves, tensor
from sits_protos.v1 import control_pb2 as control
from sits_protos.v1.control_pb2_grpc import ControlStub

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
MESH, ADMIN, KEY = "mesh-secret", "admin-secret", "client-key"
MODEL = "brief"
CLOSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


def bearer(secret: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {secret}")]


@pytest.fixture(scope="module")
def guarded(few_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """All credentials are set."""
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys.json"
    keys.write_text(json.dumps({KEY: "gold"}))
    own = plan(
        few_models,
        folder,
        executors=1,
        env={"SITS_MESH_TOKEN": MESH, "SITS_ADMIN_TOKEN": ADMIN},
        service_env={
            "preprocess": {
                "SITS_PREPROCESS_API_KEYS_FILE": str(keys),
                "SITS_PREPROCESS_ALLOW_CLIENT_SHM": "true",
            }
        },
    )
    with running(own, MODEL, headers=dict(bearer(KEY))) as made:
        yield made


@pytest.fixture(scope="module")
def stub(guarded: Mesh) -> Iterator[Stub]:
    with grpc.insecure_channel(guarded.addresses.front) as channel:
        yield Stub(channel)


def load(model: str, **parameters: str | bytes) -> oip.RepositoryModelLoadRequest:
    request = oip.RepositoryModelLoadRequest(model_name=model)
    for key, value in parameters.items():
        if isinstance(value, bytes):
            request.parameters[key.replace("_", ":", 1)].bytes_param = value
        else:
            request.parameters[key].string_param = value
    return request


def log_settings() -> oip.LogSettingsRequest:
    request = oip.LogSettingsRequest()
    request.settings["log_verbose_level"].uint32_param = 1
    return request


def trace_settings() -> oip.TraceSettingRequest:
    request = oip.TraceSettingRequest()
    request.settings["trace_rate"].value.append("1")
    return request


CONTROL_CALLS: dict[str, Callable[[Stub, list[tuple[str, str]]], object]] = {
    "load": lambda s, m: s.RepositoryModelLoad(load(MODEL), metadata=m),
    "load unknown": lambda s, m: s.RepositoryModelLoad(load("nobody"), metadata=m),
    "load files": lambda s, m: s.RepositoryModelLoad(
        load("new", config="{}", file_1_model=b"x"), metadata=m
    ),
    "unload": lambda s, m: s.RepositoryModelUnload(
        oip.RepositoryModelUnloadRequest(model_name=MODEL), metadata=m
    ),
    "unload unknown": lambda s, m: s.RepositoryModelUnload(
        oip.RepositoryModelUnloadRequest(model_name="nobody"), metadata=m
    ),
    "log": lambda s, m: s.LogSettings(log_settings(), metadata=m),
    "trace": lambda s, m: s.TraceSetting(trace_settings(), metadata=m),
    "register": lambda s, m: s.SystemSharedMemoryRegister(
        oip.SystemSharedMemoryRegisterRequest(name="r", key="/r", byte_size=8), metadata=m
    ),
    "unregister all": lambda s, m: s.SystemSharedMemoryUnregister(
        oip.SystemSharedMemoryUnregisterRequest(), metadata=m
    ),
    "unregister all CUDA": lambda s, m: s.CudaSharedMemoryUnregister(
        oip.CudaSharedMemoryUnregisterRequest(), metadata=m
    ),
}
TOLD_APART = ("load", "load unknown", "unload", "unload unknown")


@pytest.mark.parametrize("secret", ["", KEY, MESH, "wrong"])
def test_control_calls_of_the_front_door_need_the_admin(stub: Stub, secret: str) -> None:
    """The answer is the same for models that exist and for those that do not."""
    told: dict[str, tuple[grpc.StatusCode, str]] = {}
    for name, call in CONTROL_CALLS.items():
        with pytest.raises(grpc.RpcError) as raised:
            call(stub, bearer(secret) if secret else [])
        told[name] = (raised.value.code(), raised.value.details())
    assert {code for code, _ in told.values()} <= CLOSED
    assert len({told[name] for name in TOLD_APART}) == 1


def test_nothing_is_told_about_models_without_a_key(stub: Stub) -> None:
    for call in (
        lambda: stub.RepositoryIndex(oip.RepositoryIndexRequest()),
        lambda: stub.ModelMetadata(oip.ModelMetadataRequest(name=MODEL)),
        lambda: stub.ModelStatistics(oip.ModelStatisticsRequest()),
        lambda: stub.ModelReady(oip.ModelReadyRequest(name=MODEL)),
        lambda: stub.ModelInfer(oip.ModelInferRequest(model_name=MODEL)),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            call()
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_the_admin_credential_opens_them(guarded: Mesh, stub: Stub) -> None:
    admin = bearer(ADMIN)
    stub.RepositoryModelUnload(
        oip.RepositoryModelUnloadRequest(model_name="sums"), metadata=admin, timeout=TIMEOUT_S
    )
    assert not serves(guarded, "sums", dict(bearer(KEY)))
    stub.RepositoryModelLoad(load("sums"), metadata=admin, timeout=TIMEOUT_S)
    assert serves(guarded, "sums", dict(bearer(KEY)))
    for name in ("log", "trace", "unregister all"):
        CONTROL_CALLS[name](stub, admin)


def test_a_key_opens_inference_and_names_the_tenant(guarded: Mesh) -> None:
    with triton.InferenceServerClient(guarded.addresses.front) as client:
        data = [tensor(np.ones((1, 4), np.float32))]
        client.infer(MODEL, data, headers=dict(bearer(KEY)), client_timeout=TIMEOUT_S)
    at = guarded.addresses.front_metrics
    assert metric(at, "sits_requests_total", model=MODEL, tenant="gold", outcome="OK") >= 1


def test_the_index_reveals_no_paths(guarded: Mesh, stub: Stub, few_models: Path) -> None:
    index = stub.RepositoryIndex(oip.RepositoryIndexRequest(), metadata=bearer(KEY))
    assert index.models
    assert str(few_models) not in str(index)
    assert "/" not in str(index)


def internal_ports(mesh: Mesh) -> dict[str, str]:
    book = mesh.addresses
    return {
        "dispatcher": book.dispatcher,
        "executor": book.executors[0][0],
        "topology": book.topology,
        "preprocess": book.front_control,
    }


INTERNAL_STREAMS = ("/sits.v1.Dispatch/Link", "/sits.v1.Execute/Link", "/sits.v1.Topology/Watch")
INTERNAL_CALLS = (
    "GetState", "SetStrategy", "Drain", "LoadModel", "UnloadModel", "ListRepository", "GetSpans",
)  # fmt: skip


@pytest.mark.parametrize("service", ["dispatcher", "executor", "topology", "preprocess"])
def test_ports_behind_the_front_door_take_no_strangers(guarded: Mesh, service: str) -> None:
    with grpc.insecure_channel(internal_ports(guarded)[service]) as channel:
        for secret in ([], bearer(KEY), bearer("wrong")):
            for method in INTERNAL_STREAMS:
                stream = channel.stream_stream(method, None, None)
                with pytest.raises(grpc.RpcError) as raised:
                    next(stream(iter([b""]), metadata=secret, timeout=TIMEOUT_S))
                assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
            for method in INTERNAL_CALLS:
                call = channel.unary_unary(f"/sits.v1.Control/{method}", None, None)
                with pytest.raises(grpc.RpcError) as raised:
                    call(b"", metadata=secret, timeout=TIMEOUT_S)
                assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        state = ControlStub(channel).GetState(
            control.GetStateRequest(), metadata=bearer(ADMIN), timeout=TIMEOUT_S
        )
        assert state.self.id


def test_reflection_is_off_everywhere(guarded: Mesh) -> None:
    request = reflection.ServerReflectionRequest(list_services="").SerializeToString()
    for address in (guarded.addresses.front, *internal_ports(guarded).values()):
        with grpc.insecure_channel(address) as channel:
            method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            stream = channel.stream_stream(method, None, None)
            with pytest.raises(grpc.RpcError) as raised:
                next(stream(iter([request]), metadata=bearer(ADMIN), timeout=TIMEOUT_S))
            assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def http(address: str, path: str, method: str = "GET", token: str = "") -> tuple[int, str]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://{address}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_admin_port_takes_changes_from_the_admin_only(guarded: Mesh) -> None:
    admin = guarded.addresses.admin
    for token in ("", KEY, MESH, "wrong"):
        assert http(admin, "/v1/switch?strategy=round_robin", "POST", token)[0] == 401
        assert http(admin, "/v1/state", token=token)[0] == 401
    assert http(admin, "/v1/switch?strategy=round_robin", "POST", ADMIN)[0] == 200
    assert json.loads(http(admin, "/v1/state", token=ADMIN)[1])["strategy"] == "round_robin"


def test_metrics_ports_serve_metrics_and_nothing_else(guarded: Mesh) -> None:
    book = guarded.addresses
    for address in (book.front_metrics, book.topology_metrics, book.executors[0][1]):
        for path in ("/debug", "/debug/pprof/", "/profile", "/../../etc/passwd"):
            status, text = http(address, path)
            assert status == 404 or text.startswith("# HELP"), path
    assert http(book.admin, "/debug")[0] == 404
    assert http(book.admin, "/docs")[0] == 404


def test_scripts_use_the_admin_credential_too(guarded: Mesh) -> None:
    command = [sys.executable, "-m", "sits_cli", "switch", "topo_aware", "--json"]
    options = ["--dispatcher", guarded.addresses.dispatcher]
    without = {k: v for k, v in os.environ.items() if not k.startswith("SITS_")}
    refused = subprocess.run([*command, *options], env=without, capture_output=True, check=False)
    assert refused.returncode == 1
    env = without | {"SITS_ADMIN_TOKEN": ADMIN}
    switched = subprocess.run([*command, *options], env=env, capture_output=True, check=True)
    assert json.loads(switched.stdout)["current"] == "topo_aware"


# A default install


LISTENING = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def listening_on(pid: int) -> set[str]:
    """Addresses, in hexadecimal, of the TCP ports that a process listens on."""
    links = (os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENING and row[9] in inodes}


def test_by_default_every_port_is_on_loopback(mesh: Mesh) -> None:
    for service in mesh.names():
        found = listening_on(pid_of(mesh, service))
        assert found, service
        assert found <= LOOPBACK, service


@pytest.mark.parametrize(
    ("service", "variable"),
    [
        ("dispatcher", "SITS_DISPATCHER_BIND"),
        ("executor", "SITS_EXECUTOR_BIND"),
        ("topology", "SITS_TOPOLOGY_BIND"),
        ("preprocess", "SITS_PREPROCESS_CONTROL_BIND"),
    ],
)
def test_an_internal_port_for_all_without_a_token_stops_the_start(
    service: str, variable: str, few_models: Path
) -> None:
    ports = iter(free_ports(9))
    env = {k: v for k, v in os.environ.items() if not k.startswith("SITS_")}
    env["SITS_EXECUTOR_MODEL_REPOSITORY"] = str(few_models)
    env[variable] = f"0.0.0.0:{next(ports)}"
    for name in (
        "SITS_PREPROCESS_BIND", "SITS_PREPROCESS_METRICS_BIND", "SITS_DISPATCHER_ADMIN_BIND",
        "SITS_EXECUTOR_METRICS_BIND", "SITS_TOPOLOGY_METRICS_BIND",
    ):  # fmt: skip
        env[name] = f"127.0.0.1:{next(ports)}"
    command = [sys.executable, "-m", f"sits_{service}"]
    ended = subprocess.run(command, env=env, capture_output=True, check=False, timeout=60)
    assert ended.returncode == EXIT_WRONG_SETTING, ended.stderr
    assert variable.encode() in ended.stderr
    assert b"SITS_MESH_TOKEN" in ended.stderr


def test_control_calls_of_a_front_door_for_all_are_off_without_a_token(
    few_models: Path, tmp_path: Path
) -> None:
    """Inference works; who wants control must set SITS_ADMIN_TOKEN."""
    own = plan(few_models, tmp_path, executors=1)
    front = f"0.0.0.0:{own.addresses.front.rpartition(':')[2]}"
    own = replace(own, addresses=replace(own.addresses, front=front))
    with running(own, MODEL) as mesh, grpc.insecure_channel(mesh.addresses.front) as channel:
        stub = Stub(channel)
        for name, call in CONTROL_CALLS.items():
            with pytest.raises(grpc.RpcError) as raised:
                call(stub, [])
            assert raised.value.code() in (*CLOSED, grpc.StatusCode.UNIMPLEMENTED), name
        assert serves(mesh, MODEL)
