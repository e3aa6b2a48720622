"""What the response cache gains where it has the answer, and costs where it has not."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from sits_bench import checks, repositories
from sits_bench.bars import at_least_times, compared
from sits_bench.compare import Found, Plan, Trial, per_s, request_file
from sits_bench.group import Bench, Comparison
from sits_bench.groups.front import KILOBYTE
from sits_bench.mesh_system import MeshSystem
from sits_bench.messages import Inference, random_floats
from sits_sim.figures import Figure

KEPT: Final = "response_cache { enable: true }\n"
OVER: Final = 'parameters { key: "response_cache_ttl_s" value: { string_value: "0.02" } }\n' + KEPT
"""Over before it is asked for again: every request is looked for, computed and kept."""
MODELS: Final = [
    repositories.echo(),
    repositories.echo("kept", more=KEPT),
    repositories.echo("over", more=OVER),
]
IN_FLIGHT: Final = 64
DIFFERENT: Final = 4096
"""Requests of which none is found: more than are answered in 20 ms."""
RAN, HIT, MISSED = "not kept", "hits", "misses"
_OFF = MeshSystem("mesh, cache off", MODELS)
_ON = MeshSystem("mesh, cache on", MODELS, {"SITS_PREPROCESS_RESPONSE_CACHE_BYTES": str(64 << 20)})
_MEMORY = MeshSystem(
    "mesh, cache in memory only",
    MODELS,
    {**_ON.env, "SITS_PREPROCESS_RESPONSE_CACHE_REDIS_BYTES": "0"},
)


def _requests(model: str, count: int) -> list[Inference]:
    return [Inference(model, {"INPUT": random_floats(seed, 1, 256)}) for seed in range(count)]


def _trials(plan: Plan) -> Sequence[Trial]:
    check = partial(checks.echoes, inference=KILOBYTE)
    loads = {
        RAN: plan.closed(request_file("1-kb-echo", _requests("echo", 1)), IN_FLIGHT),
        HIT: plan.closed(request_file("1-kb-kept", _requests("kept", 1)), IN_FLIGHT),
        MISSED: plan.closed(request_file("1-kb-over", _requests("over", DIFFERENT)), IN_FLIGHT),
    }
    return [
        Trial(_OFF, {RAN: loads[RAN]}, check),
        Trial(_ON, loads, check),
        Trial(_MEMORY, {MISSED: loads[MISSED]}, check),
    ]


def _figures(found: Found, _bench: Bench) -> list[Figure]:
    """What misses cost is for information: it is as much of a run as the run is short."""
    off = found.median(_OFF.name, RAN, per_s)
    hits, others = (found.median(_ON.name, load, per_s) for load in (HIT, RAN))
    misses = {name: found.median(name, MISSED, per_s) for name in (_MEMORY.name, _ON.name)}
    return [
        at_least_times(
            "cache.hits: the same 1 KB again and again, against running it", hits, "req/s", off, 1.2
        ),
        at_least_times(
            "cache.others: a model that keeps nothing, while the cache is on, against off",
            others, "req/s", off, 0.97,
        ),
        compared(
            "cache.memory_misses: nothing is ever found, no Redis, against off",
            misses[_MEMORY.name], "req/s", off,
        ),
        compared(
            "cache.redis_misses: nothing is ever found, in Redis neither, against off",
            misses[_ON.name], "req/s", off,
        ),
    ]  # fmt: skip


CACHE: Final = Comparison("cache", _trials, _figures)
