"""The front door as a process: start, settings, drain."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, call

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_core.drain import Drain
from sits_core.testing import free_port, wait_until
from sits_preprocess import app
from sits_preprocess.app import drain
from sits_preprocess.dispatchers import split_addresses
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.workers import shifted
from sits_protos.v1 import control_pb2, control_pb2_grpc


def environment(ports: list[int], **variables: str) -> dict[str, str]:
    own = {
        "SITS_PREPROCESS_BIND": f"127.0.0.1:{ports[0]}",
        "SITS_PREPROCESS_METRICS_BIND": f"127.0.0.1:{ports[1]}",
        "SITS_PREPROCESS_CONTROL_BIND": f"127.0.0.1:{ports[2]}",
        "SITS_PREPROCESS_DISPATCHERS": f"127.0.0.1:{ports[3]}",
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SITS_", "OTEL_"))}
    return clean | own | variables


@pytest.fixture
def free_ports() -> list[int]:
    return [free_port() for _ in range(4)]


@pytest.fixture
def process(free_ports) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-W", "error", "-m", "sits_preprocess"]
    with subprocess.Popen(command, env=environment(free_ports), stderr=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_it_serves_and_says_so_until_sigterm(process, free_ports) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{free_ports[0]}")
    wait_until(lambda: is_live(client), 30)
    assert not client.is_server_ready()
    with grpc.insecure_channel(f"127.0.0.1:{free_ports[2]}") as channel:
        control = control_pb2_grpc.ControlStub(channel)
        state = control.GetState(control_pb2.GetStateRequest(), timeout=10)
    assert state.self.id.startswith("preprocess-")
    assert not state.ready
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    assert b"Traceback" not in process.stderr.read()


def test_http_2_keeps_off_the_processor_of_python(free_ports) -> None:
    everywhere = os.sched_getaffinity(0)
    first = min(everywhere)
    env = environment(free_ports, SITS_PREPROCESS_PYTHON_CPUS=str(first))
    command = [sys.executable, "-m", "sits_preprocess"]
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as started:
        client = triton.InferenceServerClient(f"127.0.0.1:{free_ports[0]}")
        wait_until(lambda: is_live(client), 30)
        client.close()
        wait_until(lambda: os.sched_getaffinity(started.pid) == {first}, 30)
        others = everywhere - {first} or everywhere
        wait_until(lambda: affinities(started.pid)["grpc-native-io"] == others, 30)
        started.kill()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two processors")
def test_a_further_process_is_not_bound_by_what_the_first_one_is(free_ports) -> None:
    """It is started by a thread of Python, and would have all its threads on that processor."""
    everywhere = os.sched_getaffinity(0)
    first = min(everywhere)
    more = {"SITS_PREPROCESS_PROCESSES": "2", "SITS_PREPROCESS_PYTHON_CPUS": str(first)}
    more |= {f"SITS_PREPROCESS_{kind}_BIND": "127.0.0.1:0" for kind in ("CONTROL", "METRICS")}
    command = [sys.executable, "-m", "sits_preprocess"]
    env = environment(free_ports) | more
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as started:
        try:
            wait_until(lambda: listeners(free_ports[0]) == 2, 60)
            (child,) = children(started.pid)
            others = everywhere - {first}
            wait_until(lambda: affinities(child).get("grpc-native-io") == others, 10, "bound so")
        finally:
            started.kill()


def affinities(process: int) -> dict[str, set[int]]:
    """By name of the thread."""
    found = {}
    for folder in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            name = (folder / "comm").read_text().strip()
            found[name] = os.sched_getaffinity(int(folder.name))
    return found


def test_http_2_goes_before_python_where_it_may(free_ports) -> None:
    env = environment(free_ports, SITS_PREPROCESS_IO_NICE="-3")
    command = [sys.executable, "-m", "sits_preprocess"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as started:
        if may_be_preferred():
            with triton.InferenceServerClient(f"127.0.0.1:{free_ports[0]}") as client:
                wait_until(lambda: is_live(client), 30)
            nices = {
                (folder / "comm").read_text().strip(): os.getpriority(
                    os.PRIO_PROCESS, int(folder.name)
                )
                for folder in Path(f"/proc/{started.pid}/task").iterdir()
            }
            assert nices.pop("grpc-native-io") == -3
            assert set(nices.values()) == {os.getpriority(os.PRIO_PROCESS, 0)}
        else:
            assert started.wait(30) != 0
            assert b"CAP_SYS_NICE" in started.stderr.read()
        started.kill()


def may_be_preferred() -> bool:
    """Whether the kernel lets our children go before others."""
    ask = "import os; os.setpriority(os.PRIO_PROCESS, 0, -3)"
    return subprocess.run([sys.executable, "-c", ask], stderr=subprocess.DEVNULL).returncode == 0


def is_live(client: triton.InferenceServerClient) -> bool:
    try:
        return client.is_server_live()
    except triton.InferenceServerException:
        return False


@pytest.fixture
def family(free_ports) -> Iterator[subprocess.Popen]:
    """Two front doors on one port; the second one's other ports are any."""
    own = {"SITS_PREPROCESS_PROCESSES": "2", "SITS_PREPROCESS_CONTROL_BIND": "127.0.0.1:0"}
    own |= {"SITS_PREPROCESS_METRICS_BIND": "127.0.0.1:0"}
    command = [sys.executable, "-W", "error", "-m", "sits_preprocess"]
    env = environment(free_ports) | own
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as started:
        wait_until(lambda: listeners(free_ports[0]) == 2, 60)
        yield started
        started.kill()


