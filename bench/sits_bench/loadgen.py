"""Builds the load generator, runs it, reads its results."""

import json
import math
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from sits_bench.paths import BENCH, WORK
from sits_sim.load import Floats, Ints

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
CONNECTIONS: Final = 4
EXTRA_S: Final = 30.0
"""Beyond warm-up, duration and drain: then it hangs, and is killed."""
OK: Final = 0

_ARRIVAL = np.dtype([("at_s", "<f8"), ("request", "<u4"), ("zero", "<u4")])


class BenchError(Exception):
    """A benchmark cannot go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds."""

    count: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float
    mean: float


SLOWED: Final = 3.0
"""A machine that takes so many times longer than usual for the same work, or does not let a
thread run that slept for half of a stall, is its cause. Two busy threads of a core cost each
other less than that."""


class Stall(NamedTuple):
    """Nothing was answered for `ms` from `at_s` of the run on, though something was under way:
    `open` requests at its end. Meanwhile the same work took `slowed` times the CPU time of usual,
    and the thread that did it did not run for `apart_ms` at most."""

    at_s: float
    ms: float
    open: int
    slowed: float
    apart_ms: float

    @property
    def of_machine(self) -> bool:
        """Whether the machine stood still, and not what was measured."""
        return self.slowed >= SLOWED or self.apart_ms >= self.ms / 2


def own_stalls(stalls: Sequence[Stall]) -> int:
    """How many are not the machine's."""
    return sum(not stall.of_machine for stall in stalls)


@dataclass(frozen=True, slots=True)
class Load:
    """One run. Closed loop: `in_flight` requests under way at all times. Open loop: they leave
    at `at_s`, each with the request numbered in `which` (0 when None). `stall_ms`: time without
    an answer from which on it is told; 0 = nobody looks, which would cost a hundredth of a core.
    `timeout_ms`: what has no answer so long after it was due is given up, and says so to the
    server; a request that leaves late takes only what is left with it. 0 = no limit.
    """

    requests: Path
    in_flight: int = 0
    at_s: Floats | None = None
    which: Ints | None = None
    connections: int = CONNECTIONS
    warm_up_s: float = 1.0
    duration_s: float = 5.0
    drain_s: float = 5.0
    timeout_ms: float = 0.0
    headers: Sequence[str] = ()
    max_open: int = 20_000
    stall_ms: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it takes, more or less."""
        return self.warm_up_s + self.duration_s


class Copies(NamedTuple):
    """Copies of payload bytes that the services count for each request; NaN = nobody counts.
    `between`: by those behind the front door."""

    everywhere: float
    between: float


UNKNOWN: Final = Copies(math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run found. Rates are over the window after the warm-up; latencies are those of
    requests due in it: answered, refused at once, or without an answer in time (`expired`), of
    which `held` never left, as the server allowed no more streams or took nothing more.
    `cpu_s` is the servers' CPU time, `cpu_us` that of each answered request."""

    seconds: float
    ok: int
    failed: int
    per_s: float
    answered: Latencies
    refused: Latencies
    expired: Latencies
    lag: Latencies
    statuses: Mapping[int, int]
    unanswered: int
    unsent: int
    pushbacks: int
    cpu_s: float
    cpu_us: float
    own_cpu_us: float
    first_error: str
    kinds: Sequence[Latencies] = field(default_factory=list)
    copies: Copies = UNKNOWN
    stalls: Sequence[Stall] = ()
    held: int = 0
    reconnects: int = 0
    goodbye: str = ""

    @property
    def refused_share(self) -> float:
        ended = self.answered.count + self.refused.count + self.expired.count
        return self.refused.count / max(1, ended)


def build() -> Path:
    """The program, compiled anew when its source is newer."""
    source, program = BENCH / "loadgen.c", WORK / "loadgen"
    if program.is_file() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BenchError(f"no C compiler for {source.name}: {INSTALL}")
    WORK.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-pthread", "-o", str(program), str(source), "-lnghttp2", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode != 0:
        first = "\n".join(done.stderr.splitlines()[:5])
        raise BenchError(f"cannot compile {source.name}: {INSTALL}\n{first}")
    return program


