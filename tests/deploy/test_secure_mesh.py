"""A whole mesh with mutual TLS and tokens from files, reachable from everywhere: what gets in."""

import http.client
import json
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli import ports
from sits_cli.mesh import Mesh, Plan
from sits_core.rpc import open_channel, token_metadata
from sits_core.settings import Settings
from sits_core.testing import wait_until
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2 import DESCRIPTOR
from sits_protos.v1.control_pb2_grpc import ControlStub

pytestmark = pytest.mark.mesh

READY_S = 60
HOSTS = ("sits-mesh", "127.0.0.1")
MESH_TOKEN, ADMIN_TOKEN, API_KEY = "mesh-hunter2", "admin-hunter2", "key-hunter2"
CONTROL = DESCRIPTOR.services_by_name["Control"].methods_by_name
EXPIRED = {
    "not_before": datetime.now(UTC) - timedelta(days=2),
    "not_after": datetime.now(UTC) - timedelta(days=1),
}


@dataclass(frozen=True)
class Secure:
    """A running mesh, the CA of its certificates and where its logs are."""

    mesh: Mesh
    ca: Any
    logs: Path

    @property
    def settings(self) -> Settings:
        """Those of a service of the mesh."""
        return Settings(**self.ca.settings("own", *HOSTS))

    def grpc_ports(self) -> dict[str, str]:
        book = self.mesh.addresses
        return {
            "front": book.front,
            "front control": book.front_control,
            "dispatcher": book.dispatcher,
            "executor": book.executors[0][0],
            "topology": book.topology,
        }

    def http_ports(self) -> dict[str, str]:
        book = self.mesh.addresses
        return {
            "admin": book.admin,
            "front metrics": book.front_metrics,
            "executor metrics": book.executors[0][1],
            "topology metrics": book.topology_metrics,
        }


def everywhere(address: str) -> str:
    return "0.0.0.0:" + address.rpartition(":")[2]


def open_to_all(book: ports.AddressBook) -> dict[str, dict[str, str]]:
    """Settings that make every port of every service reachable from other machines."""
    executors = {
        f"executor-{number}": {
            "SITS_EXECUTOR_BIND": everywhere(bind),
            "SITS_EXECUTOR_METRICS_BIND": everywhere(metrics),
            "SITS_EXECUTOR_ADVERTISE": bind,
        }
        for number, (bind, metrics) in enumerate(book.executors)
    }
    return executors | {
        "topology": {
            "SITS_TOPOLOGY_BIND": everywhere(book.topology),
            "SITS_TOPOLOGY_METRICS_BIND": everywhere(book.topology_metrics),
        },
        "dispatcher": {
            "SITS_DISPATCHER_BIND": everywhere(book.dispatcher),
            "SITS_DISPATCHER_ADMIN_BIND": everywhere(book.admin),
        },
        "preprocess": {
            "SITS_PREPROCESS_BIND": everywhere(book.front),
            "SITS_PREPROCESS_METRICS_BIND": everywhere(book.front_metrics),
            "SITS_PREPROCESS_CONTROL_BIND": everywhere(book.front_control),
        },
    }


def write_model(root: Path) -> None:
    (root / "echo" / "1").mkdir(parents=True)
    (root / "echo" / "config.pbtxt").write_text(
        'name: "echo" backend: "builtin" max_batch_size: 8\n'
        'parameters { key: "function" value: { string_value: "identity" } }\n'
        'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }\n'
    )


@pytest.fixture(scope="module")
def secure(
    tmp_path_factory: pytest.TempPathFactory, make_authority: Callable[[], Any]
) -> Iterator[Secure]:
    folder, ca = tmp_path_factory.mktemp("secure"), make_authority()
    write_model(folder / "models")
    for name, token in (("mesh", MESH_TOKEN), ("admin", ADMIN_TOKEN)):
        (folder / name).write_text(token + "\n")
    (folder / "keys.json").write_text(json.dumps({API_KEY: "gold"}))
    tls = {f"SITS_{k.upper()}": v for k, v in ca.settings("own", *HOSTS).items()}
    secrets = {
        "SITS_MESH_TOKEN_FILE": str(folder / "mesh"),
        "SITS_ADMIN_TOKEN_FILE": str(folder / "admin"),
        "SITS_PREPROCESS_API_KEYS_FILE": str(folder / "keys.json"),
    }
    book = ports.free(executors=1)
    plan = Plan(
        book,
        models=folder / "models",
        log_dir=folder / "logs",
        env={**tls, **secrets, "SITS_LOG_LEVEL": "debug"},
        service_env=open_to_all(book),
    )
    with Mesh(plan) as mesh:
        mesh.wait_ready(READY_S)
        yield Secure(mesh, ca, folder / "logs")


def infer(secure: Secure, key: str = API_KEY) -> np.ndarray:
    cert, pair_key = secure.ca.issue("client")
    with triton.InferenceServerClient(
        secure.mesh.addresses.front,
        ssl=True,
        root_certificates=str(secure.ca.file),
        certificate_chain=cert,
        private_key=pair_key,
    ) as client:
        x = triton.InferInput("X", [1, 3], "FP32")
        x.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
        headers = {"authorization": f"Bearer {key}"}
        return client.infer("echo", [x], headers=headers, client_timeout=10).as_numpy("Y")


