"""`sits gang` shows what a dispatcher would choose, `sits probe` measures and shows it."""

import json
from pathlib import Path

import pytest

from sits_cli.client import CliError
from sits_cli.commands import probe
from sits_cli.testing import FakeControl
from sits_protos.v1.control_pb2 import Gang


def gangs() -> FakeControl:
    first = Gang(host="h", devices=["GPU-1", "GPU-2"], bottleneck_gbps=370.8, collective_us=260.6)
    other = Gang(host="h", devices=["GPU-1", "GPU-3"], bottleneck_gbps=24, collective_us=2800)
    return FakeControl(gangs=[first, other])


def test_the_chosen_gang_comes_first_with_its_weakest_link(sits, serve):
    outcome = sits("gang", "--size", "2", "--dispatcher", serve(gangs()))
    first, other = outcome.out.splitlines()[1:]
    assert first.split() == ["h", "GPU-1,", "GPU-2", "370.8", "260.6", "chosen"]
    assert other.split() == ["h", "GPU-1,", "GPU-3", "24", "2800"]


def test_a_gang_as_json(sits, serve):
    outcome = sits("gang", "--size", "2", "--json", "--dispatcher", serve(gangs()))
    answer = json.loads(outcome.out)
    assert answer["chosen"]["devices"] == ["GPU-1", "GPU-2"]
    assert answer["chosen"]["bottleneck_gbps"] == 370.8
    assert len(answer["alternatives"]) == 1


def test_no_gang_is_said_with_the_reason(sits, serve):
    outcome = sits("gang", "--size", "8", "--dispatcher", serve(gangs()))
    assert outcome.status == 1
    assert "no gang of 8 GPUs is free" in outcome.err


def test_a_probe_writes_its_report_and_shows_it(sits, tmp_path: Path):
    file = tmp_path / "topo.json"
    outcome = sits("probe", "--mode=bandwidth", "--quick", "--output", str(file))
    assert outcome.status == 0, outcome.err
    assert "cpu:0" in outcome.out
    assert f"SITS_TOPOLOGY_MEASURED={file}" in outcome.out.replace("\n", "")
    assert json.loads(file.read_text())["format"] == "sits-probe-1"


def test_a_probe_as_json_is_what_it_wrote(sits, tmp_path: Path):
    file = tmp_path / "topo.json"
    outcome = sits("probe", "--quick", "--json", "--output", str(file))
    assert json.loads(outcome.out) == json.loads(file.read_text())


def test_a_probe_that_fails_says_its_last_line(tmp_path: Path):
    with pytest.raises(CliError, match="the probe failed: it broke"):
        probe.run(["sh", "-c", "echo first >&2; echo it broke >&2; exit 3"])


def test_another_mode_is_wrong_usage(sits):
    assert sits("probe", "--mode=latency").status == 2
