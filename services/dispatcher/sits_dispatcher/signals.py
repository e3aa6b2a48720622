"""What governance looks at, measured between two of its looks."""

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

from sits_dispatcher.job import Job
from sits_protos.v1.link_pb2 import ResultHeader, StageTimes
from sits_protos.v1.topology_pb2 import DeviceKind, TopologySnapshot
from sits_scheduling.collectives import Collectives
from sits_scheduling.knee import Knee
from sits_scheduling.signals import Sample

MOST_WAITS: Final = 4096
"""More between two looks would not change a median."""
NS_PER_MS: Final = 1e6


class Signals:
    """Waits of batches that came back and the load of executors, since the last look.

    A wait is the sum of what three services saw, each on its own clock: the oldest request at
    the front door, the micro-batch here, and at the executor until its inputs were staged.

    How free memory is cut into pieces is reported by nobody, so that its signal stays quiet. Not
    thread-safe: the dispatcher's lock covers it.
    """

    def __init__(self) -> None:
        self._waits_ms: deque[float] = deque(maxlen=MOST_WAITS)
        self._loads: list[float] = []
        self._median_ms = 0.0
        self._knee = Knee()
        self._collectives = Collectives()

    def __repr__(self) -> str:
        return f"<Signals {len(self._waits_ms)} waits, {self._knee!r}>"

    def returned(self, job: Job, times: StageTimes) -> None:
        """A micro-batch that ran is back."""
        if times.input_started:
            there_ns = max(0, times.input_started - times.executor_received)
            self._waits_ms.append((waited_ns(job, job.sent_ns) + there_ns) / NS_PER_MS)

    def gang_ran(self, header: ResultHeader, now: int) -> None:
        """The result of a model that a gang runs."""
        self._collectives.ran(header.gang_runs, header.gang_failures, now)

    def load(self, batches: Mapping[str, int], slots: Mapping[str, int]) -> None:
        """Batches that are in flight or waiting, and slots, by model. The busiest counts."""
        shares = [count / slots[model] for model, count in batches.items() if slots.get(model)]
        self._loads.append(max(shares, default=0.0))

    def take(
        self, pending: Iterable[Job], in_flight: int, snapshots: Iterable[TopologySnapshot],
        now: int, ways_taken: float = 0.0,
    ) -> Sample:  # fmt: skip
        """The sample of what was seen since the last call."""
        waits = [*self._waits_ms, *(waited_ns(job, now) / NS_PER_MS for job in pending)]
        self._waits_ms.clear()
        # Runs may last longer than the time between two looks: what runs waited as before.
        self._median_ms = statistics.median(waits) if waits else self._median_ms * bool(in_flight)
        load = statistics.fmean(self._loads) if self._loads else 0.0
        self._loads.clear()
        if len(waits) > 1:
            self._knee.observe(load, statistics.quantiles(waits, n=20)[-1])
        return Sample(
            queue_median_ms=self._median_ms,
            collective_failure=self._collectives.failure(now),
            memory_spread=memory_spread(snapshots),
            communication_share=ways_taken,
            load_over_knee=self._knee.over(load),
        )


def waited_ns(job: Job, until: int) -> int:
    """At the front door and here. Fronts of an older release do not tell their part."""
    header = job.header
    since = header.oldest_queued_unix_ns or header.closed_unix_ns
    return max(0, header.closed_unix_ns - since) + max(0, until - job.received_ns)


def by_model(jobs: Iterable[Job]) -> Counter[str]:
    return Counter(job.model for job in jobs)


def memory_spread(snapshots: Iterable[TopologySnapshot]) -> float:
    """Fullest less emptiest GPU, as part of its memory; 0 with fewer than two that tell."""
    used = [
        1.0 - device.memory_free_bytes / device.memory_total_bytes
        for snapshot in snapshots
        for device in snapshot.devices
        if device.kind == DeviceKind.DEVICE_KIND_GPU
        and device.HasField("memory_free_bytes")
        and device.memory_total_bytes
    ]
    return max(used) - min(used) if len(used) > 1 else 0.0
