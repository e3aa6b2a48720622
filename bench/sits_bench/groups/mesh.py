"""The whole mesh with an echo model, against a single grpcio server and the naive mesh."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from sits_bench import checks, repositories
from sits_bench.bars import at_least_times, at_most_times, compared, times_lower
from sits_bench.compare import Found, Plan, Trial, cpu_us, p50_ms, p99_ms, per_s, request_file
from sits_bench.group import Bench, Comparison
from sits_bench.groups.front import KILOBYTE
from sits_bench.mesh_system import FORCE_GRPC, INLINE, MeshSystem
from sits_bench.no_dispatcher import NoDispatcher
from sits_bench.servers import Echo, NaiveMesh
from sits_sim.figures import Figure, at_most

MANY, ONE = "64", "1"
_MESH: Final = MeshSystem("mesh", [repositories.echo()])
_REMOTE: Final = MeshSystem("mesh, gRPC links", [repositories.echo()], {**FORCE_GRPC, **INLINE})
_DIRECT: Final = MeshSystem("mesh, no dispatcher", [repositories.echo()], made_by=NoDispatcher)
_NAIVE, _RAW = NaiveMesh(), Echo("sync")
CPU_US: Final = 80.0


def _trials(plan: Plan) -> Sequence[Trial]:
    requests = request_file("1-kb", [KILOBYTE])
    loads = {MANY: plan.closed(requests, 64), ONE: plan.closed(requests, 1, times=0.5)}
    check = partial(checks.echoes, inference=KILOBYTE)
    return [
        Trial(_MESH, loads, check, start_s=6.0),
        Trial(_DIRECT, {ONE: loads[ONE]}, check, start_s=6.0),
        Trial(_REMOTE, {MANY: loads[MANY]}, check, start_s=6.0),
        Trial(_NAIVE, {MANY: loads[MANY]}, check, start_s=3.0),
        Trial(_RAW, loads, check, start_s=2.0),
    ]


def _figures(found: Found, _bench: Bench) -> list[Figure]:
    median = found.median
    own, raw = median(_MESH.name, MANY, per_s), median(_RAW.name, MANY, per_s)
    remote, naive = median(_REMOTE.name, MANY, per_s), median(_NAIVE.name, MANY, per_s)
    return [
        at_least_times(
            f"mesh.raw: whole mesh, 1 KB, 64 in flight, against one {_RAW.name}",
            own, "req/s", raw, 2.8,
        ),
        at_least_times("mesh.grpc_links: the same, all links gRPC streams",
                       remote, "req/s", raw, 1.5),
        at_least_times("mesh.naive: whole mesh against the naive mesh", own, "req/s", naive, 8.1),
        times_lower(
            "mesh.naive_p99: whole mesh against the naive mesh, p99",
            median(_MESH.name, MANY, p99_ms), "ms", median(_NAIVE.name, MANY, p99_ms), 11.3,
        ),
        at_most_times(
            f"mesh.one: one request at a time, p50, against one {_RAW.name}",
            median(_MESH.name, ONE, p50_ms), "ms", median(_RAW.name, ONE, p50_ms), 1.5,
        ),
        compared(
            "mesh.one.no_dispatcher: the same, batches sent to the executor directly",
            median(_DIRECT.name, ONE, p50_ms), "ms", median(_RAW.name, ONE, p50_ms),
        ),
        at_most(
            "mesh.cpu: CPU of all services a request, 64 in flight, metrics and 1 % tracing",
            median(_MESH.name, MANY, cpu_us), "µs", CPU_US,
        ),
    ]  # fmt: skip


MESH: Final = Comparison("mesh", _trials, _figures)
