"""The pipeline of mixed precision, on the CPU: that both ways give the same, not how fast."""

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from gpu import precision

from sits_executor.executor import Executor
from sits_executor.pipelines.backend import PipelineBackend


@pytest.fixture(name="executor", scope="module")
def opened() -> Iterator[Executor]:
    with precision.opened("cpu") as executor:
        yield executor


def test_converting_at_every_step_converts_more_than_the_executor_does(executor: Executor) -> None:
    own = executor.catalog.find(precision.PIPELINE, "").backend
    assert isinstance(own, PipelineBackend)
    merged = precision.pipeline(executor, merge=True).graph
    each = precision.pipeline(executor, merge=False).graph
    assert str(merged) == str(own.graph)
    # One way in and one out are the host's; they convert nothing of FP32.
    assert (len(merged.conversions) - 2, len(each.conversions) - 2) == (3, 10)


def test_every_figure_is_there_and_both_ways_give_the_same_numbers(executor: Executor) -> None:
    found = {figure.figure.partition(":")[0]: figure for figure in precision.compared(executor, 3)}
    assert set(found) == {
        "precision", "precision.bare", "precision.merged", "precision.each", "precision.same",
    }  # fmt: skip
    assert found["precision.same"].value == 0
    assert found["precision"].bar is not None
    assert found["precision"].bar.limit == pytest.approx(0.71)
