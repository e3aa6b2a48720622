"""Finishing accepted work before the process ends."""

import time
from collections.abc import Callable

import structlog

from sits_core.clock import Deadline
from sits_core.errors import Unavailable
from sits_executor.answers import Stages, whole_failure
from sits_executor.repository.catalog import Catalog

log = structlog.get_logger()

QUIET_S = 0.25
"""Idle for so long means that nothing sent before the dispatchers knew is still under way."""

_POLL_S = 0.01


def finish(
    idle: Callable[[], bool], grace_s: float, sleep: Callable[[float], object] = time.sleep
) -> bool:
    """Wait until `idle` has held for `QUIET_S`, at most `grace_s`. Whether it did."""
    end, quiet = Deadline.after(grace_s), Deadline.after(QUIET_S)
    while not quiet.passed():
        if end.passed():
            return False
        if not idle():
            quiet = Deadline.after(QUIET_S)
        sleep(_POLL_S)
    return True


def refuse_waiting(catalog: Catalog, instance: str) -> int:
    """Answer what has not started: its dispatcher will run it elsewhere. How many batches."""
    error = Unavailable("the executor is shutting down", reason="SHUTTING_DOWN")
    waiting = [b for model in catalog.loaded() for b in model.queue.remove(lambda _: True)]
    for batch in waiting:
        stages = Stages(batch.received_ns)
        batch.answer(whole_failure(batch.header, error, instance, stages))
    return len(waiting)
