"""A worker that crashes fails the test that it ran, and all others still run."""

import shutil
import subprocess
import sys
from pathlib import Path

CRASHES_ONCE = """
import os, pathlib

def test_crashes_once():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        os.abort()
"""


def test_the_rest_of_a_crashed_worker_is_run_and_the_run_ends(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text(CRASHES_ONCE)
    (tmp_path / "test_c.py").write_text(CRASHES_ONCE + "\ndef test_after(): pass\n")
    (tmp_path / "test_d.py").write_text("def test_alone(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "2 failed, 4 passed" in done.stdout
