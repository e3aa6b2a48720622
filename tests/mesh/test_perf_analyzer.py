"""perf_analyzer, where it is installed, runs unmodified in all its ways."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sits_cli.mesh import Mesh

BINARY = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")
SCRIPT = Path(__file__).parents[2] / "scripts" / "perf_analyzer.sh"
RUNS = 7
REQUESTS = "50"

pytestmark = [
    pytest.mark.mesh,
    pytest.mark.skipif(BINARY is None, reason="no perf_analyzer: install it, or name it in "
                       "PERF_ANALYZER"),
]  # fmt: skip


def test_each_way_ends_well_and_shows_queue_and_compute_times(solo: Mesh) -> None:
    done = subprocess.run(
        [SCRIPT, BINARY or "", solo.addresses.front, "perf"],
        env=os.environ | {"REQUESTS": REQUESTS}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 3 + RUNS
