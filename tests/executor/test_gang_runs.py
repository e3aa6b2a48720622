"""Runs of gangs are counted; a gang that is lost is the fault of its executor, of no request."""

import threading
from pathlib import Path

import numpy as np
import pytest

from sits_executor.backends import builtin, choice
from sits_executor.backends.base import Arrays, Backend, GangLost, LoadSpec, Parameters
from sits_executor.testing import batch, builtin_config, write_model
from sits_protos.v1.link_pb2 import LinkMessage

X = np.ones((1, 2), np.float32)


class Gang:
    """A gang of two without GPUs: raises what it is told to, one after the other."""

    gang_size = 2
    signature = None
    fallback = ""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self._turn = threading.Lock()

    def load(self, spec: LoadSpec) -> Backend:
        self._inner = builtin.load(spec)
        return self

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        with self._turn:
            if self.failures:
                raise self.failures.pop(0)
        return self._inner.run(inputs, parameters)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def gang(monkeypatch: pytest.MonkeyPatch, repository: Path) -> Gang:
    own = Gang()
    monkeypatch.setitem(choice.BACKENDS, "paired", choice.Choice("paired", "", "", own.load))
    config = builtin_config("identity").replace('"builtin"', '"paired"')
    write_model(repository, "m", config)
    write_model(repository, "alone", builtin_config("identity"))
    return own


def ran(result: LinkMessage) -> tuple[int, int]:
    return result.result.gang_runs, result.result.gang_failures


def test_a_run_of_a_gang_is_told(linked, gang: Gang) -> None:
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("m")
        assert ran(dispatcher.run(batch(1, "m", [X]))) == (1, 0)


def test_other_models_tell_of_none(linked, gang: Gang) -> None:
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("alone")
        assert ran(dispatcher.run(batch(1, "alone", [X]))) == (0, 0)


def test_a_lost_gang_fails_the_whole_batch_so_that_it_is_tried_elsewhere(
    linked, gang: Gang
) -> None:
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("m")
        gang.failures.append(GangLost("member 1 died"))
        result = dispatcher.run(batch(1, "m", [X, X]))
        assert (result.result.error.reason, ran(result)) == ("GANG_FAILED", (1, 1))


def test_runs_that_raise_count_as_failed_and_those_of_single_requests_as_runs(
    linked, gang: Gang
) -> None:
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("m")
        gang.failures.append(ValueError("a bad request"))
        result = dispatcher.run(batch(1, "m", [X, X]))
        assert not result.result.HasField("error")
        assert ran(result) == (3, 1)
