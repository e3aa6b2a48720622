"""Threads are sized from what the container may use."""

from pathlib import Path

import pytest

from sits_executor.cpu_quota import cpus, threads_per_instance


def cgroup(root: Path, path: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{path}\n")
    for folder, text in limits.items():
        target = root / "sys/fs/cgroup" / folder
        target.mkdir(parents=True, exist_ok=True)
        (target / "cpu.max").write_text(text)
    return root


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 8),
        ({"": "max 100000"}, 8),
        ({"": "200000 100000"}, 2),
        ({"a/b": "350000 100000"}, 3),
        ({"a/b": "max 100000", "a": "150000 100000"}, 1),
        ({"a/b": "50000 100000"}, 1),
        ({"a/b": "9999999 100000"}, 8),
        ({"a/b": "nonsense"}, 8),
        ({"other": "100000 100000"}, 8),
    ],
)
def test_the_smallest_quota_up_to_the_root_counts(
    tmp_path: Path, limits: dict[str, str], expected: int
) -> None:
    assert cpus(cgroup(tmp_path, "/a/b", limits), affinity=8) == expected


def test_without_cgroup_files_the_affinity_counts(tmp_path: Path) -> None:
    assert cpus(tmp_path, affinity=3) == 3


def test_a_cgroup_seen_from_another_namespace_reads_the_root(tmp_path: Path) -> None:
    assert cpus(cgroup(tmp_path, "/../..", {"": "100000 100000"}), affinity=8) == 1


def test_instances_divide_the_cpus() -> None:
    assert [threads_per_instance(8, n) for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
