"""Which threads of an executor keep off processors that others need for themselves."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sits_core import claims, processors
from sits_core.claims import Claim
from sits_core.testing import wait_until
from sits_executor.instances import Instances, Lane
from sits_executor.queue import BatchQueue
from sits_executor.testing import builtin_config, write_model


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Claim]:
    """Everybody is to keep off the first processor, under a name that no other test takes."""
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) == 1:
        pytest.skip("needs two processors")
    monkeypatch.setattr(claims, "NAME", f"sits-test-executor-{os.getpid()}")
    monkeypatch.setattr(processors, "KEEP_OFF_S", 0.1)
    monkeypatch.setattr(processors, "FEW", 1 << 16)
    found = claims.claim(ours)
    assert found is not None
    found.ask()
    yield found
    found.end()


def _off(name: str, cpu: int) -> bool:
    threads = [each for each in threading.enumerate() if each.name.startswith(name)]
    return bool(threads) and all(
        cpu not in os.sched_getaffinity(each.native_id or 0) for each in threads
    )


def test_what_brings_and_runs_batches_keeps_off_and_nothing_else(
    repository: Path, linked: Any, asked: Claim
) -> None:
    write_model(repository, "echo", builtin_config("identity"))
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("echo")
        wait_until(lambda: _off("echo/1 #", asked.cpu), what="an instance that keeps off")
        wait_until(lambda: _off("link ipv4", asked.cpu), what="a reader that keeps off")
        assert not _off("load", asked.cpu), "native threads of a model inherit where it is loaded"
        asked.leave()
        wait_until(lambda: not _off("echo/1 #", asked.cpu), what="all processors")


def test_threads_that_wait_or_have_a_cgroup_of_their_own_are_left_alone() -> None:
    lanes = [Lane("gold", lambda: None, lambda _: True)]

    def of(*, never_waits: bool, lanes: list[Lane] | None = None) -> int:
        queue = BatchQueue(8)
        made = Instances(
            "m/1", 2, queue, lambda _: True, lambda: None, lanes or (), never_waits=never_waits
        )
        return len(made.computing)

    assert of(never_waits=True) == 2
    assert of(never_waits=False) == 0
    assert of(never_waits=True, lanes=lanes) == 0
