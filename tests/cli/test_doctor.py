"""`sits doctor` finds what keeps an installation from working, and says what to do."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sits_cli.commands import doctor
from sits_cli.doctor import machine, network, repository, software
from sits_cli.doctor import settings as settings_check
from sits_cli.doctor.finding import Check, Finding, Level, good, problem
from sits_cli.ports import DEFAULTS, free_ports
from sits_cli.private_redis import PrivateRedis
from sits_cli.testing import FakeControl

Sits = Callable[..., Any]
FREE = {
    name: f"127.0.0.1:{port}"
    for name, port in zip(DEFAULTS, free_ports(len(DEFAULTS)), strict=True)
}


def found(check: Check, **environ: str) -> list[Finding]:
    return list(check(environ))


def levels(findings: list[Finding]) -> set[Level]:
    return {finding.level for finding in findings}


def only(findings: list[Finding], level: Level) -> Finding:
    (finding,) = [f for f in findings if f.level is level]
    assert finding.do or level in (Level.GOOD, Level.NOTE)
    return finding


def test_this_installation_is_good() -> None:
    for check in (software.python, software.packages, settings_check.settings):
        assert levels(found(check)) <= {Level.GOOD, Level.NOTE}, check


def test_a_package_that_cannot_be_imported_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(software.MODULES, "sits_no_such_module", "of this test")
    finding = only(found(software.packages), Level.PROBLEM)
    assert "sits_no_such_module" in finding.text
    assert "of this test" in finding.text


def test_mixed_releases_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "version", lambda name: "0.2" if name == "sits-core" else "0.1")
    assert "sits-core 0.2" in only(found(software.packages), Level.PROBLEM).text


# settings


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SITS_LOG_LEVLE": "debug"}, "unknown setting SITS_LOG_LEVLE"),
        ({"SITS_DISPATCHER_MAX_MOVES": "-1"}, "SITS_DISPATCHER_MAX_MOVES"),
        ({"SITS_TLS_CERT_FILE": "/x"}, "SITS_TLS_CERT_FILE and SITS_TLS_KEY_FILE come together"),
        ({"SITS_DISPATCHER_BIND": "127.0.0.1:8001"}, "are both 127.0.0.1:8001"),
        ({"SITS_EXECUTOR_BIND": "0.0.0.0:8020"}, "set SITS_MESH_TOKEN"),
    ],
)
def test_settings_that_no_service_would_start_with(environ: dict[str, str], said: str) -> None:
    findings = found(settings_check.settings, **environ)
    assert any(said in f.text for f in findings if f.level is Level.PROBLEM), findings


def test_a_front_door_that_looks_elsewhere_is_warned_about() -> None:
    findings = found(settings_check.settings, SITS_DISPATCHER_BIND="127.0.0.1:9010")
    assert "SITS_PREPROCESS_DISPATCHERS=127.0.0.1:9010" in only(findings, Level.WARNING).do


def test_an_admin_port_that_is_closed_to_all_is_warned_about() -> None:
    environ = {"SITS_DISPATCHER_ADMIN_BIND": "0.0.0.0:8080"}
    assert "SITS_ADMIN_TOKEN" in only(found(settings_check.settings, **environ), Level.WARNING).do
    environ |= {"SITS_ADMIN_TOKEN": "t"}
    assert Level.WARNING not in levels(found(settings_check.settings, **environ))


def test_no_secret_is_shown() -> None:
    environ = {"SITS_MESH_TOKEN": "hunter2", "SITS_REDIS_URL": "redis://:hunter2@127.0.0.1:1",
               "SITS_LOG_LEVEL": "loud", **FREE}  # fmt: skip
    findings = list(doctor.examine(environ))
    assert levels(findings) >= {Level.PROBLEM}
    assert "hunter2" not in repr(findings)


# network


def test_free_ports_are_good() -> None:
    assert only(found(network.ports, **FREE), Level.GOOD).text == "all addresses free"


def test_the_second_executor_s_port_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        metrics = free_ports(16)[0]
        environ = FREE | {"SITS_EXECUTOR_BIND": f"127.0.0.1:{taken - 2}",
                          "SITS_EXECUTOR_METRICS_BIND": f"127.0.0.1:{metrics}"}  # fmt: skip
        finding = only(found(network.ports, **environ), Level.PROBLEM)
        assert f"127.0.0.1:{taken} (SITS_EXECUTOR_BIND of executor 1)" in finding.text
        assert "choose another port with SITS_EXECUTOR_BIND;" in finding.do


def test_a_port_that_somebody_else_has_is_a_problem() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for name in ("SITS_DISPATCHER_BIND", "SITS_DISPATCHER_ADMIN_BIND"):
            finding = only(found(network.ports, **FREE | {name: taken}), Level.PROBLEM)
            assert taken in finding.text
            assert f"another port with {name}" in finding.do


def test_a_service_that_answers_is_good(serve: Callable[..., str]) -> None:
    address = serve(FakeControl())
    findings = found(network.ports, **FREE | {"SITS_DISPATCHER_BIND": address})
    assert levels(findings) == {Level.GOOD}
    assert f"{address} answers (SITS_DISPATCHER_BIND)" in [f.text for f in findings]


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as running:
        yield running


@pytest.mark.redis
def test_a_redis_that_takes_writes_is_good(server: PrivateRedis) -> None:
    findings = found(network.redis, SITS_REDIS_URL=server.url)
    assert levels(findings) == {Level.GOOD}
    assert {f.area for f in findings} == {"redis", "clock"}


@pytest.mark.redis
def test_a_replica_is_a_problem() -> None:
    with PrivateRedis(config=["replicaof 127.0.0.1 1"]) as replica:
        finding = only(found(network.redis, SITS_REDIS_URL=replica.url), Level.PROBLEM)
    assert "is a slave" in finding.text
    assert "primary" in finding.do


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "http://127.0.0.1", "redis://x:0"])
def test_a_redis_that_is_none_is_a_problem(url: str) -> None:
    assert only(found(network.redis, SITS_REDIS_URL=url), Level.PROBLEM).area == "redis"


@pytest.mark.parametrize(("offset_s", "level"), [(0.1, Level.GOOD), (-3.0, Level.PROBLEM)])
def test_clocks_that_differ_are_a_problem(offset_s: float, level: Level) -> None:
    assert network._offset(offset_s).level is level


# machine


def test_shared_memory_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    finding = only(found(machine.shared_memory, SITS_SHM_DIR=str(tmp_path / "no")), Level.PROBLEM)
    assert "SITS_SHM_DIR" in finding.do


def test_shared_memory_too_small_for_its_pools_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_free_bytes", lambda _: 64 << 20)
    here = {"SITS_SHM_DIR": str(tmp_path)}
    assert "--shm-size" in only(found(machine.shared_memory, **here), Level.WARNING).do
    small = {"SITS_PREPROCESS_POOL_BYTES": "1024", "SITS_EXECUTOR_POOL_BYTES": "0"}
    assert levels(found(machine.shared_memory, **here, **small)) == {Level.GOOD}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("state", "level"), [(0, Level.GOOD), (machine.TIME_ERROR, Level.WARNING), (None, Level.NOTE)]
)
def test_a_clock_that_nothing_keeps_is_warned_about(
    state: int | None, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_clock_state", lambda: state)
    assert levels(found(machine.clock)) == {level}


def test_the_kernel_answers_what_its_clock_is() -> None:
    assert machine._clock_state() in (None, 0, 1, 2, 3, 4, machine.TIME_ERROR)


def test_devices_without_their_library_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise RuntimeError("Driver/library version mismatch")

    monkeypatch.setattr(machine, "_nvml", broken)
    monkeypatch.setattr(machine.Path, "glob", lambda *_: [Path("/dev/nvidia0")])
    finding = only(found(machine.gpus), Level.PROBLEM)
    assert "version mismatch" in finding.text
    monkeypatch.setattr(machine.Path, "glob", lambda *_: [])
    assert "on the CPU" in only(found(machine.gpus), Level.GOOD).text


# models


BUILTIN = """
backend: "builtin"
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""


