"""The parts for one GPU go their whole way without one: what they find there is no figure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PARTS = ("faults", "launch", "own_cost", "graph_memory", "equal")
"""Those that take seconds."""


def test_every_part_runs_without_a_gpu_and_says_what_it_found(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpu.run", "--device", "cpu", "--quick", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path), "--parts", *PARTS],
        env={**os.environ, "PYTHONPATH": str(ROOT / "bench")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert "failed" not in report["parameters"], done.stderr
    named = {row["figure"].partition(":")[0] for row in report["figures"]}
    assert named == {"faults", "launch", "own cost", "graph memory", "equal"}
    equal = [row for row in report["figures"] if row["figure"].startswith("equal")]
    assert [row["holds"] for row in equal if row["bar"]] == [True] * 3
    assert json.loads((tmp_path / "one-gpu.json").read_text()) == report
