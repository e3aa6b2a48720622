"""The device an executor announces."""

from pathlib import Path

import pytest

from sits_core.numa import bound_node
from sits_executor.device import device_name, is_gpu


def nodes(root: Path, lists: list[str]) -> Path:
    for index, text in enumerate(lists):
        (root / f"node{index}").mkdir()
        (root / f"node{index}" / "cpulist").write_text(text + "\n")
    return root


def test_a_process_within_one_node_is_bound_to_it(tmp_path: Path) -> None:
    folder = nodes(tmp_path, ["0-3,8-11", "4-7"])
    assert bound_node(folder, frozenset({0, 9})) == 0
    assert bound_node(folder, frozenset({4, 7})) == 1


def test_a_process_across_nodes_is_not_bound(tmp_path: Path) -> None:
    assert bound_node(nodes(tmp_path, ["0-3", "4-7"]), frozenset({3, 4})) == -1


def test_a_machine_that_tells_nothing_is_not_bound(tmp_path: Path) -> None:
    assert bound_node(tmp_path, frozenset({0})) == -1
    assert bound_node(nodes(tmp_path, ["?"]), frozenset({0})) == -1


def test_the_setting_wins_and_an_unbound_process_is_on_node_0() -> None:
    assert device_name("GPU-abc", 1, {"NVIDIA_VISIBLE_DEVICES": "GPU-def"}) == "GPU-abc"
    assert device_name("", 1, {}) == "cpu:1"
    assert device_name("", -1, {}) == "cpu:0"
    assert is_gpu("MIG-1")
    assert not is_gpu("cpu:0")


@pytest.mark.parametrize("given", ["GPU-8c187dfb-d3de-1b8e-1e8d-1b3a0f4e7c11", "MIG-1234-5678"])
def test_the_one_gpu_that_a_container_was_given_is_its_device(given: str) -> None:
    assert device_name("", 0, {"NVIDIA_VISIBLE_DEVICES": given}) == given


@pytest.mark.parametrize("given", ["", "all", "none", "void", "0", "GPU-a,GPU-b"])
def test_what_names_no_single_gpu_is_none(given: str) -> None:
    assert device_name("", 0, {"NVIDIA_VISIBLE_DEVICES": given}) == "cpu:0"
