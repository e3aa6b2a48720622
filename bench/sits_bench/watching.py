"""How far a benchmark is: a bar with the time left for people, lines for logs."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from sits_bench.compare import Progress as Watching


class _Bar:
    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID = bar.add_task("", total=None)

    def expect(self, seconds: float) -> None:
        self._bar.update(self._task, total=seconds)

    def step(self, text: str, seconds: float) -> None:
        self._bar.update(self._task, description=f"{text:42.42}", advance=seconds)


class _Lines:
    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._done_s = self._total_s = 0.0

    def expect(self, seconds: float) -> None:
        self._total_s = seconds

    def step(self, text: str, seconds: float) -> None:
        self._done_s += seconds
        share = self._done_s / self._total_s if self._total_s else 0.0
        took_s = time.monotonic() - self._start_s
        print(f"{took_s:6.0f} s {share:4.0%}  {text}", file=sys.stderr, flush=True)


@contextmanager
def watching() -> Iterator[Watching]:
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), Remaining())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar)
