"""Jobs that need several GPUs at once, and GPUs that hold jobs in line for them."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sits_sim.clock import Clock


@dataclass(slots=True, eq=False)
class GangJob:
    """Runs on all its members at the same time for `run_ns` once each of them has come to it."""

    number: int
    members: Sequence[int]
    run_ns: int
    release: Callable[[], None]
    came: int = 0


@dataclass(slots=True, eq=False)
class _Line:
    jobs: deque[GangJob] = field(default_factory=deque)
    work_ns: int = 0


class GangDevices:
    """One line of jobs a GPU, first come first served.

    Jobs enter the lines of all their members at the same moment, so that any two jobs stand
    in the same order in every line that both are in, and no two can wait for each other.
    """

    def __init__(self, clock: Clock, count: int) -> None:
        self._clock = clock
        self._lines = [_Line() for _ in range(count)]
        self.finished = 0

    def __repr__(self) -> str:
        return f"<GangDevices {sum(len(line.jobs) for line in self._lines)} places taken>"

    def loads_ms(self) -> list[float]:
        """Work that each GPU holds."""
        return [line.work_ns / 1e6 for line in self._lines]

    def submit(self, job: GangJob) -> None:
        for member in job.members:
            line = self._lines[member]
            line.jobs.append(job)
            line.work_ns += job.run_ns
        for member in job.members:
            if self._lines[member].jobs[0] is job:
                self._came_to(job)

    def _came_to(self, job: GangJob) -> None:
        job.came += 1
        if job.came == len(job.members):
            self._clock.after(job.run_ns, lambda: self._finished(job))

    def _finished(self, job: GangJob) -> None:
        self.finished += 1
        for member in job.members:
            line = self._lines[member]
            line.jobs.popleft()
            line.work_ns -= job.run_ns
        job.release()
        for member in job.members:
            line = self._lines[member]
            if line.jobs:
                self._came_to(line.jobs[0])