def listeners(port: int) -> int:
    """Sockets of this machine that listen on the port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted({int(child) for task in tasks for child in task.read_text().split()})


def test_several_processes_serve_one_port_and_end_together(family, free_ports) -> None:
    clients = [triton.InferenceServerClient(f"127.0.0.1:{free_ports[0]}") for _ in range(8)]
    assert all(is_live(client) for client in clients)
    for client in clients:
        client.close()
    (child,) = children(family.pid)
    family.send_signal(signal.SIGTERM)
    assert family.wait(20) == 0
    wait_until(lambda: not os.path.exists(f"/proc/{child}"), 20)  # init may be slow to reap it
    assert b"Traceback" not in family.stderr.read()


def test_a_process_that_died_is_started_again(family, free_ports) -> None:
    (child,) = children(family.pid)
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: children(family.pid) not in ([], [child]), 20)
    wait_until(lambda: listeners(free_ports[0]) == 2, 60)


def test_further_processes_end_with_the_first(family, free_ports) -> None:
    (child,) = children(family.pid)
    family.kill()
    wait_until(lambda: not os.path.exists(f"/proc/{child}"), 20)
    assert listeners(free_ports[0]) == 0


def test_the_ports_of_further_processes() -> None:
    assert shifted("127.0.0.1:8002", 2) == "127.0.0.1:8202"
    assert shifted("[::1]:8002", 1) == "[::1]:8102"
    assert shifted("127.0.0.1:0", 3) == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SITS_PREPROCESS_TRANSPORT", "carrier-pigeon"),
        ("SITS_PREPROCESS_API_KEYS_FILE", "/nowhere"),
        ("SITS_PREPROCESS_DEFAULT_TENANT", "no such"),
        ("SITS_PREPROCESS_CONTROL_BIND", "0.0.0.0:1"),
        ("SITS_PREPROCESS_BINT", "x"),
    ],
)
def test_a_wrong_setting_stops_it_with_one_line_that_names_it(
    free_ports, variable: str, value: str
) -> None:
    command = [sys.executable, "-m", "sits_preprocess"]
    env = environment(free_ports) | {variable: value}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert variable in done.stderr
    assert "Traceback" not in done.stderr


def test_draining_waits_for_accepted_requests_up_to_the_grace(served) -> None:
    served.engine.hold = True
    tensor = triton.InferInput("INPUT0", [1], "INT8")
    tensor.set_data_from_numpy(np.zeros(1, np.int8))
    done = []
    served.client().async_infer("any_INT8", [tensor], lambda result, error: done.append(error))
    served.engine.wait(lambda: bool(served.engine.taken))
    drain(served.front, 0.05)
    assert served.front.inference.open_requests == 1
    served.engine.finish_all()
    drain(served.front, 10)
    assert served.front.inference.open_requests == 0


def test_it_says_that_it_leaves_and_serves_on_before_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who looks at its health has gone elsewhere by then, and is refused nothing."""
    seen, stop = Mock(), Drain()
    seen.front.inference.open_requests = 0
    monkeypatch.setattr(app, "time", seen)
    stop.set()
    settings = PreprocessSettings(preprocess_drain_delay_s=7.0)
    app.answer_until(stop, settings, seen.front, seen.server)
    steps = (call.front.servicer.leave(), call.sleep(7.0), call.front.servicer.drain())
    assert [step for step in seen.mock_calls if step in steps] == list(steps)
    assert call.server.set_ready(False) in seen.mock_calls[: seen.mock_calls.index(steps[0])]


def test_addresses_are_a_comma_list() -> None:
    assert split_addresses(" a:1, b:2 ,,") == ["a:1", "b:2"]
