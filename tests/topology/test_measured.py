"""A measurement counts while its path is the one that was measured, and is young enough."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from sits_core.settings import SettingsError
from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.app import source_of
from sits_topology.measured import FORMAT, Measured, MeasuredLink, MeasuredSource, read_measured
from sits_topology.metrics import measured_age
from sits_topology.model import Device, DeviceKind, Link, Topology, TopologyError
from sits_topology.nvml import NvmlSource
from sits_topology.settings import TopologySettings
from sits_topology.snapshot import to_proto

NVLINK = Link("a", "b", LinkKind.NVLINK, Knowledge.KNOWN, lanes=18, bandwidth_gbps=370.8)
FOUND = MeasuredLink("a", "b", "NVLINK", 18, 386.0, 7.5)


def topology(*links: Link) -> Topology:
    names = sorted({name for link in links for name in (link.source, link.target)})
    return Topology(tuple(Device(name, DeviceKind.GPU) for name in names), links, ("nvml",))


def measured(*links: MeasuredLink, at_unix_s: float = 1000.0) -> Measured:
    return Measured(at_unix_s, {(link.source, link.target): link for link in links})


class Given:
    def __init__(self, found: Topology) -> None:
        self.found = found

    def read(self) -> Topology:
        return self.found


def row(**other: object) -> dict[str, object]:
    fields = {"source": "a", "target": "b", "kind": "NVLINK", "lanes": 18, "gbps": 386.0}
    return fields | {"latency_us": 7.5} | other


def write(path: Path, *rows: object, at_unix_s: float = 1000.0) -> Path:
    record = {"format": FORMAT, "at_unix_s": at_unix_s, "links": rows}
    path.write_text(json.dumps(record))
    return path


def source(path: Path, now_s: float = 1010.0, max_age_s: float = 100.0) -> MeasuredSource:
    return MeasuredSource(Given(topology(NVLINK)), path, max_age_s, lambda: now_s)


# What holds


def test_a_measured_pair_has_the_measured_bandwidth_latency_and_weight():
    found = measured(FOUND).applied(topology(NVLINK))
    (link,) = to_proto(found, host="h", node_name="n").links
    assert (link.bandwidth_gbps, link.latency_us, link.measured) == (386.0, 7.5, True)
    weight = next(w for w in to_proto(found, host="h", node_name="n").weights if w.to == "b")
    assert weight.cost_s_per_mb in (0.0, pytest.approx(1e-3 / 386.0))


def test_each_direction_has_its_own_measurement():
    both = topology(NVLINK, NVLINK.reversed())
    found = measured(FOUND, replace(FOUND, source="b", target="a", gbps=190.0)).applied(both)
    assert [link.bandwidth_gbps for link in found.links] == [386.0, 190.0]


@pytest.mark.parametrize(
    "now",
    [
        replace(NVLINK, lanes=12),
        replace(NVLINK, knowledge=Knowledge.DEGRADED),
        replace(NVLINK, kind=LinkKind.PHB, lanes=None),
        replace(NVLINK, target="c"),
    ],
    ids=["fewer links", "degraded", "another kind", "another device"],
)
def test_a_path_that_is_not_the_measured_one_keeps_its_nominal_figure(now):
    assert measured(FOUND).applied(topology(now)).links == (now,)


def test_real_cards_take_what_was_measured_between_them(h200_x2, one_node):
    nominal = NvmlSource(one_node, h200_x2).read()
    first, second = (device.id for device in nominal.of_kind(DeviceKind.GPU))
    found = measured(replace(FOUND, source=first, target=second)).applied(nominal)
    assert found.link(first, second).bandwidth_gbps == 386.0
    assert found.link(second, first).bandwidth_gbps == pytest.approx(370.8)


# The file


def test_a_written_file_is_read_back(tmp_path):
    assert read_measured(write(tmp_path / "topo.json", row())).links["a", "b"] == FOUND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "expected JSON of `sits probe`"),
        ("[]", '"format": "sits-probe-1"'),
        ('{"format": "other"}', '"format": "sits-probe-1"'),
        ('{"format": "sits-probe-1"}', "not whole: KeyError 'links'"),
        (json.dumps({"format": FORMAT, "at_unix_s": 1, "links": [row(kind="X")]}), "KeyError 'X'"),
        (json.dumps({"format": FORMAT, "at_unix_s": 1, "links": [row(gbps=0)]}), "0.0 GB/s"),
        (json.dumps({"format": FORMAT, "at_unix_s": 1, "links": [row(gbps=math.inf)]}), "inf GB/s"),
        (json.dumps({"format": FORMAT, "at_unix_s": 1, "links": [3]}), "TypeError"),
        (json.dumps({"format": FORMAT, "at_unix_s": 1, "links": [row(lanes="x")]}), "ValueError"),
    ],
)
def test_a_file_that_is_none_of_a_probe_is_refused_with_what_is_wrong(tmp_path, text, expected):
    file = tmp_path / "topo.json"
    file.write_text(text)
    with pytest.raises(TopologyError) as refused:
        read_measured(file)
    assert expected in str(refused.value)


def test_a_file_too_large_to_be_a_report_is_not_read(tmp_path):
    file = tmp_path / "topo.json"
    file.touch()
    os.truncate(file, 17 << 20)
    with pytest.raises(TopologyError, match="larger than"):
        read_measured(file)


# Freshness


def test_links_carry_what_the_file_says(tmp_path):
    (link,) = source(write(tmp_path / "topo.json", row())).read().links
    assert (link.bandwidth_gbps, link.measured) == (386.0, True)


def test_a_measurement_that_is_too_old_no_longer_counts(tmp_path):
    file = write(tmp_path / "topo.json", row())
    assert source(file, now_s=1100.0).read().links[0].measured
    assert source(file, now_s=1100.1).read().links == (NVLINK,)


def test_a_newer_file_is_taken_at_the_next_read(tmp_path):
    file = write(tmp_path / "topo.json", row())
    reader = source(file)
    reader.read()
    write(tmp_path / "new", row(gbps=400.0)).replace(file)
    assert reader.read().links[0].bandwidth_gbps == 400.0


def test_without_the_file_links_are_nominal_until_it_comes(tmp_path):
    reader = source(tmp_path / "topo.json")
    assert reader.read().links == (NVLINK,)
    assert reader.age_s == math.inf
    write(tmp_path / "topo.json", row())
    assert reader.read().links[0].measured
    assert reader.age_s == 10.0


def test_a_file_that_goes_away_takes_its_figures_along(tmp_path):
    file = write(tmp_path / "topo.json", row())
    reader = source(file)
    reader.read()
    file.unlink()
    assert reader.read().links == (NVLINK,)


def test_a_broken_file_is_said_once_and_nothing_stops(tmp_path):
    file = tmp_path / "topo.json"
    file.write_text("{")
    reader = source(file)
    with structlog.testing.capture_logs() as logs:
        assert [reader.read().links for _ in range(3)] == [(NVLINK,)] * 3
    assert [entry["event"] for entry in logs] == ["topology.nominal_links"]


# The setting


def test_the_setting_names_the_file(tmp_path):
    settings = TopologySettings(
        topology_source="sysfs", topology_measured=str(tmp_path / "topo.json")
    )
    assert isinstance(source_of(settings), MeasuredSource)
    assert not isinstance(source_of(TopologySettings(topology_source="sysfs")), MeasuredSource)


def test_the_age_of_the_measurement_is_a_metric(tmp_path):
    registry = CollectorRegistry()
    reader = source(write(tmp_path / "topo.json", row()))
    measured_age(registry, lambda: reader.age_s)
    name = "sits_topology_measured_age_seconds"
    assert registry.get_sample_value(name) == math.inf
    reader.read()
    assert registry.get_sample_value(name) == 10.0


def test_a_wrong_source_is_refused_with_or_without_a_file(tmp_path):
    with pytest.raises(SettingsError, match="SITS_TOPOLOGY_SOURCE"):
        source_of(TopologySettings(topology_source="/none", topology_measured="x"))
