"""Settings that the services of a mesh get."""

from dataclasses import replace
from pathlib import Path

import pytest

from sits_cli import ports
from sits_cli.plan import Plan


def environments(plan: Plan, redis_url: str | None) -> dict[str, dict[str, str]]:
    return {program.name: dict(program.env) for program in plan.programs(redis_url)}


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("SITS_CLI_FRONT", "10.0.0.1:8001")
    monkeypatch.setenv("SITS_REDIS_URL", "redis://of-the-shell")
    monkeypatch.setenv("SITS_DISPATCHER_EXECUTORS", "10.0.0.2:8020")
    monkeypatch.setenv("SITS_LOG_LEVEL", "error")
    return Plan(
        ports.free(2), log_dir=Path("logs"), env={"SITS_LOG_LEVEL": "debug"},
        service_env={"executor": {"SITS_X": "all"}, "executor-1": {"SITS_X": "one"}},
    )  # fmt: skip


def test_services_start_from_the_back_so_that_they_stop_from_the_front(plan: Plan) -> None:
    assert list(environments(plan, None)) == [
        "topology", "executor-0", "executor-1", "dispatcher", "preprocess",
    ]  # fmt: skip


def test_all_get_the_same_redis_whatever_the_shell_says(plan: Plan) -> None:
    for env in environments(plan, "unix:///ours").values():
        assert env["SITS_REDIS_URL"] == "unix:///ours"


def test_without_redis_the_dispatcher_is_told_where_the_executors_are(plan: Plan) -> None:
    env = environments(plan, None)["dispatcher"]
    assert "SITS_REDIS_URL" not in env
    assert env["SITS_DISPATCHER_EXECUTORS"] == ",".join(at for at, _ in plan.addresses.executors)


def test_with_redis_executors_elsewhere_are_kept(plan: Plan) -> None:
    env = environments(plan, "unix:///ours")["dispatcher"]
    assert env["SITS_DISPATCHER_EXECUTORS"] == "10.0.0.2:8020"


def test_the_commands_own_variables_stay_with_the_command(plan: Plan) -> None:
    assert "SITS_CLI_FRONT" not in environments(plan, None)["preprocess"]


def test_the_nearest_setting_wins(plan: Plan) -> None:
    env = environments(plan, None)
    assert env["topology"]["SITS_LOG_LEVEL"] == "debug"
    assert env["executor-0"]["SITS_X"] == "all"
    assert env["executor-1"]["SITS_X"] == "one"


def test_each_service_has_its_own_log(plan: Plan) -> None:
    logs = [str(program.log) for program in plan.programs(None)]
    assert logs[0] == "logs/topology.log"
    assert len(set(logs)) == len(logs)


def test_further_instances_are_programs_of_their_kind_with_what_is_their_own(plan: Plan) -> None:
    more = {"dispatcher-1": {"SITS_DISPATCHER_BIND": "127.0.0.1:1"}}
    programs = {program.name: program for program in replace(plan, more=more).programs(None)}
    assert programs["dispatcher-1"].argv[-1] == "sits_dispatcher"
    assert programs["dispatcher-1"].env["SITS_DISPATCHER_BIND"] == "127.0.0.1:1"
    assert programs["dispatcher"].env["SITS_DISPATCHER_BIND"] == plan.addresses.dispatcher


def test_a_mesh_on_one_machine_has_it_for_itself(plan: Plan) -> None:
    got = environments(plan, None)
    assert got["preprocess"]["SITS_PREPROCESS_PYTHON_CPUS"] == "auto"
    assert got["dispatcher"]["SITS_DISPATCHER_PYTHON_CPUS"] == "auto"


def test_a_front_door_alone_does_not_wait_for_clients_to_go_elsewhere(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "SITS_PREPROCESS_DRAIN_DELAY_S"
    assert environments(plan, None)["preprocess"][name] == "0"
    monkeypatch.setenv(name, "3")
    assert environments(plan, None)["preprocess"][name] == "3"
