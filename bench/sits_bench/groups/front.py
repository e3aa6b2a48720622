"""The front door alone against plain grpcio servers that do nothing but echo."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from sits_bench import checks
from sits_bench.bars import at_least_times
from sits_bench.compare import Found, Plan, Trial, per_s, request_file
from sits_bench.group import Bench, Comparison
from sits_bench.messages import Inference, random_floats
from sits_bench.servers import FIRST_CPU, Echo, FrontAlone
from sits_sim.figures import Figure

KILOBYTE: Final = Inference("echo", {"INPUT": random_floats(1, 1, 256)})
LOAD: Final = "64"
_FRONT, _SYNC, _AIO = FrontAlone(), Echo("sync"), Echo("aio")


def _trials(plan: Plan) -> Sequence[Trial]:
    """Servers have the first core for themselves, the client the others."""
    others = frozenset(os.sched_getaffinity(0)) - FIRST_CPU
    loads = {LOAD: plan.closed(request_file("1-kb", [KILOBYTE]), 64)}
    check = partial(checks.echoes, inference=KILOBYTE)
    return [Trial(system, loads, check, others, start_s=2.0) for system in (_FRONT, _SYNC, _AIO)]


def _figures(found: Found, _bench: Bench) -> list[Figure]:
    own = found.median(_FRONT.name, LOAD, per_s)
    return [
        at_least_times(
            f"front.{reference.kind}: front door alone, 1 KB echo, against {reference.name}",
            own, "req/s", found.median(reference.name, LOAD, per_s), limit,
        )
        for reference, limit in ((_SYNC, 3.5), (_AIO, 7.0))
    ]  # fmt: skip


FRONT: Final = Comparison("front", _trials, _figures)
