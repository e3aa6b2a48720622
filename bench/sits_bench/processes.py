"""Starts servers as children, tied to our life, and finds all processes that belong to them."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sits_bench.loadgen import BenchError
from sits_bench.paths import WORK
from sits_cli import tied
from sits_cli.supervisor import last_lines

STOP_S, POLL_S = 10.0, 0.05


@contextmanager
def started(
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    cpus: set[int] | None = None,
    folder: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A child whose output goes to .sits/bench/logs/NAME.log. Ended with all its descendants."""
    log = WORK / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own programs
            tied.command(argv),
            env={**os.environ, **(env or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    if cpus:
        # Before it has any thread: those it starts later inherit it.
        os.sched_setaffinity(process.pid, cpus)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end; whatever of its family is left is killed."""
    family = descendants(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    for pid in {*family, *descendants(process.pid), process.pid}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, without `pid` itself."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found, open_ = [], [pid]
    while open_:
        below = children.get(open_.pop(), [])
        found += below
        open_ += below
    return found


def family(pid: int) -> list[int]:
    return [pid, *descendants(pid)]


def _parent(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1])


def rss_bytes(pids: Sequence[int]) -> int:
    """Memory of the processes; what several share is counted once."""
    total_kib = 0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total_kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kib << 10


def wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], name: str, timeout_s: float
) -> None:
    """Raises `BenchError` with the end of its log when it ends or takes too long."""
    limit = time.monotonic() + timeout_s
    while not ready():
        if process.poll() is not None or time.monotonic() > limit:
            status = process.poll()
            what = f"not ready in {timeout_s:g} s" if status is None else f"ended with {status}"
            words = "\n  ".join(last_lines(WORK / "logs" / f"{name}.log"))
            raise BenchError(f"{name}: {what}; its log ends with\n  {words}")
        time.sleep(POLL_S)


def listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, int(port))) == 0


def require_program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"{name} is missing: apt-get install {package}")
    return found
