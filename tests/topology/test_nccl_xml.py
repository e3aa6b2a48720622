"""NCCL topology XML reads into the model, or is refused; it never proves that NVLink is absent."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.model import DeviceKind, Topology, TopologyError
from sits_topology.nccl_xml import read_nccl_xml
from sits_topology.sources import read_file
from sits_topology.topo_text import read_topo_text

DATA = Path(__file__).parent / "data"
SWITCH = "0x068000"

REFUSED = {
    "azure-ncv4-graph.xml": "NCCL_GRAPH_FILE, root <graphs>",
    "aws-g5.48xl-topo.xml": "0000:00:16.0 has no class",
}

# GPUs, NICs, CPU nodes with their number of CPUs, GPU pairs by kind, PCIe GB/s of a GPU
MODELS = {
    "a6000-pair-rank0-trimmed-dump.xml": (1, 1, {0: 40, 1: 40}, {}, 24),
    "aws-p4d-24xl-topo.xml": (8, 4, {0: 48, 1: 48}, {"PIX": 4, "PHB": 8, "SYS": 16}, 12),
    "azure-ncv4-topo.xml": (4, 1, {0: 24, 1: 24, 2: 24, 3: 24}, {"SYS": 6}, 12),
    "azure-ndv2-topo.xml": (8, 1, {0: 20, 1: 20}, {"PHB": 12, "SYS": 16}, 24),
    "azure-ndv4-topo.xml": (8, 8, dict.fromkeys(range(4), 24), {"PIX": 4, "SYS": 24}, 24),
    "oci-a100-topo-flattened.xml": (
        8,
        8,
        dict.fromkeys((1, 3, 5, 7), 16),
        {"PIX": 4, "SYS": 24},
        24,
    ),
}


def read(name: str) -> Topology:
    return read_nccl_xml((DATA / "nccl" / name).read_text())


def system(*pcis: str, node: int = 0) -> str:
    return f'<system version="1"><cpu numaid="{node}">{"".join(pcis)}</cpu></system>'


def gpu(bus_id: str, *nvlinks: str, attributes: str = "") -> str:
    tag = f'<gpu dev="0" sm="90">{"".join(nvlinks)}</gpu>'
    return f'<pci busid="{bus_id}" class="0x030200" {attributes}>{tag}</pci>'


def nvlink(target: str, count: int, tclass: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def gpu_pairs(topology: Topology):
    for one, other in combinations(topology.of_kind(DeviceKind.GPU), 2):
        yield topology.link(one.id, other.id)


def test_every_file_is_either_a_model_or_refused():
    assert {path.name for path in (DATA / "nccl").iterdir()} == MODELS.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", MODELS)
def test_a_file_reads_into_its_model(name):
    gpus, nics, cpus, pairs, gbps = MODELS[name]
    topology = read(name)
    assert len(topology.of_kind(DeviceKind.GPU)) == gpus
    assert len(topology.of_kind(DeviceKind.NIC)) == nics
    nodes = {cpu.numa_node: len(cpu.cpus) for cpu in topology.of_kind(DeviceKind.CPU)}
    assert nodes == cpus
    assert Counter(link.kind.name for link in gpu_pairs(topology)) == pairs
    assert {device.pcie_gbps for device in topology.of_kind(DeviceKind.GPU)} == {gbps}


@pytest.mark.parametrize("name", MODELS)
def test_a_file_without_nvlink_leaves_it_unknown(name):
    topology = read(name)
    assert {link.knowledge for link in gpu_pairs(topology)} <= {Knowledge.UNKNOWN}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_topology_is_refused_by_its_reason(name):
    with pytest.raises(TopologyError, match=REFUSED[name]):
        read(name)


def test_a_file_is_told_from_text_by_its_first_character(tmp_path):
    dump = tmp_path / "dump"
    dump.write_text("\n" + (DATA / "nccl/azure-ndv4-topo.xml").read_text())
    assert read_file(dump).sources == ("nccl-xml",)
    assert read_file(DATA / "topo/49-rtx3090-2-nvlink.txt").sources == ("topo-m",)


# The same machine in both forms


def no_contradiction(text: Topology, xml: Topology) -> None:
    """NVLink that one of them cannot see is unknown there, never absent."""
    for index_one, index_other in combinations(range(len(text.of_kind(DeviceKind.GPU))), 2):
        ids = [
            [g.id for g in t.of_kind(DeviceKind.GPU) if g.index in (index_one, index_other)]
            for t in (text, xml)
        ]
        said, read_back = text.link(*ids[0]), xml.link(*ids[1])
        if read_back.knowledge is not Knowledge.UNKNOWN:
            assert (said.kind, said.lanes) == (read_back.kind, read_back.lanes)


def test_azure_ncv4_is_one_machine_in_text_and_xml():
    text = read_topo_text((DATA / "topo/16-azure-nc96ads-a100-pcie-pairs-vm.txt").read_text())
    xml = read("azure-ncv4-topo.xml")
    no_contradiction(text, xml)
    for one, other in zip(text.of_kind(DeviceKind.GPU), xml.of_kind(DeviceKind.GPU), strict=True):
        assert one.numa_node == other.numa_node
    for node in range(4):
        assert text.device(f"cpu:{node}").cpus == xml.device(f"cpu:{node}").cpus
    across = {link.kind for link in gpu_pairs(text) if link.kind is not LinkKind.NVLINK}
    assert across == {link.kind for link in gpu_pairs(xml)} == {LinkKind.SYS}


def test_azure_ndv2_is_one_machine_in_text_and_xml():
    """The text's GPUs are permuted and its hypervisor hid a socket; the XML has the sockets
    and no NVLink. The two quads of the cube mesh are as large as the two sockets."""
    text = read_topo_text((DATA / "topo/06-azure-ndv2-v100-vm.txt").read_text())
    xml = read("azure-ndv2-topo.xml")
    no_contradiction(text, xml)
    assert text.device("cpu:0").cpus == xml.device("cpu:0").cpus
    quads = {frozenset(q) for q in combinations(text.of_kind(DeviceKind.GPU), 4) if joined(text, q)}
    sockets = Counter(device.numa_node for device in xml.of_kind(DeviceKind.GPU))
    assert sorted(map(len, quads)) == sorted(sockets.values()) == [4, 4]


def joined(topology: Topology, gpus) -> bool:
    links = (topology.link(one.id, other.id) for one, other in combinations(gpus, 2))
    return all(link.kind is LinkKind.NVLINK for link in links)


# Rules


def test_links_to_one_switch_count_as_many_as_the_smaller_gpu_has():
    text = system(
        gpu(
            "0000:01:00.0",
            nvlink("0000:80:00.0", 10, "0x068000"),
            nvlink("0000:81:00.0", 8, "0x068000"),
        ),
        gpu(
            "0000:02:00.0",
            nvlink("0000:80:00.0", 8, "0x068000"),
            nvlink("0000:81:00.0", 8, "0x068000"),
        ),
    )
    (link,) = gpu_pairs(read_nccl_xml(text))
    assert (link.kind, link.lanes, link.knowledge) == (LinkKind.NVLINK, 16, Knowledge.KNOWN)
    assert link.bandwidth_gbps == pytest.approx(16 * 20.6)


def test_a_hidden_target_counts_as_a_switch():
    hidden = nvlink("fffffff:ffff:ff", 18, "0x068000")
    (link,) = gpu_pairs(
        read_nccl_xml(system(gpu("0000:01:00.0", hidden), gpu("0000:02:00.0", hidden)))
    )
    assert (link.kind, link.lanes) == (LinkKind.NVLINK, 18)


def test_direct_links_join_the_pair_they_name_and_their_lack_is_a_fact():
    text = system(
        gpu("0000:01:00.0", nvlink("0000:02:00.0", 12)),
        gpu("0000:02:00.0", nvlink("0000:01:00.0", 12)),
        gpu("0000:03:00.0"),
    )
    found = [(link.kind, link.lanes, link.knowledge) for link in gpu_pairs(read_nccl_xml(text))]
    assert found == [
        (LinkKind.NVLINK, 12, Knowledge.KNOWN),
        (LinkKind.PHB, None, Knowledge.ABSENT),
        (LinkKind.PHB, None, Knowledge.ABSENT),
    ]


def test_links_to_a_gpu_that_the_file_lacks_are_named_missing():
    device = read("a6000-pair-rank0-trimmed-dump.xml").device("pci:0000:99:00.0")
    assert "nvlink peer 0000:bd:00.0" in device.missing


def test_links_that_end_at_their_own_gpu_leave_nvlink_unknown():
    missing = {m for d in read("azure-ncv4-topo.xml").of_kind(DeviceKind.GPU) for m in d.missing}
    assert "nvlink" in missing


@pytest.mark.parametrize(
    ("attributes", "gbps"),
    [
        ('link_speed="" link_width="0"', 12),
        ('link_speed="Unknown" link_width="8"', 6),
        ("", 12),
        ('link_speed="16.0 GT/s PCIe" link_width="16"', 24),
        ('link_speed="2.5 GT/s" link_width="1"', 0.1875),
        ('link_speed="32 GT/s" link_width="16"', 48),
    ],
)
def test_missing_link_values_mean_what_they_mean_to_nccl(attributes, gbps):
    topology = read_nccl_xml(system(gpu("0000:01:00.0", attributes=attributes)))
    assert topology.device("pci:0000:01:00.0").pcie_gbps == gbps


def test_the_nonsense_speed_of_a_virtual_bridge_does_not_slow_its_gpus():
    bridge = (
        '<pci busid="0000:00:01.0" class="0x060400" link_speed="2.5 GT/s" link_width="1">{}</pci>'
    )
    card = gpu("0000:01:00.0", attributes='link_speed="32 GT/s" link_width="16"')
    assert read_nccl_xml(system(bridge.format(card))).device("pci:0000:01:00.0").pcie_gbps == 48


def test_switches_of_switches_are_pxb_and_one_switch_is_pix():
    leaf = '<pci busid="0000:0{0}:00.0" class="0x060400">{1}</pci>'
    inner = leaf.format(2, gpu("0000:11:00.0") + gpu("0000:12:00.0")) + leaf.format(
        3, gpu("0000:13:00.0")
    )
    topology = read_nccl_xml(system(leaf.format(1, inner)))
    assert topology.link("pci:0000:11:00.0", "pci:0000:12:00.0").kind is LinkKind.PIX
    assert topology.link("pci:0000:11:00.0", "pci:0000:13:00.0").kind is LinkKind.PXB


def test_a_nic_is_as_near_to_its_gpus_as_the_tree_says():
    topology = read("azure-ndv4-topo.xml")
    assert topology.link("pci:0003:00:00.0", "nic:0103:00:00.0").kind is LinkKind.PIX
    assert topology.link("pci:0003:00:00.0", "nic:0101:00:00.0").kind is LinkKind.SYS
    assert read("a6000-pair-rank0-trimmed-dump.xml").device("nic:mlx5_0+mlx5_1").numa_node == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<system", "not well-formed"),
        ("<topology/>", "expected the root <system>"),
        ("<system/>", "has no <cpu>"),
        ('<system><cpu numaid="x"/></system>', "expected a number in numaid"),
        ('<system><cpu numaid="0" affinity="zz"/></system>', "expected 32-bit hexadecimal words"),
        (system('<pci busid="nowhere" class="0x030200"/>'), "expected a PCI address"),
        (system(gpu("0000:01:00.0", nvlink("0000:02:00.0", -1))), "expected a number in count"),
        (
            system('<pci busid="0000:01:00.0" class="0x060400">' * 40 + "</pci>" * 40),
            "more than 32 bridges",
        ),
    ],
)
def test_a_broken_file_is_refused_by_its_reason(text, reason):
    with pytest.raises(TopologyError, match=reason):
        read_nccl_xml(text)


@pytest.mark.parametrize(
    "dtd",
    [
        '<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE system [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE system SYSTEM "http://localhost/evil.dtd">',
    ],
)
def test_a_dtd_is_refused_whatever_it_declares(dtd):
    with pytest.raises(TopologyError, match="DOCTYPE"):
        read_nccl_xml(f'{dtd}<system version="1"><cpu numaid="0">&b;</cpu></system>')


def test_a_file_larger_than_any_topology_is_refused(tmp_path):
    large = tmp_path / "large.xml"
    large.write_bytes(b"<" * ((4 << 20) + 1))
    with pytest.raises(TopologyError, match="larger than"):
        read_file(large)