INSTALL: Final = (
    "on Debian and Ubuntu, apt-get install gcc libnghttp2-dev; elsewhere a C compiler and nghttp2"
)


def run(
    load: Load,
    target: str,
    pids: Sequence[int] = (),
    *,
    path: str = INFER,
    http1: bool = False,
    cpus: Set[int] = frozenset(),
) -> Measured:
    """Load `target` (a host:port of 127.0.0.0/8), from `cpus` if any are named.

    Raises `BenchError` when it cannot.
    """
    command = [str(build()), *_arguments(load, target, pids, path)]
    if http1:
        command.append("--http1")
    return _measured(json.loads(_output(command, load.seconds + load.drain_s + EXTRA_S, cpus)))


def _output(command: Sequence[str], limit_s: float, cpus: Set[int]) -> str:
    process = subprocess.Popen(  # noqa: S603 - ours
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        if cpus:
            os.sched_setaffinity(process.pid, cpus)
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"the load generator hung for {limit_s:g} s") from None
        finally:
            process.kill()
    if process.returncode != 0:
        raise BenchError(errors.strip() or f"the load generator ended with {process.returncode}")
    return output


def _arguments(load: Load, target: str, pids: Sequence[int], path: str) -> list[str]:
    options = {
        "--target": target,
        "--requests": load.requests,
        "--path": path,
        "--connections": load.connections,
        "--warm-up": load.warm_up_s,
        "--duration": load.duration_s,
        "--drain": load.drain_s,
        "--max-open": load.max_open,
    }
    if pids:
        options["--pids"] = ",".join(map(str, pids))
    if load.stall_ms:
        options["--stall-ms"] = load.stall_ms
    if load.timeout_ms:
        options["--timeout-ms"] = load.timeout_ms
    if load.at_s is None:
        options["--in-flight"] = load.in_flight
        options["--connections"] = min(load.connections, load.in_flight)
    else:
        options["--schedule"] = _write_schedule(load.at_s, load.which)
    arguments = [str(part) for option in options.items() for part in option]
    return arguments + [part for header in load.headers for part in ("--header", header)]


def _write_schedule(at_s: Floats, which: Ints | None) -> Path:
    arrivals = np.zeros(len(at_s), _ARRIVAL)
    arrivals["at_s"] = at_s
    if which is not None:
        arrivals["request"] = which
    WORK.mkdir(parents=True, exist_ok=True)
    file = WORK / "schedule"
    file.write_bytes(arrivals.tobytes())
    return file


def _measured(found: dict[str, Any]) -> Measured:
    ok = found["ok"]
    cpu_s = sum(each for each in found["cpu_s"] if each > 0)
    statuses = {int(code): count for code, count in found["statuses"].items()}
    return Measured(
        seconds=found["seconds"],
        ok=ok,
        failed=found["done"] - ok,
        per_s=found["per_s"],
        answered=Latencies(**found["answered"]),
        refused=Latencies(**found["refused"]),
        expired=Latencies(**found["expired"]),
        lag=Latencies(**found["lag"]),
        statuses=statuses,
        unanswered=found["open"],
        unsent=found["unsent"],
        held=found["held"],
        reconnects=found["reconnects"],
        goodbye=found["goodbye"],
        pushbacks=found["pushbacks"],
        cpu_s=cpu_s,
        cpu_us=cpu_s / ok * 1e6 if ok else 0.0,
        own_cpu_us=found["own_cpu_s"] / max(1, found["done"]) * 1e6,
        first_error=found["first_error"],
        kinds=[Latencies(**kind["answered"]) for kind in found["classes"]],
        stalls=[Stall(**stall) for stall in found["stalls"]],
    )