def configured(root: Path, name: str, config: str) -> dict[str, str]:
    """A model with a version, of which nothing but its configuration is there."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    return {"SITS_EXECUTOR_MODEL_REPOSITORY": str(root)}


def repository_of(root: Path, *files: str) -> dict[str, str]:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    return {"SITS_EXECUTOR_MODEL_REPOSITORY": str(root)}


def test_models_that_can_be_read_are_named(tmp_path: Path) -> None:
    repository_of(tmp_path, ".git/x")
    for name in ("mlp", "b"):
        where = configured(tmp_path, name, BUILTIN)
    assert only(found(repository.models, **where), Level.GOOD).text.endswith(": b, mlp")


def test_a_file_that_is_no_model_is_a_problem_which_hides_no_other(tmp_path: Path) -> None:
    configured(tmp_path, "good", BUILTIN)
    repository_of(tmp_path, "first/2/model.onnx", "second/1/model.onnx")
    where = configured(tmp_path, "third", 'default_model_filename: "other.onnx"')
    *problems, rest = found(repository.models, **where)
    assert {problem.level for problem in problems} == {Level.PROBLEM}
    assert rest == good("models", f"{tmp_path}: good")
    first, second, third = problems
    assert "first: " in first.text
    assert "Load model from first/2/model.onnx failed:Protobuf parsing failed" in first.text
    assert "second/1/model.onnx" in second.text
    assert "third: there is no file '1/other.onnx' in the model's folder" in third.text
    assert first.do == f"mend what is in {tmp_path / 'first'}, then `sits models load first`"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("max_batch_size: many", "config.pbtxt cannot be read"),
        ('backend: "python"', "backend 'python' is unknown"),
        (BUILTIN + 'parameters { key: "function" value: { string_value: "no_such" } }', "no_such"),
        (BUILTIN.replace('"y"', '"y" label_filename: "names.txt"'), "there is no file 'names.txt'"),
        (BUILTIN.replace("dims: [ 1 ]", "dims: [ 0 ]"), "has dims [0]"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_a_problem(
    tmp_path: Path, config: str, said: str
) -> None:
    where = configured(tmp_path, "mlp", config)
    assert said in only(found(repository.models, **where), Level.PROBLEM).text


def test_what_takes_long_to_open_is_named_with_how_to_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = configured(tmp_path, "mlp", 'backend: "pytorch"')
    (tmp_path / "mlp/1/model.safetensors").touch()
    note = only(found(repository.models, **where), Level.NOTE)
    assert "mlp" in note.text
    assert "`sits up`" in note.do


def test_without_an_executor_here_no_model_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "find_spec", lambda _name: None)
    where = repository_of(tmp_path, "mlp/1/model.onnx")
    assert only(found(repository.models, **where), Level.GOOD).text.endswith(": mlp")


def test_an_executor_that_cannot_be_imported_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "EXAMINE", "sits_executor.no_such_module")
    where = configured(tmp_path, "mlp", BUILTIN)
    finding = only(found(repository.models, **where), Level.PROBLEM)
    assert "the executor cannot be imported: " in finding.text


def test_a_model_without_a_version_is_a_problem(tmp_path: Path) -> None:
    where = repository_of(tmp_path, "mlp/model.onnx")
    assert "mlp/1/" in only(found(repository.models, **where), Level.PROBLEM).do


def test_an_empty_version_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "mlp" / "1").mkdir(parents=True)
    where = {"SITS_EXECUTOR_MODEL_REPOSITORY": str(tmp_path)}
    assert "is empty" in only(found(repository.models, **where), Level.PROBLEM).text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    where = repository_of(tmp_path, "mlp/1/model.onnx")
    (tmp_path / "mlp/1/model.onnx").chmod(0)
    assert "cannot be read" in only(found(repository.models, **where), Level.PROBLEM).text


def test_no_repository_says_how_to_get_one(tmp_path: Path) -> None:
    where = {"SITS_EXECUTOR_MODEL_REPOSITORY": str(tmp_path / "no")}
    assert "make models" in only(found(repository.models, **where), Level.WARNING).do


# the command


def use(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(doctor, "CHECKS", ())
    monkeypatch.setattr(doctor, "examine", lambda _environ: iter(findings))


def test_problems_end_with_status_1_and_what_to_do(
    sits: Sits, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, good("a", "fine"), problem("b", "broken [x]", "mend it"))
    outcome = sits("doctor")
    assert outcome.status == 1
    assert "✗  b  broken [x]  mend it" in outcome.out
    assert "1 problem, 0 warnings" in outcome.out


def test_without_problems_it_ends_well(sits: Sits, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, good("a", "fine"))
    assert sits("doctor").status == 0


def test_findings_as_json(sits: Sits, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, problem("b", "broken", "mend it"))
    outcome = sits("doctor", "--json")
    assert (outcome.status, json.loads(outcome.out)) == (
        1, [{"area": "b", "level": "problem", "text": "broken", "do": "mend it"}],
    )  # fmt: skip


def test_all_of_it_runs_here(sits: Sits) -> None:
    outcome = sits("doctor", "--json")
    areas = {finding["area"] for finding in json.loads(outcome.out)}
    assert areas == {"python", "packages", "settings", "redis", "ports", "memory", "limits",
                     "clock", "gpu", "models"}  # fmt: skip


def test_completion_is_there_for_the_usual_shells(
    sits: Sits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the script that `sits --install-completion` installs asks for it."""
    monkeypatch.setenv("_SITS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "sits mo")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert sits().out.split() == ["models"]
