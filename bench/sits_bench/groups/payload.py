"""Tensors of 600 KB: in shared memory from client to model, against inside the messages."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from sits_bench import checks, client_memory, repositories
from sits_bench.bars import compared, times_lower
from sits_bench.compare import (
    Found,
    Plan,
    Trial,
    alternate,
    copies_between,
    copies_in_all,
    cpu_us,
    expect,
    request_file,
)
from sits_bench.copies import COPIES
from sits_bench.group import Bench
from sits_bench.loadgen import BenchError
from sits_bench.mesh_system import FORCE_GRPC, INLINE, MeshSystem
from sits_bench.messages import Inference, Region, random_floats
from sits_bench.system import Running
from sits_sim.figures import Figure, at_most, plain

LARGE: Final = Inference("echo", {"INPUT": random_floats(1, 1, 153_600)})
IN_FLIGHT: Final = 8
_MODELS = [repositories.echo()]
_CLIENT, _POOL = "client memory", "pool"
_SHARED = MeshSystem("mesh, shared memory", _MODELS, {"SITS_PREPROCESS_ALLOW_CLIENT_SHM": "true"})
_MESSAGES = MeshSystem("mesh, inline", _MODELS, INLINE)
_REMOTE = MeshSystem("mesh, inline, gRPC links", _MODELS, {**INLINE, **FORCE_GRPC})
LIMIT: Final = 4.0

Regions = tuple[Region, Region]


@dataclass(frozen=True, slots=True)
class Payload:
    name: str = "payload"

    def seconds(self, plan: Plan) -> float:
        empty = Region("", 0)
        return expect(_trials(plan, (empty, empty)), plan.rounds)

    def run(self, bench: Bench) -> list[Figure]:
        (array,) = LARGE.inputs.values()
        with client_memory.regions(array, f"bench-{os.getpid()}") as regions:
            found = alternate(_trials(bench.plan, regions), bench.plan.rounds, bench.progress)
            bench.keep(self.name, found)
            return [*_figures(found), *_copies(found, bench)]


def _trials(plan: Plan, regions: Regions) -> Sequence[Trial]:
    inline = plan.closed(request_file("600-kb", [LARGE]), IN_FLIGHT)
    referring = [client_memory.by_reference(LARGE, regions)]
    shared = plan.closed(request_file("600-kb-region", referring), IN_FLIGHT)
    check = partial(checks.echoes, inference=LARGE)
    return [
        Trial(
            _SHARED, {_CLIENT: shared, _POOL: inline}, partial(_check, regions=regions), start_s=6.0
        ),
        Trial(_MESSAGES, {_POOL: inline}, check, start_s=6.0),
        Trial(_REMOTE, {_POOL: inline}, check, start_s=6.0),
    ]


def _check(running: Running, regions: Regions) -> None:
    """Also that an answer comes into the client's memory."""
    checks.echoes(running, LARGE)
    client_memory.register(running, regions)
    (array,) = LARGE.inputs.values()
    checks.calls(running, client_memory.by_reference(LARGE, regions))
    if not np.array_equal(client_memory.answer(regions[1], array), array):
        raise BenchError("the answer did not come into the client's shared memory")


def _figures(found: Found) -> list[Figure]:
    shared = found.median(_SHARED.name, _CLIENT, cpu_us)
    pool = found.median(_SHARED.name, _POOL, cpu_us)
    inline = found.median(_MESSAGES.name, _POOL, cpu_us)
    remote = found.median(_REMOTE.name, _POOL, cpu_us)
    return [
        times_lower(
            "payload.shm: 600 KB in shared memory from client to model, CPU a request, against "
            "inline on gRPC streams", shared, "µs", remote, LIMIT,
        ),
        compared("payload.shm_rings: the same against inline on rings", shared, "µs", inline),
        compared("payload.pool: 600 KB that come inline and go on in the pool, CPU a request, "
                 "against inline on gRPC streams", pool, "µs", remote),
    ]  # fmt: skip


def _copies(found: Found, bench: Bench) -> list[Figure]:
    between = found.median(_SHARED.name, _CLIENT, copies_between)
    if math.isnan(between):
        bench.lacks(f"no service exports {COPIES}: copies are not known")
        return []
    return [
        at_most("payload.copies: 600 KB, copies a request between co-located services",
                between, "", 0),
        plain("payload.copies_all: copies a request in all services, edges included",
              found.median(_SHARED.name, _CLIENT, copies_in_all), ""),
    ]  # fmt: skip


PAYLOAD: Final = Payload()
