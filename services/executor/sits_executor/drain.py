"""Work that did not start before the process ends."""

import os
import threading
from collections.abc import Iterable
from typing import Final

from sits_core.errors import SitsError, Unavailable
from sits_executor.answers import Stages, whole_failure
from sits_executor.repository.loaded import LoadedModel

EXIT_DEVICE_LOST: Final = 70
"""Exit status when the device failed for good: whoever supervises us starts us again."""

SHUTTING_DOWN: Final = Unavailable("the executor is shutting down", reason="SHUTTING_DOWN")


def refuse_waiting(
    loaded: Iterable[LoadedModel], instance: str, error: SitsError = SHUTTING_DOWN
) -> int:
    """Answer what has not started: its dispatcher will run it elsewhere. How many batches."""
    waiting = [b for model in loaded for b in model.queue.remove(lambda _: True)]
    for batch in waiting:
        stages = Stages(batch.received_ns)
        batch.answer(whole_failure(batch.header, error, instance, stages))
    return len(waiting)


def end_anyway(after_s: float) -> threading.Timer:
    """A process whose device is lost may hang where it lets go of it. It will not, unless the
    timer is cancelled."""
    timer = threading.Timer(after_s, os._exit, [EXIT_DEVICE_LOST])
    timer.daemon = True
    timer.start()
    return timer
