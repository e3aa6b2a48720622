"""Runs programs as children: starts, watches, restarts with back-off, stops in order."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Self

from sits_cli import tied

TICK_S = 0.05
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.2, 5.0
STEADY_S = 10.0
"""A program that ran this long starts again with the first back-off."""
EXIT_WRONG_SETTING = 2
STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. `env` is the whole environment; output goes to `log`, kept over restarts."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path


class Change(Enum):
    STARTED = "started"
    EXITED = "exited"
    GAVE_UP = "gave up"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a program. `back_in_s` is the wait before its restart."""

    name: str
    change: Change
    pid: int
    status: int | None = None
    back_in_s: float | None = None


def ignore(_event: Event) -> None:
    """The listener of those who do not listen."""


@dataclass(slots=True)
class Child:
    """One program's life: `wanted` is what we aim at, `process` what there is."""

    program: Program
    wanted: bool = True
    process: subprocess.Popen[bytes] | None = None
    due_s: float = 0.0
    started_s: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S
    restarts: int = 0
    exit_status: int | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None


@dataclass(slots=True)
class Supervisor:
    """Keeps `programs` running. Started in the given order, stopped in the reverse.

    Children are started by one thread that lives until `stop`, since the kernel ties them
    to it. `listener` is called from that thread.
    """

    programs: Sequence[Program]
    restart: bool = True
    listener: Callable[[Event], None] = ignore
    stop_timeout_s: float = STOP_TIMEOUT_S
    _children: dict[str, Child] = field(init=False)
    _lock: threading.Condition = field(init=False)
    _stopping: bool = field(init=False, default=False)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._children = {p.name: Child(p) for p in self.programs}
        self._lock = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def child(self, name: str) -> Child:
        try:
            return self._children[name]
        except KeyError:
            known = ", ".join(self._children)
            raise KeyError(f"no program {name!r}; there are {known}") from None

    def kill(self, name: str, number: signal.Signals, *, restart: bool = True) -> None:
        """Send a signal. Without `restart` it stays down until `revive`."""
        with self._lock:
            child = self.child(name)
            child.wanted = child.wanted and restart
            if child.process is not None:
                child.process.send_signal(number)

    def revive(self, name: str) -> None:
        """Start it now: after `kill(restart=False)`, a give-up, or instead of the back-off."""
        with self._lock:
            child = self.child(name)
            child.wanted, child.due_s, child.backoff_s = True, 0.0, FIRST_BACKOFF_S
            self._lock.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a change of some child makes `condition` true."""
        with self._lock:
            return self._lock.wait_for(condition, timeout_s)

    def stop(self) -> None:
        """Ask one program after the other to end; kill what has not within `stop_timeout_s`."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def kill_all(self) -> None:
        """Let nothing run on, at once; a `stop` under way then returns quickly."""
        for child in self._children.values():
            if (process := child.process) is not None:
                process.kill()

    def _run(self) -> None:
        with self._lock:
            while not self._stopping:
                events = [e for c in self._children.values() if (e := self._tick(c)) is not None]
                if events:
                    self._lock.notify_all()
                self._tell(events)
                self._lock.wait(TICK_S)
        for child in reversed(self._children.values()):
            if child.process is not None:
                self.listener(self._end(child, child.process))

    def _end(self, child: Child, process: subprocess.Popen[bytes]) -> Event:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        child.process, child.exit_status = None, process.returncode
        return Event(child.program.name, Change.STOPPED, process.pid, process.returncode)

    def _tell(self, events: Sequence[Event]) -> None:
        self._lock.release()
        try:
            for event in events:
                self.listener(event)
        finally:
            self._lock.acquire()

    def _tick(self, child: Child) -> Event | None:
        now = time.monotonic()
        if child.process is not None:
            return self._reap(child, child.process, now)
        if child.wanted and now >= child.due_s:
            child.process = spawn(child.program, fresh=child.started_s == 0.0)
            child.restarts += child.started_s > 0
            child.started_s = now
            return Event(child.program.name, Change.STARTED, child.process.pid)
        return None

    def _reap(self, child: Child, process: subprocess.Popen[bytes], now: float) -> Event | None:
        status = process.poll()
        if status is None:
            return None
        child.process, child.exit_status = None, status
        name = child.program.name
        if child.wanted and (not self.restart or status == EXIT_WRONG_SETTING):
            child.wanted = False
            return Event(name, Change.GAVE_UP, process.pid, status)
        if not child.wanted:
            return Event(name, Change.EXITED, process.pid, status)
        if now - child.started_s >= STEADY_S:
            child.backoff_s = FIRST_BACKOFF_S
        wait_s, child.backoff_s = child.backoff_s, min(child.backoff_s * 2, LAST_BACKOFF_S)
        child.due_s = now + wait_s
        return Event(name, Change.EXITED, process.pid, status, wait_s)

    def __repr__(self) -> str:
        up = sum(c.process is not None for c in self._children.values())
        return f"<Supervisor {up}/{len(self._children)} running>"


def spawn(program: Program, *, fresh: bool) -> subprocess.Popen[bytes]:
    """Start `program` in a process group of its own, so that Ctrl-C reaches only us."""
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with program.log.open("wb" if fresh else "ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own program list
            tied.command(program.argv),
            env=dict(program.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )


def last_lines(path: Path, count: int = 8) -> list[str]:
    """The end of a log file; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
