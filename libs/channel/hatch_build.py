"""Compiles the ring's C core beside its Python modules, or leaves it out.

Without a compiler or Python's headers the package works all the same: links then stay on
gRPC streams. `python hatch_build.py` compiles in place, for a checkout whose C code changed.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent / "sits_channel" / "_ring.c"
# The limited API: one file for CPython 3.11 and every newer one.
TARGET = SOURCE.with_name("_ring.abi3.so")
# C11 is gcc's `gnu11`; the GNU part is for `syscall` and `sched_getcpu`.
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


class RingHook(BuildHookInterface[Any]):
    """Adds the compiled file to wheels, which then are for this platform only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        if why_not := compile_ring():
            self.app.display_warning(f"links will use gRPC only: {why_not}")
            return
        build_data["artifacts"].append(f"sits_channel/{TARGET.name}")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"


def compile_ring() -> str:
    """Why there is no compiled ring; empty when there is one."""
    if sys.platform != "linux":
        return "the ring sleeps on futexes, which only Linux has"
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        return f"no Python.h in {include}"
    # Under its final name it appears whole: other processes may have the old one loaded.
    with tempfile.TemporaryDirectory(dir=SOURCE.parent) as folder:
        made = Path(folder, TARGET.name)
        command = [*compiler(), *FLAGS, f"-I{include}", str(SOURCE), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        except subprocess.CalledProcessError as error:
            return f"{shlex.join(command)} failed: {error.stderr}"
        os.replace(made, TARGET)
    return ""


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))


if __name__ == "__main__":
    sys.exit(compile_ring() or 0)
