"""Three tenants ask for twice of what the mesh can do: who is answered in time, who hears no."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from sits_bench.bars import at_most_times
from sits_bench.compare import request_file, run, steady
from sits_bench.loadgen import Load, Measured
from sits_bench.mesh_system import MeshSystem
from sits_bench.messages import Inference
from sits_bench.repositories import Model, echo
from sits_bench.shapes import TENANTS
from sits_bench.system import Running
from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import metric, state_of
from sits_core.testing import wait_until
from sits_sim.figures import Figure, at_least, at_most, plain
from sits_sim.load import poisson

SLO_MS: Final[Mapping[str, int]] = {"gold": 200, "silver": 500, "bronze": 1000}
"""Those of the dispatcher's page; each request has its tenant's as `timeout`."""
OFFERED: Final = (0.5, 0.5, 1.0)
"""Of the capacity, by tenant: Gold asks for no more than its weight gives it."""
RUN_MS, ROWS, EXECUTORS = 20, 8, 2
IN_FLIGHT: Final = 4 * ROWS * EXECUTORS
CONNECTIONS: Final = 8
REFUSED_MS: Final = 5.0
GOLD_SHARE: Final = 0.9
CALM_S: Final = 15.0
MODEL: Final = "steady"


def system(dispatchers: int = 1) -> MeshSystem:
    """Runs of a fixed time that take no CPU, so that the capacity is what it is on any machine
    and the services are not what is short."""
    return MeshSystem("tenants overload", [model()], executors=EXECUTORS, dispatchers=dispatchers)


def model() -> Model:
    more = f'parameters {{ key: "sleep_ms" value: {{ string_value: "{RUN_MS}" }} }}\n'
    return echo(MODEL, max_batch=ROWS, function="sleep", more=more)


def inferences() -> list[Inference]:
    row = np.ones((1, 16), np.float32)
    return [
        Inference(MODEL, {"INPUT": row}, {"sits_tenant": t, "timeout": SLO_MS[t] * 1000}, kind)
        for kind, t in enumerate(TENANTS)
    ]


def capacity(running: Running, warm_up_s: float, duration_s: float) -> Measured:
    """In a closed loop of one tenant, without deadlines."""
    plain_one = Inference(MODEL, {"INPUT": np.ones((1, 16), np.float32)})
    requests = request_file("tenants-closed", [plain_one])
    load = Load(requests, in_flight=IN_FLIGHT, warm_up_s=warm_up_s, duration_s=duration_s)
    return steady(running, load)


def overload(
    running: Running, per_s: float, warm_up_s: float, duration_s: float, seed: int
) -> tuple[Measured, list[int]]:
    """An open loop of all tenants; also how many requests each of them made in the window."""
    rng = np.random.default_rng(seed)
    streams = [poisson(share * per_s, warm_up_s + duration_s, rng) for share in OFFERED]
    at_s = np.concatenate(streams)
    which = np.repeat(np.arange(len(TENANTS)), [len(stream) for stream in streams])
    order = np.argsort(at_s, kind="stable")
    load = Load(
        request_file("tenants-open", inferences()),
        at_s=at_s[order],
        which=which[order],
        connections=CONNECTIONS,
        warm_up_s=warm_up_s,
        duration_s=duration_s,
    )
    asked = [int(np.count_nonzero(stream >= warm_up_s)) for stream in streams]
    return run(running, load), asked


def left_when_idle(mesh: Mesh) -> float:
    """What the counters show once nobody asks any more; 0 is what they must come back to."""

    def held() -> float:
        front, admin = mesh.addresses.front_metrics, mesh.addresses.admin
        waiting = metric(front, "sits_preprocess_queued") + metric(admin, "sits_dispatcher_pending")
        peers = state_of(mesh).peers
        return waiting + sum(peer.batches_in_flight + peer.rows_in_flight for peer in peers)

    try:
        wait_until(lambda: held() == 0, CALM_S, "counters at zero")
    except AssertionError:
        return held()
    return 0.0


def figures(found: Measured, asked: list[int], per_s: float, left: float) -> list[Figure]:
    answered = dict(zip(TENANTS, found.kinds, strict=True))
    shares = {t: answered[t].count / max(1, n) for t, n in zip(TENANTS, asked, strict=True)}
    gold = answered["gold"]
    return [
        plain("capacity: requests/s answered in a closed loop", per_s, "/s"),
        plain("offered: of capacity, open loop", sum(asked) / found.seconds / per_s, ""),
        at_most_times(
            "gold.p99: p99 of Gold's admitted requests, against its SLO",
            gold.p99 if gold.count else float("inf"), "ms", SLO_MS["gold"], 1.0,
        ),
        at_least("gold.answered: share of Gold's requests answered", shares["gold"], "",
                 GOLD_SHARE),
        *(plain(f"{t}.answered: share answered", shares[t], "") for t in TENANTS[1:]),
        *(plain(f"{t}.p99: p99 of what was answered", answered[t].p99, "ms") for t in TENANTS[1:]),
        plain("goodput: answered in all, of capacity", found.per_s / per_s, ""),
        at_most("refused.p99: how soon shed requests hear it, p99", found.refused.p99, "ms",
                REFUSED_MS),
        plain("expired: share let in, and not done in time", found.expired.count / sum(asked), ""),
        at_most("unanswered: without any answer at the end", found.unanswered, "", 0),
        at_most("left: in queues and in flight once it is calm", left, "", 0),
        plain("lag.p99: how late the generator itself was", found.lag.p99, "ms"),
    ]  # fmt: skip


def worst(rounds: list[list[Figure]]) -> list[Figure]:
    """Figure by figure the round that comes off worst: a bar holds in all of them or not at all."""
    return [max(same, key=_badness) for same in zip(*rounds, strict=True)]


def _badness(figure: Figure) -> float:
    compared = figure.ratio if figure.ratio is not None else float(figure.value)
    return -compared if figure.bar is not None and figure.bar.relation == ">=" else compared
