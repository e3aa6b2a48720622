"""What a probe measures on which machine, and what it says instead."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path as File

import pytest

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.measured import read_measured
from sits_topology.model import Device, DeviceKind, Link, Topology, both_ways
from sits_topology.probe import plan, run
from sits_topology.probe.memory import MemoryCopier
from sits_topology.probe.plan import How, Path
from sits_topology.probe.run import NO_GPU, NO_TORCH, ONE_NODE, QUICK, Probe, found_gpus
from sits_topology.probe.timing import AllReduce, Timing, measure, timing_of

GB = 1e9
SPEEDS = {How.PEER: 386 * GB, How.PINNED: 55 * GB, How.PAGEABLE: 18 * GB}
START_S = 5e-6


class FakeOpened:
    def __init__(self, per_s: float, opened: list[str]) -> None:
        self._per_s, self._opened = per_s, opened
        opened.append("open")

    def copies(self, size_bytes: int) -> Callable[[int], float]:
        return lambda count: count * (START_S + size_bytes / self._per_s)

    def close(self) -> None:
        self._opened.append("close")


class FakeGpus:
    """Copies that take what `SPEEDS` say; collectives as fast, or refused."""

    def __init__(self, names: Sequence[str], refusal: str = "") -> None:
        self.names, self._refusal = names, refusal
        self.opened: list[str] = []

    def copier(self, cpus: object) -> "FakeGpus":
        return self

    def open(self, path: Path, most_bytes: int) -> FakeOpened:
        return FakeOpened(SPEEDS[path.how], self.opened)

    def all_reduces(
        self, gangs: Sequence[tuple[int, ...]], sizes: Sequence[int], done: Callable[[], object]
    ) -> list[AllReduce]:
        if self._refusal:
            raise RuntimeError(self._refusal)
        for _ in gangs:
            done()
        return [AllReduce(gang, size, Timing(size / (200 * GB), 0.01)) for gang in gangs
                for size in sizes]  # fmt: skip


def machine(gpus: Sequence[str] = (), nodes: int = 1) -> Topology:
    cpus = [Device(f"cpu:{n}", DeviceKind.CPU, numa_node=n, cpus=(0,)) for n in range(nodes)]
    cards = [Device(name, DeviceKind.GPU, "NVIDIA H200") for name in gpus]
    links = [Link(a, b, LinkKind.NVLINK, Knowledge.KNOWN, lanes=18)
             for a, b in permutations(gpus, 2)]  # fmt: skip
    links += both_ways(Link(g, c.id, LinkKind.PHB, Knowledge.KNOWN) for g in gpus for c in cpus)
    links += [Link(a.id, b.id, LinkKind.SYS, Knowledge.KNOWN) for a, b in permutations(cpus, 2)]
    return Topology((*cards, *cpus), tuple(links), ("nvml",))


def probed(gpus: FakeGpus, nodes: int = 1) -> dict:
    steps: list[str] = []
    probe = Probe(machine(gpus.names, nodes), gpus, QUICK)
    report = probe.run(steps.append).as_dict()
    assert len(steps) - 1 == probe.steps or not report["all_reduces"]
    return json.loads(json.dumps(report))


# What is measured


def test_every_pair_of_gpus_is_copied_in_both_directions():
    peers = [path for path in plan.paths(["a", "b", "c"], ["cpu:0"]) if path.how is How.PEER]
    assert [path[:2] for path in peers] == list(permutations(["a", "b", "c"], 2))


def test_every_gpu_copies_to_and_from_every_node_pinned_and_pageable():
    found = set(plan.paths(["a", "b"], ["cpu:0", "cpu:1"]))
    for how in (How.PINNED, How.PAGEABLE):
        for gpu in ("a", "b"):
            for cpu in ("cpu:0", "cpu:1"):
                assert {Path(gpu, cpu, how), Path(cpu, gpu, how)} <= found


def test_all_gangs_of_few_gpus_are_measured_and_a_fixed_draw_of_many():
    assert plan.gangs(1) == []
    assert plan.gangs(2) == [(0, 1)]
    four = plan.gangs(4)
    assert len([gang for gang in four if len(gang) == 2]) == 6
    assert four[-1] == (0, 1, 2, 3)
    eight = plan.gangs(8)
    assert [len(gang) for gang in eight] == [2] * 8 + [4] * 8 + [8]
    assert eight == plan.gangs(8)


# Times


def test_a_time_is_the_median_of_a_copy_whatever_single_ones_took():
    assert timing_of([1.0, 1.0, 1.1, 50.0, 1.0]).seconds == 1.0


def test_warm_ups_do_not_count():
    calls = iter([9.0, 9.0, 9.0, *[2.0] * 5])
    assert measure(lambda count: next(calls), 2, 5) == Timing(1.0, 0.0)


def test_an_all_reduce_over_a_ring_sends_its_size_times_the_ring_share_over_each_link():
    assert AllReduce((0, 1), 10**9, Timing(1.0, 0.0)).bus_gbps == pytest.approx(1.0)
    assert AllReduce((0, 1, 2, 3), 10**9, Timing(1.0, 0.0)).bus_gbps == pytest.approx(1.5)


# The report


def test_links_have_the_largest_copy_s_bandwidth_and_the_smallest_one_s_latency():
    report = probed(FakeGpus(["a", "b"]))
    (link,) = [row for row in report["links"] if (row["source"], row["target"]) == ("a", "b")]
    assert link["gbps"] == pytest.approx(386, rel=0.35)
    assert link["latency_us"] == pytest.approx(5, rel=0.01)
    assert (link["kind"], link["lanes"]) == ("NVLINK", 18)


def test_links_to_the_host_are_those_of_pinned_memory():
    report = probed(FakeGpus(["a", "b"]))
    (link,) = [row for row in report["links"] if (row["source"], row["target"]) == ("cpu:0", "a")]
    assert 40 < link["gbps"] < 55
    assert {"pinned", "pageable"} <= {row["how"] for row in report["copies"]}


def test_the_report_is_what_the_topology_service_reads(tmp_path):
    file = tmp_path / "topo.json"
    file.write_text(json.dumps(probed(FakeGpus(["a", "b"], ""), nodes=2)))
    found = read_measured(file).applied(machine(["a", "b"], nodes=2))
    assert all(link.measured for link in found.links)


def test_all_reduces_name_their_gpus():
    report = probed(FakeGpus(["a", "b"]))
    assert [row["gang"] for row in report["all_reduces"]] == [["a", "b"]] * len(QUICK.all_reduces)


def test_collectives_that_cannot_be_had_are_noted_and_the_copies_stay():
    report = probed(FakeGpus(["a", "b"], refusal="no NCCL"))
    assert "no all-reduce was measured: no NCCL" in report["notes"]
    assert report["all_reduces"] == []
    assert report["links"]


def test_memory_at_both_ends_is_given_back_after_each_path():
    gpus = FakeGpus(["a", "b"])
    probed(gpus)
    assert gpus.opened == ["open", "close"] * (len(gpus.opened) // 2)


# Without GPUs


def test_without_a_gpu_host_memory_is_measured_and_it_is_said():
    report = Probe(machine(nodes=2), None, QUICK).run(lambda text: None).as_dict()
    assert report["notes"] == [NO_GPU]
    assert {row["how"] for row in report["copies"]} == {"memory"}
    assert {(row["source"], row["target"]) for row in report["links"]} == {
        ("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")}  # fmt: skip


def test_one_node_has_no_two_memories_and_it_is_said():
    report = Probe(machine(), None, QUICK).run(lambda text: None).as_dict()
    assert report["notes"] == [NO_GPU, ONE_NODE]
    assert report["links"] == []


def test_gpus_without_torch_are_named_as_what_is_missing(monkeypatch):
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    assert found_gpus([Device("a", DeviceKind.GPU)]) == (None, [NO_TORCH])
    assert found_gpus([]) == (None, [])


def test_slices_are_not_measured_and_it_is_said():
    gpus, notes = found_gpus([Device("MIG-a", DeviceKind.MIG)])
    assert gpus is None
    assert "MIG" in notes[0]


def test_host_memory_is_really_copied():
    opened = MemoryCopier({"cpu:0": (0, 1)}).open(Path("cpu:0", "cpu:0", How.MEMORY), 1 << 16)
    opened._source[:] = 7
    assert opened.copies(1 << 16)(1) > 0
    assert (opened._target == 7).all()


def test_the_command_measures_this_machine(tmp_path):
    file = tmp_path / "topo.json"
    command = [sys.executable, "-m", "sits_topology.probe", "--quick", "--output", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told[0]["steps"] == len(told) - 1
    read_measured(file)
    assert list(File(tmp_path).iterdir()) == [file]


def test_collectives_over_processes_give_a_time_for_each_gang_and_size():
    """Over gloo: the way of the results, not the speed of links."""
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    from sits_topology.probe.collectives import all_reduces

    done: list[int] = []
    found = all_reduces([(0, 1)], (4096, 8192), "cpu", lambda: done.append(1), limit_s=60)
    assert [(one.gang, one.size_bytes) for one in found] == [((0, 1), 4096), ((0, 1), 8192)]
    assert all(one.timing.seconds > 0 for one in found)
    assert done == [1]
