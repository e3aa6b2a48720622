"""`sits up` runs the real services, keeps them running, and takes them down."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sits_cli import ports

pytestmark = pytest.mark.mesh

WAIT_S = 60.0
END = ""
STATUS_VARIABLES = ("SITS_PREPROCESS_BIND", "SITS_DISPATCHER_BIND", "SITS_TOPOLOGY_BIND")


CONFIG = """
backend: "builtin"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "function" value: { string_value: "identity" } }
"""


def write_model(repository: Path, config: str = CONFIG) -> None:
    (repository / "echo" / "1").mkdir(parents=True)
    (repository / "echo" / "config.pbtxt").write_text(config)


class Up:
    """A running `sits up --json` and what it reported."""

    def __init__(self, folder: Path, *options: str, config: str = CONFIG, **env: str) -> None:
        book = ports.free(1).all()
        self.binds = {name.split()[0]: address for name, address in book.items()}
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SITS_")}
        models = folder / "models"
        write_model(models, config)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sits_cli", "up", "--json", "-n", "1", "--models", str(models),
             "--log-dir", str(folder / "logs"), "--timeout", f"{WAIT_S - 10:g}", *options],
            env=clean | self.binds | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(END)

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next event that is `wanted`."""
        give_up = time.monotonic() + WAIT_S
        while True:
            line = self._lines.get(timeout=max(0.01, give_up - time.monotonic()))
            assert line != END, self.ended()
            event: dict[str, Any] = json.loads(line)
            self.events.append(event)
            if wanted(event):
                return event

    def ready(self) -> dict[str, Any]:
        services = self.wait_for(lambda event: event["event"] == "ready")["services"]
        return {service["name"]: service for service in services}

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Exit status and stderr; the remaining events are read."""
        status = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        while not self._lines.empty():
            if (line := self._lines.get()) != END:
                self.events.append(json.loads(line))
        assert self._process.stderr is not None
        return status, self._process.stderr.read()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(WAIT_S)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*options: str, **more: str) -> Up:
        started.append(Up(tmp_path, *options, **more))
        return started[-1]

    yield start
    for each in started:
        each.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_killed_service_comes_back_and_ctrl_c_stops_all_in_order(
    up: Callable[..., Up],
) -> None:
    mesh = up()
    services = mesh.ready()
    assert list(services) == ["redis", "topology", "executor-0", "dispatcher", "preprocess"]
    assert all(service["ready"] for service in services.values())

    os.kill(services["topology"]["pid"], signal.SIGKILL)
    back = mesh.wait_for(lambda e: (e["service"], e["event"]) == ("topology", "started"))
    os.kill(services["redis"]["pid"], signal.SIGKILL)
    redis = mesh.wait_for(lambda e: (e["service"], e["event"]) == ("redis", "started"))

    mesh.signal(signal.SIGINT)
    assert mesh.ended() == (0, "")
    stopped = [e["service"] for e in mesh.events if e["event"] == "stopped"]
    assert stopped == ["preprocess", "dispatcher", "executor-0", "topology", "redis"]
    pids = [back["pid"], redis["pid"], *(s["pid"] for s in services.values())]
    assert all(map(gone, pids))


def test_without_redis_the_services_find_each_other(
    up: Callable[..., Up], sits: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = up("--no-redis", SITS_REDIS_URL="redis://127.0.0.1:1")
    assert "redis" not in mesh.ready()
    for name in STATUS_VARIABLES:
        monkeypatch.setenv(name, mesh.binds[name])
    outcome = sits("status", "--json")
    status = json.loads(outcome.out)
    assert outcome.status == 0
    assert status["redis"] == "not configured"
    assert [s["role"] for s in status["services"]] == [
        "preprocess", "dispatcher", "executor", "topology",
    ]  # fmt: skip
    mesh.signal(signal.SIGTERM)
    assert mesh.ended()[0] == 0


def test_a_setting_that_a_service_cannot_do_ends_it_with_its_own_words(
    up: Callable[..., Up],
) -> None:
    mesh = up(SITS_CPUS="4000")
    status, said = mesh.ended()
    assert status == 1
    assert "ended with status 2, its log ends with" in said
    assert "SITS_CPUS=4000" in said
    assert "all of it: " in said


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SITS_TOPOLOGY_PERIOD_S", "never", "SITS_TOPOLOGY_PERIOD_S: "),
        ("SITS_CPUS", "all", "expected processors such as 0-3,8, got 'all'"),
        ("SITS_REDIS_URL", "redis://127.0.0.1:1", "127.0.0.1:1"),
    ],
)
def test_what_cannot_work_starts_nothing(
    up: Callable[..., Up], name: str, value: str, words: str
) -> None:
    mesh = up(**{name: value})
    status, said = mesh.ended()
    assert status == 1
    assert words in said
    assert mesh.events == []


def test_people_are_told_when_it_stops_and_when_a_service_was_killed(tmp_path: Path) -> None:
    binds = {name.split()[0]: address for name, address in ports.free(1).all().items()}
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SITS_")}
    write_model(tmp_path / "models")
    command = [sys.executable, "-m", "sits_cli", "up", "-n", "1"]
    command += ["--models", str(tmp_path / "models"), "--log-dir", str(tmp_path / "logs")]
    with subprocess.Popen(command, env=clean | binds, stdout=subprocess.PIPE, text=True) as mesh:
        assert mesh.stdout is not None
        lines = iter(mesh.stdout.readline, "")
        redis = next(line.split() for line in lines if line.startswith("redis"))
        log = tmp_path / "logs" / "redis.log"
        assert redis[-1] == str(log)
        assert log.is_file()
        os.kill(int(redis[-2]), signal.SIGKILL)
        assert f"redis ended (killed by SIGKILL); log: {log}\n" in lines
        mesh.send_signal(signal.SIGINT)
        assert [*lines][-2:] == ["stopping, a second Ctrl-C kills\n", "stopped\n"]
    assert mesh.returncode == 0


def test_a_model_that_cannot_be_served_ends_it_with_the_reason(up: Callable[..., Up]) -> None:
    mesh = up(config=CONFIG.replace("identity", "no_such_function"))
    status, said = mesh.ended()
    assert status == 1
    assert "model echo version 1 cannot be served: " in said


def test_executors_that_load_nothing_yet_are_no_failure(up: Callable[..., Up]) -> None:
    mesh = up(SITS_EXECUTOR_LOAD="none")
    assert all(service["ready"] for service in mesh.ready().values())


def test_it_takes_its_services_with_it_when_it_is_killed(up: Callable[..., Up]) -> None:
    mesh = up()
    pids = [service["pid"] for service in mesh.ready().values()]
    mesh.signal(signal.SIGKILL)
    mesh.ended()
    give_up = time.monotonic() + WAIT_S
    while not all(map(dead, pids)):
        assert time.monotonic() < give_up
        time.sleep(0.02)


def dead(pid: int) -> bool:
    """Orphans may stay as zombies where nobody collects them."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
