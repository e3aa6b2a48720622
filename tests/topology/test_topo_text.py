"""Every posted `nvidia-smi topo -m` text reads into its model, or is refused with a reason."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.model import DeviceKind, Health, Topology, TopologyError
from sits_topology.snapshot import link_cost_s
from sits_topology.topo_text import read_topo_text

FOLDER = Path(__file__).parent / "data/topo"

REFUSED = {
    "11-dgx2-v100-16-truncated.txt": "names 16 GPUs but there is no row for GPU5, GPU6",
    "31-b200-8-gpu2-off-nvlink-truncated.txt": "no header line",
    "48-vllm-8gpu-numa-na-truncated.txt": "row GPU6 ends after 7 of 8 cells, then 'PX'",
}

# GPUs, NICs, NUMA node of each GPU, pairs of GPUs by kind (or NVLinks) and knowledge.
# Knowledge: A absent, U unknown (no NV cell and no NV# line in the legend), K known.
MODELS = {
    "02-dgx1-v100-hybrid-cube-mesh.txt": (8, 4, None, {"NV1 K": 8, "NV2 K": 8, "SYS A": 12}),
    "03-v100-8-hcm-spaces.txt": (8, 1, None, {"NV1 K": 8, "NV2 K": 8, "SYS A": 12}),
    "06-azure-ndv2-v100-vm.txt": (8, 0, [0] * 8, {"NV1 K": 8, "NV2 K": 8, "NODE A": 12}),
    "08-v100-4-uneven-nvlink.txt": (4, 0, [0, 0, 1, 1], {"NV1 K": 1, "NV2 K": 3, "SYS A": 2}),
    "10-power9-traverse-1gpu-job.txt": (1, 4, [0], {}),
    "13-a100-8-nic-legend.txt": (8, 10, [3, 3, 1, 1, 7, 7, 5, 5], {"NV12 K": 28}),
    "16-azure-nc96ads-a100-pcie-pairs-vm.txt": (4, 0, [0, 1, 2, 3], {"NV12 K": 2, "SYS A": 4}),
    "18-levante-a100-4-topo-mp.txt": (4, 2, [3, 1, 7, 5], {"SYS U": 6}),
    "20-adroit-a100-pcie-truncated-cpulist.txt": (4, 1, [0, 0, 1, 1], {"NODE A": 2, "SYS A": 4}),
    "22-a100-sxm-plus-pcie-mixed.txt": (4, 0, None, {"NV12 K": 1, "SYS A": 4, "PIX A": 1}),
    "23-h100-pcie-8-crossed-bridges.txt": (
        8, 0, [0, 0, 0, 1, 1, 1, 1, 1], {"NV12 K": 4, "NODE A": 10, "SYS A": 14},
    ),
    "26-della-h100-empty-affinity.txt": (8, 6, [0] * 4 + [1] * 4, {"NV18 K": 28}),
    "28-h20-8-rail-nics.txt": (8, 8, [0] * 4 + [1] * 4, {"NV18 K": 28}),
    "30-b200-8-merged-cells.txt": (8, 16, [0] * 4 + [1] * 4, {"NV18 K": 28}),
    "34-gb200-4-numa-ids.txt": (4, 0, [0, 0, 1, 1], {"NV18 K": 6}),
    "35-gb200-4-cdmm.txt": (4, 0, [0, 0, 1, 1], {"NV18 K": 6}),
    "38-8gpu-pix-pxb-sys-mlx5.txt": (8, 1, None, {"PIX U": 4, "PXB U": 8, "SYS U": 16}),
    "40-8gpu-doc-mixed-tabs-spaces.txt": (8, 0, None, {"PIX U": 4, "PHB U": 8, "SYS U": 16}),
    "42-l40-4-two-socket-nic.txt": (4, 2, [0, 0, 1, 1], {"NODE A": 2, "SYS A": 4}),
    "44-rtx4090-8-all-sys.txt": (8, 2, [0] * 4 + [1] * 4, {"NODE U": 12, "SYS U": 16}),
    "46-6gpu-pix-node-sys.txt": (6, 0, [0, 0, 0, 0, 1, 1], {"PIX U": 3, "NODE U": 4, "SYS U": 8}),
    "49-rtx3090-2-nvlink.txt": (2, 0, [0, 0], {"NV4 K": 1}),
    "51-rtx5090-4090-5gpu-workstation.txt": (
        5, 0, [1, 0, 0, 0, 0], {"SYS A": 4, "PHB A": 2, "NODE A": 4},
    ),
    "54-rtx5060ti-4-phb.txt": (4, 0, [0] * 4, {"PHB U": 6}),
    "56-a100-4-cgroup-affinity.txt": (4, 3, [0, 0, 1, 1], {"NV4 K": 6}),
    "57-h100-1gpu-job-6nic.txt": (1, 6, [0], {}),
    "60-rtx-2-nv2-ansi-underline.txt": (2, 0, [0, 0], {"NV2 K": 1}),
    "61-4gpu-node-vm-ansi-underline.txt": (4, 0, [0] * 4, {"NODE U": 6}),
    "63-ml-engineering-a100-8-tight.txt": (8, 0, [0] * 4 + [1] * 4, {"NV12 K": 28}),
    "65-h200-x2-vm-ansi.txt": (2, 0, [0, 0], {"NV18 K": 1}),
    "66-h200-x4-vm-ansi.txt": (4, 0, [0, 0, 0, 0], {"NV18 K": 6}),
}  # fmt: skip


def read(name: str) -> Topology:
    return read_topo_text((FOLDER / name).read_text())


def pairs(topology: Topology) -> dict[str, int]:
    gpus = topology.of_kind(DeviceKind.GPU)
    links = [topology.link(one.id, other.id) for one, other in combinations(gpus, 2)]
    names = [f"NV{li.lanes}" if li.kind is LinkKind.NVLINK else li.kind.name for li in links]
    return dict(Counter(f"{n} {li.knowledge.name[0]}" for n, li in zip(names, links, strict=True)))


def test_every_file_is_either_a_model_or_refused():
    assert {path.name for path in FOLDER.iterdir()} == MODELS.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", MODELS)
def test_a_posted_matrix_reads_into_its_model(name):
    gpus, nics, nodes, links = MODELS[name]
    topology = read(name)
    assert len(topology.of_kind(DeviceKind.GPU)) == gpus
    assert len(topology.of_kind(DeviceKind.NIC)) == nics
    found = [gpu.numa_node for gpu in topology.of_kind(DeviceKind.GPU)]
    assert found == (nodes or [None] * gpus)
    assert pairs(topology) == links
    assert all(gpu.health is Health.GOOD for gpu in topology.of_kind(DeviceKind.GPU))


@pytest.mark.parametrize("name", REFUSED)
def test_a_paste_that_was_cut_is_refused_with_what_is_missing(name):
    with pytest.raises(TopologyError, match=REFUSED[name]):
        read(name)


@pytest.mark.parametrize("name", MODELS)
def test_every_pair_but_of_nics_is_linked_both_ways_alike(name):
    topology = read(name)
    assert len({(li.source, li.target) for li in topology.links}) == len(topology.links)
    for one, other in combinations(topology.devices, 2):
        if {one.kind, other.kind} == {DeviceKind.NIC}:
            continue
        there, back = topology.link(one.id, other.id), topology.link(other.id, one.id)
        assert there.reversed() == back


# Traps of real text


def test_header_names_without_separators_are_told_apart():
    text = "GPU0GPU1GPU2mlx5_0CPU AffinityNUMA AffinityGPU NUMA ID\n" + "\n".join(
        [
            "GPU0 X PIX SYS SYS 0-3 0 N/A",
            "GPU1 PIX X SYS SYS 0-3 0 N/A",
            "GPU2 SYS SYS X PIX 4-7 1 N/A",
        ]
    )
    topology = read_topo_text(text)
    assert [device.name for device in topology.devices][:4] == ["GPU0", "GPU1", "GPU2", "mlx5_0"]
    assert topology.device("gpu:2").numa_node == 1


def test_two_digit_gpus_in_a_glued_header_are_told_apart():
    names = [f"GPU{i}" for i in range(12)]
    rows = [" ".join([n, *("X" if n == o else "SYS" for o in names)]) for n in names]
    topology = read_topo_text("".join(names) + "\n" + "\n".join(rows))
    assert [gpu.index for gpu in topology.of_kind(DeviceKind.GPU)] == list(range(12))


def test_cells_run_together_are_told_apart():
    topology = read("30-b200-8-merged-cells.txt")
    assert topology.link("gpu:2", "nic:mlx5_8").kind is LinkKind.PXB
    assert topology.link("gpu:2", "nic:mlx5_9").kind is LinkKind.NODE
    assert topology.link("gpu:4", "nic:mlx5_10").kind is LinkKind.PXB
    assert topology.device("gpu:7").cpus[:2] == (56, 57)


@pytest.mark.parametrize("separator", ["\t", "    "])
def test_a_cpu_list_run_into_its_numa_node_is_parted_as_in_other_rows(separator):
    rows = [
        ["", "GPU0", "GPU1", "GPU2", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"],
        ["GPU0", " X ", "SYS", "SYS", "0-55,112-167", "0", "N/A"],
        ["GPU1", "SYS", " X ", "NODE", "56-111,168-223", "1", "N/A"],
        ["GPU2", "SYS", "NODE", " X ", "56-111,168-2231", "N/A"],
    ]
    topology = read_topo_text("\n".join(separator.join(row) for row in rows))
    assert topology.device("gpu:2").numa_node == 1
    assert topology.device("gpu:2").cpus == topology.device("gpu:1").cpus


def test_a_list_and_node_that_no_other_row_explains_are_parted_at_one_digit():
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t56-111,168-2231"
    gpu = read_topo_text(text).device("gpu:0")
    assert (gpu.numa_node, gpu.cpus[-1]) == (1, 223)


def test_affinity_that_makes_no_sense_is_missing_and_harms_nothing_else():
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0 X PIX 7-3 0\nGPU1 PIX X a b c d"
    topology = read_topo_text(text)
    assert topology.link("gpu:0", "gpu:1").kind is LinkKind.PIX
    for gpu in topology.of_kind(DeviceKind.GPU):
        assert gpu.numa_node is None
        assert {"numa_node", "cpus"} <= set(gpu.missing)


def test_two_tabs_before_the_gpu_numa_id_do_not_shift_it():
    topology = read("28-h20-8-rail-nics.txt")
    assert [gpu.numa_node for gpu in topology.of_kind(DeviceKind.GPU)] == [0] * 4 + [1] * 4
    assert topology.link("gpu:0", "cpu:0").kind is LinkKind.PHB


def test_an_empty_cpu_column_stays_empty():
    topology = read("26-della-h100-empty-affinity.txt")
    assert [gpu.cpus for gpu in topology.of_kind(DeviceKind.GPU)] == [()] * 4 + [(1,)] * 4
    assert "cpus" in topology.device("gpu:0").missing
    assert "cpus" not in topology.device("gpu:4").missing


def test_comment_signs_blank_lines_indentation_and_colours_are_ignored():
    plain = read("49-rtx3090-2-nvlink.txt")
    lines = (FOLDER / "49-rtx3090-2-nvlink.txt").read_text().splitlines()
    for dressed in (
        "\n".join(f"# {line}" for line in lines),
        "\n\n".join(lines),
        "\n".join(f"      {line}" for line in lines),
        "\r\n".join(lines),
        "\n".join(f"\x1b[4m{line}\x1b[0m" for line in lines),
        "$ nvidia-smi topo -m\n" + "\n".join(lines),
    ):
        assert read_topo_text(dressed) == plain


def test_a_wrapped_legend_line_that_starts_with_numa_is_no_row():
    name = "65-h200-x2-vm-ansi.txt"
    text = (FOLDER / name).read_text().replace("between NUMA nodes", "between\nNUMA nodes")
    assert read_topo_text(text) == read(name)


def test_a_second_matrix_after_the_first_is_not_read():
    name = "54-rtx5060ti-4-phb.txt"
    p2p = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tOK\tOK\tOK\nGPU1\tOK\tX\tOK\tOK\n"
    assert read_topo_text((FOLDER / name).read_text() + "\n" + p2p) == read(name)


def test_soc_is_the_older_name_of_sys():
    name = "38-8gpu-pix-pxb-sys-mlx5.txt"
    assert read_topo_text((FOLDER / name).read_text().replace("SYS", "SOC")) == read(name)


def test_topo_mp_never_proves_that_there_is_no_nvlink():
    links = read("18-levante-a100-4-topo-mp.txt").links
    assert Knowledge.ABSENT not in {link.knowledge for link in links}


def test_a_legend_with_nvlink_proves_that_pairs_without_it_have_none():
    text = (FOLDER / "61-4gpu-node-vm-ansi-underline.txt").read_text()
    legend = "\nLegend:\n\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    assert pairs(read_topo_text(text)) == {"NODE U": 6}
    assert pairs(read_topo_text(text + legend)) == {"NODE A": 6}


def test_cut_cpu_lists_are_taken_as_they_stand():
    assert read("20-adroit-a100-pcie-truncated-cpulist.txt").device("gpu:2").cpus == (
        1, 3, 5, 7, 9, 11,
    )  # fmt: skip


def test_of_a_list_of_nodes_the_lowest_has_the_cpus():
    assert read("10-power9-traverse-1gpu-job.txt").device("gpu:0").numa_node == 0
    assert read("34-gb200-4-numa-ids.txt").device("gpu:3").numa_node == 1


def test_a_gpu_memory_node_is_not_the_host_node_and_means_c2c():
    grace = read("34-gb200-4-numa-ids.txt")
    assert [d.id for d in grace.of_kind(DeviceKind.CPU)] == ["cpu:0", "cpu:1"]
    assert grace.link("gpu:1", "cpu:0").kind is LinkKind.C2C
    assert grace.link("gpu:1", "cpu:1").kind is LinkKind.SYS
    assert read("35-gb200-4-cdmm.txt").link("gpu:1", "cpu:0").kind is LinkKind.PHB


def test_an_all_sys_matrix_is_ranked_by_affinity():
    topology = read("44-rtx4090-8-all-sys.txt")
    near, far = topology.link("gpu:0", "gpu:3"), topology.link("gpu:0", "gpu:4")
    assert link_cost_s(near) < link_cost_s(far)


def test_sys_inside_a_node_stands_where_the_matrix_does_rank():
    topology = read("51-rtx5090-4090-5gpu-workstation.txt")
    assert topology.link("gpu:0", "gpu:1").kind is LinkKind.SYS
    uneven = "\tGPU0\tGPU1\tGPU2\tNUMA\nGPU0 X SYS PIX 0\nGPU1 SYS X SYS 0\nGPU2 PIX SYS X 0\n"
    assert read_topo_text(uneven).link("gpu:0", "gpu:1").kind is LinkKind.SYS


def test_node_between_different_nodes_counts_as_sys():
    text = "\tGPU0\tGPU1\tNUMA\nGPU0 X NODE 0\nGPU1 NODE X 1\n"
    assert read_topo_text(text).link("gpu:0", "gpu:1").kind is LinkKind.SYS


def test_nvlink_across_sockets_is_nvlink_and_says_nothing_of_numa():
    topology = read("23-h100-pcie-8-crossed-bridges.txt")
    assert topology.link("gpu:0", "gpu:5").kind is LinkKind.NVLINK
    assert (topology.device("gpu:0").numa_node, topology.device("gpu:5").numa_node) == (0, 1)


def test_all_pairs_of_a_hypervisor_that_hides_the_sockets_read_as_they_stand():
    assert pairs(read("06-azure-ndv2-v100-vm.txt"))["NODE A"] == 12


def test_without_numa_columns_no_node_is_invented():
    topology = read("02-dgx1-v100-hybrid-cube-mesh.txt")
    assert topology.of_kind(DeviceKind.CPU) == []
    assert topology.device("gpu:0").missing[-1] == "numa_node"


def test_missing_nic_rows_do_not_matter():
    lines = (FOLDER / "42-l40-4-two-socket-nic.txt").read_text().splitlines()
    without = "\n".join(line for line in lines if not line.startswith("NIC"))
    assert read_topo_text(without) == read("42-l40-4-two-socket-nic.txt")


# Lost NVLinks


def whole_31() -> str:
    """File 31 with its header back and GPU6 and GPU7 mended from the other half."""
    rows = [line.split() for line in (FOLDER / next(n for n in REFUSED if n[:2] == "31"))
            .read_text().splitlines()][:6]  # fmt: skip
    matrix = [row[1:9] for row in rows]
    for mended in (6, 7):
        matrix.append([matrix[i][mended] for i in range(6)] + ["X", "NV18"])
    matrix[7][6:] = ["NV18", "X"]
    legend = "NV#  = Connection traversing a bonded set of # NVLinks"
    lines = [" ".join([f"GPU{i}", *cells]) for i, cells in enumerate(matrix)]
    return "\n".join([" ".join(f"GPU{i}" for i in range(8)), *lines, legend])


def test_a_gpu_that_lost_all_nvlinks_of_its_fabric_is_degraded_and_its_peers_are_not():
    topology = read_topo_text(whole_31())
    assert pairs(topology) == {"NV18 K": 21, "NODE D": 3, "SYS D": 4}
    health = [gpu.health for gpu in topology.of_kind(DeviceKind.GPU)]
    assert health == [Health.DEGRADED if i == 2 else Health.GOOD for i in range(8)]


def test_a_gpu_with_fewer_nvlinks_than_its_fabric_is_degraded():
    rows = [
        "X NV18 NV18 NV16",
        "NV18 X NV18 NV16",
        "NV18 NV18 X NV16",
        "NV16 NV16 NV16 X",
    ]
    lines = [f"GPU{place} {row}" for place, row in enumerate(rows)]
    text = "\n".join(["GPU0 GPU1 GPU2 GPU3", *lines])
    assert pairs(read_topo_text(text)) == {"NV18 K": 3, "NV16 D": 3}


# Refusals


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no line starting with GPU0"),
        ("Tue Nov 28 10:00:00 2023\n| NVIDIA-SMI 535 |", "it has no line starting with GPU0"),
        ("GPU0 X NV4\nGPU1 NV4 X", "no header line"),
        ("GPU0 GPU1\nGPU0 X NV4", "no row for GPU1: the paste was cut"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4", "row GPU1 ends after 1 of 2 cells"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 N", "no row for GPU1: the paste was cut"),
        ("GPU0\nGPU0 X\nGPU1 NV4 X", "row GPU1 is not in the header"),
        ("GPU0 GPU1\nGPU0 X OK\nGPU1 OK X", "row GPU0 ends after 1 of 2 cells, then 'OK'"),
        ("GPU0 GPU1 GPU2\nGPU0 X OK OK", "column GPU1: expected X, SYS, .* got 'OK'"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV2 X", "GPU0 to GPU1 reads NV4, GPU1 to GPU0 reads NV2"),
        ("GPU0 GPU1\nGPU0 X X\nGPU1 X X", "X belongs on the diagonal"),
        ("GPU0 GPU1\nGPU0 SYS SYS\nGPU1 SYS X", "X belongs on the diagonal"),
        ("GPU0 GPU1\nGPU0 X NV120\nGPU1 NV120 X", "no GPU has that many"),
        ("GPU0 GPU0\nGPU0 X X", "names a device twice"),
    ],
)
def test_what_cannot_be_a_whole_matrix_is_refused_with_the_place(text, reason):
    with pytest.raises(TopologyError, match=reason):
        read_topo_text(text)
