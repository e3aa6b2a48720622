"""The executor as a process, and what surrounds it: lease, settings, rules for its code."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sits_core.settings import load
from sits_core.testing import MemoryRegistry, free_port, wait_until
from sits_executor import app
from sits_executor.identity import address
from sits_executor.settings import ExecutorSettings
from sits_executor.testing import TIMEOUT_S, FakeDispatcher, batch, builtin_config, write_model
from sits_protos.v1.link_pb2 import Role

SERVICE = Path(app.__file__).parent
X = np.ones((1, 2), np.float32)


def start(tmp_path: Path, **env: str) -> "subprocess.Popen[str]":
    known = {
        "SITS_EXECUTOR_METRICS_BIND": f"127.0.0.1:{free_port()}",
        "SITS_EXECUTOR_MODEL_REPOSITORY": str(tmp_path),
        "SITS_EXECUTOR_POOL_BYTES": "65536",
        "SITS_SHM_DIR": str(tmp_path),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "sits_executor"],
        env=known | env,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_in_order(tmp_path: Path, number: signal.Signals) -> None:
    write_model(tmp_path, "m", builtin_config("identity"))
    address = f"127.0.0.1:{free_port()}"
    process = start(tmp_path, SITS_EXECUTOR_BIND=address)
    with FakeDispatcher(address) as dispatcher:
        dispatcher.wait_ready("m")
        assert not dispatcher.run(batch(1, "m", [X])).result.HasField("error")
        process.send_signal(number)
        dispatcher.wait(lambda: dispatcher.hellos[-1].draining, "draining")
        _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "executor.drained" in log
    assert not list(tmp_path.glob("sits-*")), "no shared memory is left"


def test_a_wrong_setting_ends_the_process_with_one_line(tmp_path: Path) -> None:
    process = start(tmp_path, SITS_EXECUTOR_THREADS="many")
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert "SITS_EXECUTOR_THREADS" in log
    assert "Traceback" not in log


def test_a_lease_is_there_while_the_port_is_open_and_says_draining(
    repository: Path, executor: Any, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = MemoryRegistry()
    registry.close = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(app, "connect", lambda settings, metrics: registry)
    write_model(repository, "m", gate.config)
    role = Role.ROLE_EXECUTOR
    with executor() as running, FakeDispatcher(running.address) as dispatcher:
        wait_until(lambda: registry.leases(role), TIMEOUT_S)
        (lease,) = registry.leases(role)
        hello = dispatcher.hellos[0]
        assert (lease.id, lease.address, lease.device) == (hello.id, running.address, hello.device)
        assert not lease.draining
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X]))
        gate.wait_for_run()
        running.stop.set()
        wait_until(lambda: all(lease.draining for lease in registry.leases(role)), TIMEOUT_S)
        gate.open()
        dispatcher.result(1)
    assert registry.leases(role) == []


@pytest.mark.parametrize(
    ("bind", "advertise", "expected"),
    [
        ("127.0.0.1:8020", "", "127.0.0.1:8020"),
        ("127.0.0.1:8020", "gpu7:9", "gpu7:9"),
        ("0.0.0.0:8020", "gpu7:9", "gpu7:9"),
    ],
)
def test_others_reach_it_where_it_says(bind: str, advertise: str, expected: str) -> None:
    settings = ExecutorSettings(executor_bind=bind, executor_advertise=advertise)
    assert address(settings) == expected


def test_a_bind_to_all_addresses_is_advertised_by_host_name() -> None:
    settings = ExecutorSettings(executor_bind="[::]:8020")
    assert address(settings) not in ("[::]:8020", "")
    assert address(settings).endswith(":8020")


def test_settings_come_from_the_environment() -> None:
    settings = load(ExecutorSettings, "executor", {})
    assert settings.executor_bind == "127.0.0.1:8020"


def test_no_code_reads_pickled_or_evaluated_data() -> None:
    forbidden = re.compile(
        r"(?<![.\w])(pickle|marshal|shelve|joblib|eval|exec|yaml)\b[.(]|allow_pickle=True"
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in SERVICE.rglob("*.py")
        for line in path.read_text().splitlines()
        if forbidden.search(line)
    ]
    assert found == []


def test_compute_knows_nothing_of_queues_or_links() -> None:
    """Backends depend on data types and configuration only."""
    allowed = (
        "sits_core.datatypes",
        "sits_core.errors",
        "sits_executor.backends",
        "sits_executor.contract",
        "sits_executor.safe",
        "sits_protos.oip",
    )
    imports = [
        module
        for path in (SERVICE / "backends").glob("*.py")
        for module in re.findall(r"^from (sits_[\w.]+)", path.read_text(), re.MULTILINE)
    ]
    assert imports
    assert [module for module in imports if not module.startswith(allowed)] == []
