"""Independent runs on all processor cores. Results come in the order of the jobs, so that the
number of cores changes nothing but the time."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from sits_sim.progress import Progress

J = TypeVar("J")
R = TypeVar("R")


def run_all(
    work: Callable[[J], R], jobs: Sequence[J], progress: Progress, title: str, workers: int = 0
) -> list[R]:
    """`work` of every job; `workers` 0 = one a core, 1 = in this process."""
    progress.expect(title, len(jobs))
    count = min(workers or cores(), len(jobs))
    if count <= 1:
        return [_done(work(job), progress) for job in jobs]
    # Not fork: the progress bar has a thread, and a forked thread's locks stay as they were.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        for future in as_completed(futures):
            _done(future.result(), progress)
        return [future.result() for future in futures]


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _done(result: R, progress: Progress) -> R:
    progress.advance(1)
    return result
