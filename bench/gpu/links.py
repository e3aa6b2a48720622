"""The probe against bare copies, and the topology service's graph against both."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Final

from gpu.bare import HOST, Bare, bare_copies
from sits_protos.v1 import topology_pb2 as pb
from sits_sim.figures import Figure, at_most, plain
from sits_topology.measured import read_measured
from sits_topology.model import Topology
from sits_topology.probe.report import Report
from sits_topology.probe.run import FULL, Probe, found_gpus
from sits_topology.snapshot import to_proto
from sits_topology.sources import choose_source

PROBE_BAR, WEIGHT_BAR = 0.05, 0.10
SAME: Final = 0.05
"""Bandwidths that differ by less rank equal: copies repeat to a few percent."""

Pair = tuple[str, str]
Gbps = Mapping[Pair, float]


@dataclass(frozen=True, slots=True)
class Links:
    """All that the other parts need: the graph as it is published, and what copies reached."""

    topology: Topology
    report: Report
    bare: Gbps
    published: pb.TopologySnapshot


def measure(folder: Path) -> Links:
    """Probes this host and copies barely. Raises `RuntimeError` without GPUs."""
    nominal = choose_source("auto").read()
    gpus, notes = found_gpus(nominal.devices)
    if gpus is None:
        raise RuntimeError("; ".join(notes) or "no GPU is here")
    report = Probe(nominal, gpus, FULL, notes).run(lambda text: None)
    file = folder / "topo.json"
    file.write_text(json.dumps(report.as_dict(), indent=1))
    applied = read_measured(file).applied(nominal)
    bare = named(list(bare_copies()), gpus.names, host_of(nominal))
    return Links(nominal, report, bare, to_proto(applied, host="here", node_name="here"))


def host_of(topology: Topology) -> str:
    """The first NUMA node stands for the host."""
    return next(device.id for device in topology.devices if device.id.startswith("cpu:"))


def named(found: Sequence[Bare], gpus: Sequence[str], host: str) -> Gbps:
    def name(number: int) -> str:
        return host if number == HOST else gpus[number]

    return {(name(one.source), name(one.target)): one.gbps for one in found}


def figures(links: Links) -> list[Figure]:
    probed = {(row.source, row.target): row.gbps for row in links.report.links()}
    peers = {pair: gbps for pair, gbps in links.bare.items() if host_of(links.topology) not in pair}
    hosts = {pair: gbps for pair, gbps in links.bare.items() if pair not in peers}
    weights = {(getattr(w, "from"), w.to): w for w in links.published.weights}
    costs = {pair: 1e-3 / weights[pair].cost_s_per_mb for pair in links.bare}
    nominal = {
        (getattr(w, "from"), w.to): w.cost_s_per_mb
        for w in to_proto(links.topology, host="", node_name="").weights
    }
    return [
        *_compared("peer", peers, probed),
        *_compared("pinned host", hosts, probed),
        at_most("links.rank: pairs that the graph ranks otherwise than bare copies do",
                misranked(costs, links.bare), "pairs", 0),
        at_most("links.cost: published cost against bare copies, largest difference",
                worst(costs, links.bare), "of it", WEIGHT_BAR),
        at_most("links.nominal: cost without a measurement, NVLink, largest difference",
                worst({p: 1e-3 / nominal[p] for p in peers}, peers), "of it", WEIGHT_BAR),
        plain("links.nominal_host: cost without a measurement, host, largest difference",
              worst({p: 1e-3 / nominal[p] for p in hosts}, hosts), "of it"),
    ]  # fmt: skip


def _compared(what: str, bare: Gbps, probed: Gbps) -> list[Figure]:
    if not bare:
        return []
    return [
        at_most(f"links.probe: {what}, probe against bare copies, largest difference",
                worst({pair: probed[pair] for pair in bare}, bare), "of it", PROBE_BAR),
        replace(plain(f"links.gbps: {what}, slowest pair", min(bare.values()), "GB/s"),
                reference=max(bare.values())),
    ]  # fmt: skip


def worst(found: Gbps, expected: Gbps) -> float:
    """The largest relative difference."""
    return max(abs(found[pair] / gbps - 1) for pair, gbps in expected.items())


def misranked(found: Gbps, expected: Gbps) -> int:
    """Pairs of pairs whose order is another one, where it is clear."""
    return sum(
        (expected[one] - expected[other]) * (found[one] - found[other]) < 0
        for one, other in combinations(expected, 2)
        if abs(expected[one] / expected[other] - 1) > SAME
    )


def anonymous(report: Mapping[str, object]) -> dict[str, object]:
    """A report whose GPUs are named by their number, to be kept."""
    text = json.dumps(report)
    devices = report["devices"]
    if not isinstance(devices, list):
        raise TypeError("expected a report of the probe")
    ids = [device["id"] for device in devices if device["kind"] == "GPU"]
    for number, name in enumerate(ids):
        text = text.replace(str(name), f"gpu:{number}")
    found: dict[str, object] = json.loads(text)
    return found