def status_of(address: str, settings: Settings, token: str | None = None) -> str:
    """The gRPC status of asking a port for its state."""
    with open_channel(address, settings) as channel:
        try:
            ControlStub(channel).GetState(
                pb.GetStateRequest(), timeout=5, metadata=token_metadata(token)
            )
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def get(address: str, context: ssl.SSLContext, path: str = "/metrics", token: str = "") -> Any:
    host, _, port = address.rpartition(":")
    with closing(
        http.client.HTTPSConnection(host, int(port), context=context, timeout=5)
    ) as connection:
        connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def https(ca_file: Path, pair: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca_file))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def test_a_request_passes_all_hops(secure: Secure) -> None:
    assert infer(secure).tolist() == [[1, 2, 3]]


def test_a_client_without_a_valid_api_key_is_refused(secure: Secure) -> None:
    with pytest.raises(InferenceServerException, match="API key"):
        infer(secure, key="another")


def test_a_caller_without_the_right_certificate_is_refused_on_every_port(
    secure: Secure, make_authority: Callable[[], Any]
) -> None:
    stranger = make_authority()
    trusting = {"tls_ca_file": str(secure.ca.file), "tls_server_name": "sits-mesh"}
    expired = dict(
        zip(
            ("tls_cert_file", "tls_key_file"),
            secure.ca.issue("expired", *HOSTS, **EXPIRED),
            strict=True,
        )
    )
    callers = {
        "plain": Settings(),
        "no certificate": Settings(**trusting),
        "another CA": Settings(**{**stranger.settings(), **trusting}),
        "expired": Settings(**trusting, **expired),
    }
    outcomes = {
        (port, who): status_of(address, settings, ADMIN_TOKEN)
        for port, address in secure.grpc_ports().items()
        for who, settings in callers.items()
    }
    assert {key: found for key, found in outcomes.items() if found != "UNAVAILABLE"} == {}


def test_http_ports_refuse_callers_without_a_certificate(secure: Secure) -> None:
    for address in secure.http_ports().values():
        assert get(address, https(secure.ca.file, secure.ca.issue("client")))[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            get(address, https(secure.ca.file))


@pytest.mark.parametrize("token", [None, "another", API_KEY])
def test_no_control_call_works_without_a_token(secure: Secure, token: str | None) -> None:
    addresses = {k: v for k, v in secure.grpc_ports().items() if k != "front"}
    for address in addresses.values():
        with open_channel(address, secure.settings) as channel:
            for name in CONTROL:
                call = channel.unary_unary(f"/sits.v1.Control/{name}", None, None)
                with pytest.raises(grpc.RpcError) as caught:
                    call(b"", timeout=5, metadata=token_metadata(token))
                assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED, name


def test_links_need_the_token_too(secure: Secure) -> None:
    book = secure.mesh.addresses
    links = ((book.dispatcher, "Dispatch"), (book.executors[0][0], "Execute"))
    for address, service in links:
        with open_channel(address, secure.settings) as channel:
            call = channel.stream_stream(f"/sits.v1.{service}/Link", None, None)
            with pytest.raises(grpc.RpcError) as caught:
                next(call(iter([b""]), timeout=5))
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_tokens_open_control(secure: Secure) -> None:
    for name, address in secure.grpc_ports().items():
        if name != "front":
            assert status_of(address, secure.settings, MESH_TOKEN) == "OK"
            assert status_of(address, secure.settings, ADMIN_TOKEN) == "OK"


def test_admin_http_needs_the_admin_token(secure: Secure) -> None:
    admin, context = secure.mesh.addresses.admin, https(secure.ca.file, secure.ca.issue("client"))
    for token in ("", MESH_TOKEN, API_KEY):
        assert get(admin, context, "/v1/state", token)[0] == 401
    assert get(admin, context, "/v1/state", ADMIN_TOKEN)[0] == 200


def test_secrets_show_nowhere(secure: Secure) -> None:
    infer(secure)
    context = https(secure.ca.file, secure.ca.issue("client"))
    seen = {f"metrics of {a}": get(a, context)[1] for a in secure.http_ports().values()}
    seen |= {str(log): log.read_text() for log in secure.logs.iterdir()}
    for pid in map(secure.mesh.pid, secure.mesh.names()):
        seen[f"process {pid}"] = Path(f"/proc/{pid}/cmdline").read_text()
        seen[f"environment of {pid}"] = Path(f"/proc/{pid}/environ").read_text()
    assert {name for name, text in seen.items() if "hunter2" in text} == set()
    assert all(seen.values())


def test_certificates_and_their_ca_are_replaced_while_running(
    secure: Secure, make_authority: Callable[[], Any]
) -> None:
    """Both CAs are trusted for a while, as operators do it. The executor starts anew after
    each step, so that every link is made again."""
    old, new = secure.ca, make_authority()
    dispatcher, front = secure.mesh.pid("dispatcher"), secure.mesh.pid("preprocess")
    before, after = old.file.read_bytes(), new.file.read_bytes()
    own = [Path(old.settings("own", *HOSTS)[f"tls_{kind}_file"]) for kind in ("key", "cert")]
    fresh = [Path(new.settings("own", *HOSTS)[f"tls_{kind}_file"]) for kind in ("key", "cert")]
    replace(old.file, before + after)
    for target, source in zip(own, fresh, strict=True):
        replace(target, source.read_bytes())
    replace(old.file, after)
    secure.mesh.kill("executor-0")
    wait_until(lambda: answers(Secure(secure.mesh, new, secure.logs)), READY_S)
    assert (secure.mesh.pid("dispatcher"), secure.mesh.pid("preprocess")) == (dispatcher, front)
    with pytest.raises(InferenceServerException):
        infer(Secure(secure.mesh, old, secure.logs))


def replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".fresh")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def answers(secure: Secure) -> bool:
    try:
        return infer(secure).tolist() == [[1, 2, 3]]
    except InferenceServerException:
        return False
