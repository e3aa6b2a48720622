"""Derive the simulator's data files from measured tables, request traces and `topo -m` texts.

`python scripts/derive_sim_data.py SOURCE` with a folder that holds netprofile/, traces/ and
topo/; what comes out lies in libs/sim/sits_sim/data and is described in its README.
"""

import csv
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sits_topology.affinity import weight
from sits_topology.model import DeviceKind, Topology
from sits_topology.snapshot import link_cost_s
from sits_topology.topo_text import read_topo_text

TARGET = Path(__file__).resolve().parent.parent / "libs/sim/sits_sim/data"

SIZES = [1 << 11, *(1 << k for k in range(14, 27))]
"""2 KiB to 64 MiB, what all tables cover; they have nothing between 2 and 10 KiB."""

TABLES = {
    "a100_nvswitch": ("vidur_a100_dgx_all_reduce.csv", "vidur_a100_dgx_send_recv.csv"),
    "a100_bridges": ("vidur_a100_pairwise_nvlink_all_reduce.csv",),
    "h100_nvswitch": ("vidur_h100_dgx_all_reduce.csv", "vidur_h100_dgx_send_recv.csv"),
}

NODES = {
    "h100_nvswitch": "26-della-h100-empty-affinity.txt",
    "a100_nvswitch": "13-a100-8-nic-legend.txt",
    "h100_bridges": "23-h100-pcie-8-crossed-bridges.txt",
    "a100_bridges": "16-azure-nc96ads-a100-pcie-pairs-vm.txt",
    "pcie": "38-8gpu-pix-pxb-sys-mlx5.txt",
}

TICK_MS = 3000
"""Mooncake's clock; arrivals are spread inside a tick, see `mooncake`."""

Key = tuple[str, int, int]
Ints = npt.NDArray[np.int64]


def main(source: Path) -> None:
    write_link_times(source / "netprofile")
    write_nodes(source / "topo")
    write_traces(source / "traces")


def write_link_times(folder: Path) -> None:
    with (TARGET / "link_times.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["table", "operation", "workers", "per_node", "bytes", "median_us"])
        for table, names in TABLES.items():
            for name in names:
                for key, points in sorted(measured(folder / name).items()):
                    for size in SIZES:
                        out.writerow([table, *key, size, median_us(points, size)])


def measured(path: Path) -> dict[Key, list[tuple[int, float]]]:
    found: dict[Key, list[tuple[int, float]]] = defaultdict(list)
    for row in csv.DictReader(path.open()):
        operation = row["collective"]
        key = (operation, int(row["num_workers"]), int(row["devices_per_node"]))
        ms = float(row[f"time_stats.{operation}.median"])
        found[key].append((int(row["size"]), ms * 1e3))
    return found


def median_us(points: list[tuple[int, float]], size: int) -> float:
    """Over all sizes within a fifth of `size`: single rows are noisy."""
    near = [us for s, us in points if 0.8 * size <= s <= 1.2 * size]
    return round(statistics.median(near), 2)


def write_nodes(folder: Path) -> None:
    lines = (f'"{name}": {json.dumps(node(folder / file))}' for name, file in NODES.items())
    (TARGET / "nodes.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def node(path: Path) -> dict[str, object]:
    topology = read_topo_text(path.read_text())
    kinds = (DeviceKind.CPU, DeviceKind.GPU)
    names = {d.id for d in topology.devices if d.kind in kinds}
    return {
        "source": path.name,
        "gpus": {d.id: d.numa_node for d in topology.of_kind(DeviceKind.GPU)},
        "cpus": [d.id for d in topology.of_kind(DeviceKind.CPU)],
        "links": [row for row in links(topology) if row[0] in names and row[1] in names],
    }


def links(topology: Topology) -> Iterator[tuple[str, str, str, float, float]]:
    """From, to, kind, cost in seconds a megabyte and weight, as topology publishes them."""
    for link in topology.links:
        cost = link_cost_s(link)
        yield link.source, link.target, link.kind.name, float(f"{cost:.6g}"), round(weight(cost), 6)


def write_traces(folder: Path) -> None:
    arrays: dict[str, Ints] = {}
    for name in ("azure2023_conv", "azure2023_code"):
        arrays |= named(name, azure(folder / f"{name}.csv"))
    arrays |= named("mooncake", mooncake(folder / "mooncake_conversation.jsonl"))
    np.savez_compressed(TARGET / "traces.npz", allow_pickle=False, **arrays)


def named(name: str, columns: tuple[Ints, Ints, Ints]) -> dict[str, Ints]:
    at_us, inputs, outputs = columns
    gaps = np.diff(np.sort(at_us), prepend=at_us.min())
    return {
        f"{name}.gap_us": gaps.astype(np.uint32),
        f"{name}.input_tokens": inputs.astype(np.uint32),
        f"{name}.output_tokens": outputs.astype(np.uint16),
    }


def azure(path: Path) -> tuple[Ints, Ints, Ints]:
    rows = list(csv.reader(path.open()))[1:]
    at = [datetime.fromisoformat(row[0][:26]) for row in rows]
    at_us = np.array([int((moment - at[0]).total_seconds() * 1e6) for moment in at])
    lengths = np.array([[int(row[1]), int(row[2])] for row in rows])
    return at_us, lengths[:, 0], lengths[:, 1]


def mooncake(path: Path) -> tuple[Ints, Ints, Ints]:
    """Its clock ticks every 3 s: the arrivals of a tick are spread evenly over it at random."""
    rows = [json.loads(line) for line in path.open()]
    ticks = np.array([row["timestamp"] for row in rows])
    spread = np.random.default_rng(1).uniform(0, TICK_MS, len(rows))
    at_us = np.sort(((ticks + spread) * 1e3).astype(np.int64))
    inputs = np.array([row["input_length"] for row in rows])
    return at_us, inputs, np.array([row["output_length"] for row in rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
