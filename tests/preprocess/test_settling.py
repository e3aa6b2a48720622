"""Answers go out before they are accounted, and nobody can tell."""

import threading
from collections.abc import Sequence

from sits_core.testing import wait_until
from sits_preprocess.settling import Settling
from sits_preprocess.statistics import Statistics


def asking(settling: Settling, then: list[str]) -> threading.Thread:
    def ask() -> None:
        settling.wait()
        then.append("asked")

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: settling._waiting, what="somebody who asks for figures")
    return thread


def test_figures_wait_for_what_was_answered_before() -> None:
    settling, order = Settling(), list[str]()
    mark = settling.begin()
    thread = asking(settling, order)
    order.append("accounted")
    settling.end(mark)
    thread.join(10)
    assert order == ["accounted", "asked"]


def test_figures_do_not_wait_for_what_comes_after() -> None:
    settling, order = Settling(), list[str]()
    first = settling.begin()
    thread = asking(settling, order)
    settling.begin()
    settling.end(first)
    thread.join(10)
    assert order == ["asked"]


def test_figures_come_at_once_when_nothing_is_open() -> None:
    settling = Settling()
    settling.end(settling.begin())
    settling.wait()


def test_statistics_settle_before_they_are_read() -> None:
    statistics, calls = Statistics(), list[str]()
    statistics.settled = lambda: calls.append("settled")
    models: Sequence[object] = []
    statistics.report(models)  # type: ignore[arg-type]  # none at all
    assert calls == ["settled"]
