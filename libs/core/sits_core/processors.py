"""On which processors the threads of a service run, and which of them go first."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import structlog

from sits_core import claims
from sits_core.claims import Claim
from sits_core.clock import Deadline
from sits_core.keepers import Periodic
from sits_core.settings import AUTO_CPUS, SettingsError

log = structlog.get_logger()

NAMED_S: Final = 1.0
MOST: Final = 65_535
"""Number of a processor."""
LOOK_S: Final = 0.1
RISE, FALL = 0.3, 0.1
"""Weight of the last look: bound soon, and not freed at every pause."""
BUSY, IDLE = 0.15, 0.08
"""Of a processor's time, by all threads of the process: from where on one of its own pays, and
below which it does no more."""
MOST_OF_IT, LESS = 0.6, 0.5
"""The same for asking those who compute to keep off it."""
OVERLOAD, CALM = 0.5, 0.1
"""Of the last looks, that saw overload: a single refusal now and then is none."""
KEEP_OFF_S: Final = 0.25
MOST_BUSY: Final = 0.75
"""Of the time, by one thread: from where on all processors are needed."""
FREE_S, LONGEST_FREE_S = 10.0, 600.0
FEW: Final = 4


def pin(cpus: str) -> None:
    """Run on these processors only, such as "0-3,8"; all threads that start from now on do.
    Empty = as before. Raises `SettingsError` when one of them is not there."""
    if cpus:
        _run_on([0], _numbers(cpus, "SITS_CPUS"), f"SITS_CPUS={cpus}")
        _require_all(_numbers(cpus, "SITS_CPUS"), f"SITS_CPUS={cpus}")


class PythonThreads:
    """Where the threads of Python of this process run, and those they start.

    Of threads that share an interpreter lock one runs at a time: on one processor they find what
    the last one touched in its caches, and to wake one another they need no other. Native
    threads named `native` keep off it; others stay as they are.

    A list of processors holds from `start` on. "auto" = one that no other process asked for so
    (the last of them, if `last_first`), where this process may use several; and only while that
    pays: while Python is busy, and not `overloaded`. A process that has little to do would get in
    the way of who computes there, and under overload every processor is needed by whoever can run.
    While it needs most of it, it asks them to `KeepOff`.
    """

    def __init__(
        self,
        cpus: str,
        setting: str,
        *,
        last_first: bool = False,
        native: str = "",
        overloaded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._told, self._setting, self._last_first = cpus, setting, last_first
        self._native, self._overloaded = native, overloaded
        self._all: frozenset[int] = frozenset()
        self._looking: list[Periodic] = []
        self._claim: Claim | None = None
        self.cpus: frozenset[int] = frozenset()

    def start(self) -> None:
        """Raises `SettingsError` when a processor of the list is not there."""
        self._all = frozenset(os.sched_getaffinity(0))
        if self._told != AUTO_CPUS:
            self.cpus = _numbers(self._told, self._setting)
            if self.cpus:
                self.bind()
                _require_all(self.cpus, f"{self._setting}={self._told}")
            return
        several = len(self._all) > 1
        mine = claims.claim(sorted(self._all, reverse=self._last_first)) if several else None
        if mine is not None:
            self.cpus, self._claim = frozenset({mine.cpu}), mine
            for look in (
                Pays(self.bind, self.free, self._overloaded),
                Pays(mine.ask, mine.leave, self._overloaded, busy=MOST_OF_IT, idle=LESS),
            ):
                self._looking.append(Periodic(look, LOOK_S, "processors"))
                self._looking[-1].start()
        log.info("processors.claimed", setting=self._setting, cpus=sorted(self.cpus))

    def stop(self) -> None:
        for looking in self._looking:
            looking.stop()

    def bind(self) -> None:
        self._run_on(self.cpus, self._all - self.cpus or self._all)

    def free(self) -> None:
        self._run_on(self._all, self._all)

    def _run_on(self, cpus: Collection[int], native: Collection[int]) -> None:
        for _ in range(2):  # some may have been started meanwhile by those that came later
            threads = [thread.native_id for thread in threading.enumerate()]
            known = [each for each in threads if each is not None]
            _run_on(known, cpus, f"{self._setting}={self._told}")
        if self._native:
            _run_on(_named(self._native), native, f"{self._setting}={self._told}")

    def __repr__(self) -> str:
        return f"<PythonThreads {self._setting}={self._told} {sorted(self.cpus)}>"


class Pays:
    """Call it every `LOOK_S`: calls `bind` when a processor of its own begins to pay for this
    process, and `free` when it pays no more."""

    def __init__(
        self,
        bind: Callable[[], object],
        free: Callable[[], object],
        overloaded: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        *,
        busy: float = BUSY,
        idle: float = IDLE,
    ) -> None:
        self._bind, self._free, self._overloaded = bind, free, overloaded
        self._busy, self._idle = busy, idle
        self._clock, self._cpu_clock = clock, cpu_clock
        self._looked_s, self._used_s = clock(), cpu_clock()
        self._share = self._refused = 0.0
        self._bound = False

    def __call__(self) -> None:
        now_s, used_s = self._clock(), self._cpu_clock()
        share = (used_s - self._used_s) / max(now_s - self._looked_s, 1e-9)
        self._looked_s, self._used_s = now_s, used_s
        self._share += (RISE if share > self._share else FALL) * (share - self._share)
        self._refused += RISE * (self._overloaded() - self._refused)
        least, most = (self._idle, OVERLOAD) if self._bound else (self._busy, CALM)
        pays = self._share >= least and self._refused < most
        if pays != self._bound:
            (self._bind if pays else self._free)()
            self._bound = pays


class KeepOff:
    """Keeps `threads`, which compute for a short time each, off the processors that others need
    for themselves (`PythonThreads`), as long as there are others. Where the kernel puts such a
    thread by itself, the one of the front door is often the idle one just then, and a moment later
    all requests wait for it.

    Not while one of them has something to do most of the time, be it that it computes, or that it
    has to wait for the processors that are left: several processes may be sent to the same one.
    Then all are free for a while, for twice as long each time.
    """

    def __init__(
        self,
        threads: Callable[[], Iterable[threading.Thread]],
        clock: Callable[[], float] = time.monotonic,
        busy_s: Callable[[int], float] | None = None,
    ) -> None:
        """`busy_s`: seconds that a thread, by its native id, has had something to do."""
        self._threads, self._clock, self._busy_s = threads, clock, busy_s or _busy_s
        self._all = frozenset(os.sched_getaffinity(0))
        self._looked_s, self._busy_before = clock(), dict[int, float]()
        self._free_until_s, self._free_s = -math.inf, FREE_S
        self._bound = False
        self._looking = Periodic(self.look, KEEP_OFF_S, "processors")

    def start(self) -> None:
        """Only where processors are few: of many, the kernel seldom takes that one."""
        if 1 < len(self._all) <= FEW:
            self._looking.start()

    def stop(self) -> None:
        self._looking.stop()

    def look(self) -> None:
        """Threads that were started since the last look follow, too."""
        asked = claims.kept_free(self._all)
        if not asked:
            self._free_s = FREE_S
        if not asked and not self._bound:
            self._busy_before.clear()
            return
        ids = [each.native_id for each in self._threads()]
        threads = [each for each in ids if each is not None]
        if self._most_busy(threads) >= MOST_BUSY:
            self._free_until_s = self._looked_s + self._free_s
            self._free_s = min(2 * self._free_s, LONGEST_FREE_S)
        off = asked if self._looked_s >= self._free_until_s else frozenset()
        self._bound = True  # some of them, should this fail half-way
        _run_on(threads, self._all - off or self._all, "SITS_CPUS")
        self._bound = bool(off)

    def _most_busy(self, threads: Iterable[int]) -> float:
        """Of the time since the last look, by the busiest of them."""
        before, now_s = self._busy_before, self._clock()
        self._busy_before = {each: self._busy_s(each) for each in threads}
        passed_s, self._looked_s = max(now_s - self._looked_s, 1e-9), now_s
        shares = [(busy - before.get(each, busy)) / passed_s
                  for each, busy in self._busy_before.items()]  # fmt: skip
        return max(shares, default=0.0)

    def __repr__(self) -> str:
        return f"<KeepOff {'bound' if self._bound else 'free'}, {sorted(self._all)}>"


def _busy_s(thread: int) -> float:
    """What it ran and what it waited for a processor; 0 when it has just ended."""
    try:
        ran, waited, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
    except OSError:
        return 0.0
    return (int(ran) + int(waited)) / 1e9


def prefer(name: str, nice: int, setting: str) -> None:
    """Waits for native threads of that name, which have just been started, and gives them this
    niceness: below 0 they go before others. 0 = as before. Raises `SettingsError` where this
    process may not."""
    limit = Deadline.after(NAMED_S)
    while not (threads := _named(name)) and not limit.passed():
        time.sleep(NAMED_S / 100)
    for thread in threads if nice else ():
        try:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        except PermissionError:
            raise SettingsError(f"{setting}={nice}: this process lacks CAP_SYS_NICE") from None


def _named(name: str) -> list[int]:
    """A thread gives itself its name, a moment after it was started."""
    found = []
    for each in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # another one has just ended
            if (each / "comm").read_text().strip() == name:
                found.append(int(each.name))
    return found


def _run_on(threads: Iterable[int], cpus: Collection[int], setting: str) -> None:
    """Thread 0 = this one, and by inheritance all that it starts."""
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:  # it has just ended
            continue
        except OSError:
            there = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            raise SettingsError(f"{setting}: this process may use {there}") from None


def _require_all(cpus: frozenset[int], setting: str) -> None:
    """The kernel takes those that there are, and says nothing of the others."""
    if missing := cpus - os.sched_getaffinity(0):
        raise SettingsError(
            f"{setting}: this process may not use {', '.join(map(str, sorted(missing)))}"
        )


def _numbers(cpus: str, setting: str) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        if not int(first) <= int(last or first) <= MOST:
            raise SettingsError(
                f"{setting}={cpus}: {part} is no range of processors, expected such as 0-3"
            )
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
