"""Whatever is done to a file, a reader gives a whole model or a reason, and never crashes."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sits_topology.model import DeviceKind, Topology, TopologyError
from sits_topology.nccl_xml import read_nccl_xml
from sits_topology.snapshot import to_proto
from sits_topology.topo_text import read_topo_text

DATA = Path(__file__).parent / "data"
TEXTS = sorted(path.read_text() for path in (DATA / "topo").iterdir())
XMLS = sorted(path.read_text() for path in (DATA / "nccl").iterdir())
PIECES = st.sampled_from(
    ["", " ", "\t", "\n", "X", "SYS", "NV", "NV4", "NV99999999999", "GPU0", "GPU7", "N/A", "-", ",",
     "0-99999999", "NUMA", "\x1b[4m", "#", "\0", "é", '"', "<", ">", "/>", "=", "0x", "numaid"]
)  # fmt: skip
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def damaged(draw: st.DrawFn, originals: list[str]) -> str:
    """An original with a few stretches replaced by pieces."""
    text = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(PIECES) + text[end:]
    return text


def check_whole(topology: Topology) -> None:
    gpus = topology.of_kind(DeviceKind.GPU)
    for one, other in combinations(gpus, 2):
        assert topology.link(one.id, other.id).reversed() == topology.link(other.id, one.id)
    snapshot = to_proto(topology, host="h", node_name="n")
    assert all(0.0 < weight.weight <= 1.0 for weight in snapshot.weights)


def check(reader: Callable[[str], Topology], text: str) -> None:
    try:
        topology = reader(text)
    except TopologyError:
        return
    check_whole(topology)


@FUZZ
@given(damaged(TEXTS))
@example("GPU0")
@example("GPU0\nGPU0X")
@example("".join(f"GPU{n}" for n in range(300)))
def test_a_damaged_matrix_is_a_whole_model_or_a_reason(text):
    check(read_topo_text, text)


@FUZZ
@given(damaged(XMLS))
@example("<system><cpu numaid='0'/><cpu numaid='0'/></system>")
def test_a_damaged_xml_is_a_whole_model_or_a_reason(text):
    check(read_nccl_xml, text)


@pytest.mark.parametrize("path", sorted((DATA / "topo").iterdir()), ids=lambda path: path.name)
def test_a_matrix_cut_anywhere_in_its_cells_is_refused(path):
    """At each character up to the last cell of the last GPU row."""
    text = path.read_text()
    try:
        gpus = len(read_topo_text(text).of_kind(DeviceKind.GPU))
    except TopologyError:
        return
    last_row = next(
        line for line in text.splitlines() if line.lstrip(" #").startswith(f"GPU{gpus - 1}") and
        "X" in line
    )  # fmt: skip
    end = text.index(last_row) + last_row.index("X")
    for cut in range(0, end, 7):
        with pytest.raises(TopologyError):
            read_topo_text(text[:cut])
