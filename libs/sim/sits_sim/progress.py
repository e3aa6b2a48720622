"""A progress bar on stderr while people watch, nothing otherwise."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress(Protocol):
    """What a scenario tells of how far it is."""

    def expect(self, title: str, total: int) -> None: ...

    def advance(self, done: int) -> None: ...


class Silent:
    def expect(self, title: str, total: int) -> None: ...

    def advance(self, done: int) -> None: ...


class _Shown:
    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def expect(self, title: str, total: int) -> None:
        self._bar.reset(self._task, total=total, description=title)

    def advance(self, done: int) -> None:
        self._bar.advance(self._task, done)


@contextmanager
def progress() -> Iterator[Progress]:
    """A bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield Silent()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        yield _Shown(bar)
