"""Shared memory of its own for each test, and processes that can be killed."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shm() -> Iterator[str]:
    """A directory in /dev/shm. It must be on tmpfs: that is what services share."""
    directory = tempfile.mkdtemp(prefix="sits-test-", dir="/dev/shm")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(role, *arguments)` runs pool_peer.py; what is still alive at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def start_peer(role: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(Path(__file__).with_name("pool_peer.py")), role, *arguments]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        running.append(child)
        return child

    yield start_peer
    for child in running:
        child.kill()
        child.communicate()
