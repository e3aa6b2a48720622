"""The parts for several GPUs, over a machine that is made up: what they conclude, not how fast."""

import json
from itertools import combinations
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpu import bare, gangs, links, placement, record  # noqa: E402 - after the skip

from sits_scheduling.links import Knowledge, LinkKind  # noqa: E402
from sits_topology.measured import read_measured  # noqa: E402
from sits_topology.model import Device, DeviceKind, Link, Topology, both_ways  # noqa: E402
from sits_topology.probe.plan import How  # noqa: E402
from sits_topology.probe.plan import Path as Way  # noqa: E402
from sits_topology.probe.report import Report  # noqa: E402
from sits_topology.probe.timing import AllReduce, Copied, Timing  # noqa: E402
from sits_topology.snapshot import to_proto  # noqa: E402

SIZE = 256 << 20
NAMES = [f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in range(4)]


def topology() -> Topology:
    """Two pairs on NVLink, which reach each other over PCIe."""
    cards = [Device(name, DeviceKind.GPU, "NVIDIA H200", numa_node=0) for name in NAMES]
    cpu = Device("cpu:0", DeviceKind.CPU, numa_node=0, cpus=(0,))
    made = [
        Link(a, b, LinkKind.NVLINK, Knowledge.KNOWN, 18, 370.8)
        if {a, b} in ({NAMES[0], NAMES[1]}, {NAMES[2], NAMES[3]})
        else Link(a, b, LinkKind.PHB, Knowledge.ABSENT, bandwidth_gbps=48.0)
        for a, b in combinations(NAMES, 2)
    ]
    made += [Link(n, "cpu:0", LinkKind.PHB, Knowledge.KNOWN, bandwidth_gbps=48.0) for n in NAMES]
    return Topology((*cards, cpu), tuple(both_ways(made)), ("nvml",))


def real_gbps(source: str, target: str) -> float:
    """What a copy reaches on this machine."""
    if "cpu:0" in (source, target):
        return 55.0
    link = topology().link(source, target)
    return 386.0 if link.kind is LinkKind.NVLINK else 41.0


def found(tmp_path: Path, probe_error: float = 0.0) -> links.Links:
    made = topology()
    copies = [
        Copied(Way(a, b, How.PINNED if "cpu:0" in (a, b) else How.PEER), SIZE,
               Timing(SIZE / 1e9 / real_gbps(a, b) * (1 + probe_error), 0.0))
        for a, b in ((li.source, li.target) for li in made.links)
    ]  # fmt: skip
    report = Report(1000.0, made, NAMES, copies, [], {}, [])
    file = tmp_path / "topo.json"
    file.write_text(json.dumps(report.as_dict()))
    published = to_proto(read_measured(file).applied(made), host="here", node_name="")
    copied = [bare.Bare(_number(a), _number(b), real_gbps(a, b)) for a, b in
              ((li.source, li.target) for li in made.links)]  # fmt: skip
    return links.Links(made, report, links.named(copied, NAMES, "cpu:0"), published)


def _number(name: str) -> int:
    return bare.HOST if name == "cpu:0" else NAMES.index(name)


def held(figures) -> dict[str, bool | None]:
    return {figure.figure.partition(":")[0]: figure.holds for figure in figures}


def test_a_graph_that_is_what_copies_reached_holds_every_bar(tmp_path):
    figures = links.figures(found(tmp_path))
    assert all(figure.holds for figure in figures if figure.bar and "nominal" not in figure.figure)


def test_a_probe_that_is_further_off_than_its_bar_does_not_hold(tmp_path):
    assert held(links.figures(found(tmp_path, 0.06)))["links.probe"] is False


def test_a_pair_ranked_wrongly_is_counted():
    assert links.misranked({("a", "b"): 1.0, ("a", "c"): 2.0}, {("a", "b"): 9, ("a", "c"): 3}) == 1
    assert (
        links.misranked({("a", "b"): 1.0, ("a", "c"): 2.0}, {("a", "b"): 3.1, ("a", "c"): 3}) == 0
    )


def test_kept_reports_name_gpus_by_number(tmp_path):
    text = json.dumps(links.anonymous(found(tmp_path).report.as_dict()))
    assert "GPU-" not in text
    assert "gpu:3" in text


def test_gangs_of_two_are_pairs_with_nvlink_and_better_than_random_ones(tmp_path, monkeypatch):
    def all_reduces(wanted, sizes, device):
        return [
            AllReduce(gang, size, Timing(size / 1e9 / min(
                real_gbps(NAMES[a], NAMES[b]) for a, b in combinations(gang, 2)), 0.0))
            for gang in wanted for size in sizes
        ]  # fmt: skip

    monkeypatch.setattr(gangs, "all_reduces", all_reduces)
    figures, rows = gangs.measure(found(tmp_path))
    best = {f.figure.partition(",")[0]: f for f in figures if f.figure.startswith("gangs.best")}
    assert best["gangs.best: 2 GPUs"].ratio == pytest.approx(1.0)
    assert best["gangs.best: 4 GPUs"].holds
    random_two = next(f for f in figures if f.figure.startswith("gangs.random: 2"))
    assert random_two.ratio > 1.5
    assert {tuple(row["gang"]) for row in rows} >= {(0, 1), (2, 3), (0, 1, 2, 3)}


def test_both_halves_of_a_pipeline_go_to_one_gpu(tmp_path):
    first, second = placement.chosen(found(tmp_path), NAMES)
    assert first == second


# Records


class Asked:
    """The `pynvml` module as a record asks it: some answers, the rest refused."""

    class NVMLError(Exception):
        pass

    def __init__(self, uuid: str = "") -> None:
        self._uuid = uuid

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetComputeMode(self, handle: int) -> str:
        return self._uuid or "0"

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 3:
            raise self.NVMLError("Invalid Argument")
        return 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.0"

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13.0"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000


def test_a_record_has_what_was_answered_and_what_was_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "pynvml", Asked())
    monkeypatch.setattr(record, "topo_text", lambda: "GPU0 GPU1\n")
    files = record.record(tmp_path)
    assert [file.name for file in files] == ["h200-x2.json", "h200-x2-topo-m.txt"]
    device = json.loads(files[0].read_text())["devices"][1]
    assert (device["index"], device["name"], len(device["nvlink"])) == (1, "NVIDIA H200", 3)
    assert device["nvmlDeviceGetMemoryInfo"] == {"error": "not in this pynvml"}
    assert json.loads(files[0].read_text())["pairs"][0]["a"] == 0


def test_a_record_with_a_uuid_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "pynvml", Asked(NAMES[0]))
    with pytest.raises(ValueError, match="must not hold a UUID"):
        record.record(tmp_path)
    assert list(tmp_path.iterdir()) == []
