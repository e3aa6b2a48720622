"""What comes first, the answer or its account."""

from collections.abc import Sequence
from typing import Any

import pytest

from sits_core.tracing import TraceContext
from sits_preprocess.inference import FEW, Inference, OpenLimits
from sits_preprocess.oip.result import Result
from sits_preprocess.request import Answer, Answered, Request
from sits_preprocess.settling import Settling

TRACED = TraceContext(b"t" * 16, b"s" * 8)


class Accounts:
    """Notes when it is called, and what is not accounted then."""

    def __init__(self, order: list[str]) -> None:
        self._order, self.settling = order, Settling()

    def finished(self, answered: Sequence[Answered], results: object, ended_ns: int) -> None:
        self._order.append("accounted")


def order_of(count: int, *, traced: bool = False, broken: bool = False) -> list[str]:
    order: list[str] = []
    accounts: Any = Accounts(order)
    nothing: Any = None
    inference = Inference(nothing, nothing, accounts, OpenLimits(1 << 20, 1 << 20))

    def reply(result: Result) -> None:
        order.append("answered")
        if broken:
            raise SystemError("the transport broke")

    requests = [Request(reply, 0, 0) for _ in range(count)]
    for request in requests if traced else ():
        request.trace = TRACED
    try:
        inference.answered([(request, Answer()) for request in requests])
    finally:
        assert not accounts.settling._begun, "nobody waits for ever"
    return order


def test_a_few_answers_leave_before_they_are_accounted() -> None:
    assert order_of(FEW) == ["answered"] * FEW + ["accounted"]


def test_many_are_accounted_first() -> None:
    assert order_of(FEW + 1) == ["accounted"] + ["answered"] * (FEW + 1)


def test_traced_ones_are_accounted_first_so_that_their_spans_are_found() -> None:
    assert order_of(1, traced=True) == ["accounted", "answered"]


def test_figures_settle_also_when_an_answer_cannot_be_given() -> None:
    with pytest.raises(SystemError):
        order_of(1, broken=True)
