"""Folders that outlive nobody."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sits_core.scratch import Scratch


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_is_private_and_goes_when_it_is_removed(tmp_path: Path) -> None:
    scratch = Scratch("x")
    assert scratch.path.parent == tmp_path
    assert scratch.path.name.startswith("sits-x-")
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    (scratch.path / "file").write_text("something")
    scratch.remove()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


HOLDING = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from sits_core.scratch import Scratch
scratch = Scratch("x")
(scratch.path / "socket").touch()
print(scratch.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_held_is_not(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        held = Path(other.stdout.readline().strip())
        mine, unlike = Scratch("x"), tmp_path / "sits-y-1"
        unlike.mkdir()
        assert (held / "socket").exists(), "its process lives"
        other.kill()
    again = Scratch("x")
    assert not held.exists()
    assert mine.path.is_dir()
    assert unlike.is_dir()
    for each in (mine, again):
        each.remove()


def test_links_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / "sits-x-link").symlink_to(precious)
    Scratch("x").remove()
    assert precious.is_dir()
