"""The package builds with its C core where that can be compiled, and without it elsewhere."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from sits_channel import ring

SOURCES = Path(__file__).parents[2] / "libs" / "channel"
CORE = "sits_channel/_ring.abi3.so"

can_compile = (
    sys.platform == "linux"
    and shutil.which("cc") is not None
    and Path(sysconfig.get_path("include"), "Python.h").exists()
)


def build(tmp_path: Path, path: str) -> Path:
    """The wheel that an installation would make, with `path` as PATH."""
    copy = tmp_path / "channel"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    env = {**os.environ, "PATH": path}
    env.pop("CC", None)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(tmp_path.glob("*.whl"))


def files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_without_a_compiler_the_wheel_is_pure_python(tmp_path: Path) -> None:
    wheel = build(tmp_path, path=str(tmp_path))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "sits_channel/link.py" in files(wheel)
    assert CORE not in files(wheel)


@pytest.mark.skipif(not can_compile, reason="no compiler or no Python headers")
def test_with_a_compiler_the_wheel_carries_the_core_for_every_python(tmp_path: Path) -> None:
    wheel = build(tmp_path, path=os.environ["PATH"])
    assert "-cp311-abi3-linux_" in wheel.name
    assert CORE in files(wheel)
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(CORE, tmp_path)
    use = "import _ring, mmap; _ring.Writer(mmap.mmap(-1, 8192), 0, 4096).try_write(b'x')"
    where = {"PYTHONPATH": str(tmp_path / "sits_channel")}
    subprocess.run([sys.executable, "-c", use], env=where, check=True)


@pytest.mark.skipif(not can_compile, reason="no compiler or no Python headers")
def test_this_checkout_has_the_core_when_it_could_be_compiled() -> None:
    assert ring.available(), f"run {sys.executable} {SOURCES / 'hatch_build.py'}"
