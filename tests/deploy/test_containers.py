"""The mesh of compose.yaml in real containers: opt-in, since it builds images for minutes.

TEST_DOCKER=1 pytest tests/deploy/test_containers.py. Needs a container engine with Compose;
`stand_in_bases.sh` makes the base images where no registry is reached. The containers run as a
user that no image knows.
"""

import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli.ports import free_ports
from sits_cli.testing_load import Load, StreamLoad
from sits_core.testing import wait_until

pytestmark = [
    pytest.mark.skipif(os.environ.get("TEST_DOCKER") != "1", reason="opt-in: TEST_DOCKER=1"),
    pytest.mark.timeout(1200),
]

ROOT = Path(__file__).parents[2]
STRANGER = "12345"
LIMIT_MB = {"topology": 250, "dispatcher": 250, "preprocess": 250, "executor": 700}
MODELS = {"echo": "identity", "brief": "sleep"}


class Compose:
    """`docker compose` on a project of its own, with free ports."""

    def __init__(self, models: Path) -> None:
        front, admin = free_ports(2)
        self.front, self.admin = f"127.0.0.1:{front}", f"127.0.0.1:{admin}"
        own = {"MODELS": str(models), "FRONT_PORT": str(front), "ADMIN_PORT": str(admin)}
        self._environment = {**os.environ, **own, "RUN_AS": STRANGER}

    def __call__(self, *arguments: str) -> str:
        command = ["docker", "compose", "-p", "sits-test", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
        return done.stdout

    def python(self, service: str, code: str) -> str:
        """What the code prints, run inside the service's container."""
        return self("exec", "-T", service, "python", "-c", code)

    def metric(self, service: str, port: int, name: str) -> float:
        code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
        lines = self.python(service, code).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def secret(self, name: str) -> str:
        return self.python("dispatcher", f"print(open('/sits/secrets/{name}').read())").strip()


def write_model(root: Path, name: str, function: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(
        f'name: "{name}" backend: "builtin" max_batch_size: 8\n'
        f'parameters {{ key: "function" value: {{ string_value: "{function}" }} }}\n'
        'parameters { key: "sleep_ms" value: { string_value: "3" } }\n'
        'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }\n'
    )


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    models = tmp_path_factory.mktemp("models")
    for name, function in MODELS.items():
        write_model(models, name, function)
    for path in (models, *models.rglob("*")):
        path.chmod(0o550 if path.is_dir() else 0o440)
    running = Compose(models)
    try:
        running("up", "--build", "-d", "--wait")
        yield running
    finally:
        running("down", "-v", "-t", "5")


def infer(client: triton.InferenceServerClient, model: str, values: np.ndarray) -> np.ndarray:
    x = triton.InferInput("X", list(values.shape), "FP32")
    x.set_data_from_numpy(values)
    return client.infer(model, [x], client_timeout=30).as_numpy("Y")


@pytest.fixture
def client(compose: Compose) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(compose.front) as opened:
        yield opened


def test_an_unmodified_client_on_the_host_gets_right_answers(client) -> None:
    values = np.arange(7, dtype=np.float32).reshape(1, 7)
    assert (infer(client, "echo", values) == values).all()


def test_containers_share_one_payload_pool(compose: Compose, client) -> None:
    """A large request: an executor has the front door's pool in its memory, and the other way
    round."""
    values = np.arange(1_250_000, dtype=np.float32).reshape(1, -1)
    before = compose.metric("preprocess", 8002, "sits_pool_allocations_total")
    assert (infer(client, "echo", values) == values).all()
    assert compose.metric("preprocess", 8002, "sits_pool_allocations_total") > before
    lent = [compose.metric(f"executor-{n}", 8021, "sits_pool_allocations_total") for n in (1, 2)]
    assert sum(lent) > 0
    maps = (
        "print(*(line.split()[-1] for line in open('/proc/1/maps') if line.endswith('.pool\\n')))"
    )
    assert "sits-sits-executor-" in compose.python("preprocess", maps)
    executors = [compose.python(f"executor-{number}", maps) for number in (1, 2)]
    assert any("sits-sits-preprocess-" in mapped for mapped in executors)
    names = "import os; print(*sorted(os.listdir('/sits/shm')))"
    seen = {compose.python(s, names) for s in ("preprocess", "executor-1", "dispatcher")}
    (listing,) = seen
    assert sum(name.endswith(".pool") for name in listing.split()) == 3


def test_models_are_loaded_and_unloaded_with_the_admin_token_only(compose: Compose, client) -> None:
    with pytest.raises(InferenceServerException, match="admin token"):
        client.unload_model("echo")
    credential = {"authorization": f"Bearer {compose.secret('admin_token')}"}
    client.unload_model("echo", headers=credential)
    assert not client.is_model_ready("echo")
    client.load_model("echo", headers=credential)
    assert client.is_model_ready("echo")


def test_the_admin_port_is_closed_without_the_token(compose: Compose) -> None:
    def status(path: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"http://{compose.admin}{path}", headers=headers).status_code

    assert status("/v1/state", compose.secret("mesh_token")) == 401
    assert status("/v1/state", compose.secret("admin_token")) == 200


def test_a_killed_executor_loses_nothing(compose: Compose) -> None:
    outcomes: Counter[str] = Counter()
    stop = threading.Event()

    def load() -> None:
        values = np.ones((1, 4), np.float32)
        with triton.InferenceServerClient(compose.front) as own:
            while not stop.is_set():
                try:
                    outcomes["ok" if (infer(own, "brief", values) == values).all() else "bad"] += 1
                except InferenceServerException as error:
                    outcomes[str(error)] += 1

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: outcomes["ok"] > 100)
        compose("kill", "executor-1")
        after = outcomes["ok"]
        wait_until(lambda: outcomes["ok"] > after + 200, 60)
        compose("up", "-d", "--wait", "executor-1")
        wait_until(
            lambda: compose.metric("executor-1", 8021, "sits_executor_batches_total") > 0, 60
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(outcomes) == {"ok"}


def test_restarts_behind_the_front_door_fail_no_request(compose: Compose) -> None:
    """One after the other, under 50 requests/s and 10 streams, which stay open."""
    with (
        Load(compose.front, clients=10, pause_s=0.2) as unary,
        StreamLoad(compose.front, clients=10, pause_s=0.5) as streams,
    ):
        for service in ("executor-1", "executor-2", "topology", "dispatcher", "redis"):
            unary.wait_for_more(100, 60)
            compose("restart", service)
            compose("up", "-d", "--wait", "--no-deps", service)
        unary.wait_for_more(100, 60)
        streams.wait_for_more(20, 60)
    assert unary.all_right, unary
    assert streams.all_right, streams
    assert streams.ended == 0


def test_services_find_each_other_again_in_any_order(compose: Compose, client) -> None:
    for order in (("redis", "dispatcher"), ("preprocess", "topology"), ("dispatcher", "redis")):
        compose("stop", "-t", "2", *order)
        compose("up", "-d", "--wait", *reversed(order))
    values = np.ones((1, 2), np.float32)
    assert (infer(client, "echo", values) == values).all()


def inspect(*arguments: str) -> list[dict]:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_container_is_locked_down(compose: Compose) -> None:
    ids = compose("ps", "-q").split()
    for container in inspect("inspect", *ids):
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert container["Config"]["User"] == f"{STRANGER}:0"
        assert not any(
            str(p["HostIp"]) != "127.0.0.1" for b in host["PortBindings"].values() for p in b
        )


@pytest.mark.parametrize("service", sorted(LIMIT_MB))
def test_images_are_small_and_hold_no_compiler(compose: Compose, service: str) -> None:
    (image,) = inspect("image", "inspect", f"sits-{service}:dev")
    assert image["Size"] < LIMIT_MB[service] * 1_000_000
    assert image["Config"]["User"] == "10001:0"
    where = "executor-1" if service == "executor" else service
    tools = "import shutil; print([t for t in ('cc','gcc','clang','ld','make') if shutil.which(t)])"
    assert compose.python(where, tools).strip() == "[]"


def test_secrets_show_in_no_process_list_or_log(compose: Compose) -> None:
    said = compose("logs") + compose("top")
    said += json.dumps(inspect("inspect", *compose("ps", "-q").split()))
    for name in ("mesh_token", "admin_token", "redis_password"):
        assert compose.secret(name) not in said
