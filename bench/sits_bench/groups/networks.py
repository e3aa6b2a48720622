"""The same two networks behind the mesh and behind other servers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from sits_bench import checks, peers, repositories
from sits_bench.bars import at_least_times, at_most_times, compared
from sits_bench.compare import (
    Found,
    Plan,
    Trial,
    cpu_us,
    p50_ms,
    p99_ms,
    per_s,
    request_file,
)  # fmt: skip
from sits_bench.group import Bench, Comparison
from sits_bench.loadgen import Measured
from sits_bench.mesh_system import MeshSystem
from sits_bench.no_dispatcher import NoDispatcher
from sits_bench.onnx_models import MLP, TRANSFORMER, Network
from sits_bench.system import System
from sits_sim.figures import Figure, Panel, Series

LEVELS: Final = (16, 64, 256)
DIRECT: Final = "mesh, no dispatcher"
START_S: Final = {"ray": 20.0, "mlserver": 4.0, "mosec": 4.0}
OTHERS_START_S: Final = 6.0
SLOW_S: Final = 10.0
AT_64: Final = {"mlserver": 8.0, "ray": 20.0, "mosec": 0.7}
"""Peer → how many times its requests/s we reach at 64 in flight."""


def mesh(network: Network) -> MeshSystem:
    return MeshSystem("mesh", [repositories.network(network)])


def _trial(plan: Plan, network: Network, system: System, levels: Sequence[int]) -> Trial:
    raw = system.name == "mosec"
    name = f"{network.name}{'-raw' if raw else ''}"
    requests = request_file(name, [network.inference()], raw=raw)
    times = 2.0 if network is TRANSFORMER else 1.0
    loads = {str(level): plan.closed(requests, level, times=times) for level in levels}
    check = partial(checks.serves, network=network)
    start_s = START_S.get(system.name, OTHERS_START_S)
    rounds = plan.slow_rounds if start_s > SLOW_S else plan.rounds
    return Trial(system, loads, check, rounds=rounds, start_s=start_s)


def _peer(plan: Plan, network: Network, peer: str, levels: Sequence[int]) -> list[Trial]:
    if not peers.installed(peer):
        return []
    return [_trial(plan, network, peers.system(peer, network), levels)]


def _mlp_trials(plan: Plan) -> Sequence[Trial]:
    direct = MeshSystem(DIRECT, [repositories.network(MLP)], made_by=NoDispatcher)
    trials = [_trial(plan, MLP, mesh(MLP), LEVELS), *_peer(plan, MLP, "triton", LEVELS)]
    trials.append(_trial(plan, MLP, direct, LEVELS[:1]))
    for peer in AT_64:
        trials += _peer(plan, MLP, peer, (64,))
    return trials


def _transformer_trials(plan: Plan) -> Sequence[Trial]:
    levels = LEVELS[:2]
    own = _trial(plan, TRANSFORMER, mesh(TRANSFORMER), levels)
    return [own, *_peer(plan, TRANSFORMER, "triton", levels)]


def _require(found: Found, peer: str, bench: Bench) -> bool:
    if not found.has(peer):
        bench.lacks(f"{peer} is not installed: make bench-peers")
    return found.has(peer)


def _mlp_figures(found: Found, bench: Bench) -> list[Figure]:
    bench.panels += _panels(found)
    figures = []
    if _require(found, "triton", bench):
        figures += _against_triton(found, "mlp", {16: 1.2, 64: 1.3, 256: 1.5})
        own, other = (found.median(name, "64", cpu_us) for name in ("mesh", "triton"))
        figures.append(
            at_most_times("mlp.triton_cpu: MLP, CPU a request at 64 in flight, against Triton",
                          own, "µs", other, 0.7)
        )  # fmt: skip
        for unit, value in (("req/s", per_s), ("ms", p99_ms)):
            own, other = (found.median(name, "16", value) for name in (DIRECT, "triton"))
            figure = f"mlp.no_dispatcher: 16 in flight, no dispatcher, {unit}, against Triton"
            figures.append(compared(figure, own, unit, other))
    for peer, limit in AT_64.items():
        if _require(found, peer, bench):
            own, other = (found.median(name, "64", per_s) for name in ("mesh", peer))
            figure = f"mlp.{peer}: MLP at 64 in flight, against {peer}"
            figures.append(at_least_times(figure, own, "req/s", other, limit))
    return figures


def _transformer_figures(found: Found, bench: Bench) -> list[Figure]:
    if not _require(found, "triton", bench):
        return []
    return _against_triton(found, "transformer", {16: 1.0, 64: 1.0})


def _against_triton(found: Found, network: str, limits: dict[int, float]) -> list[Figure]:
    def both(level: int, value: Callable[[Measured], float]) -> list[float]:
        return [found.median(name, str(level), value) for name in ("mesh", "triton")]

    figures = []
    for level, limit in limits.items():
        own, other = both(level, per_s)
        name = f"{network}.triton_{level}: {network} at {level} in flight, against Triton"
        figures.append(at_least_times(name, own, "req/s", other, limit))
    own, other = both(16, p99_ms)
    name = f"{network}.triton_p99: {network} at 16 in flight, p99, against Triton"
    figures.append(at_most_times(name, own, "ms", other, 0.85))
    own, other = both(16, p50_ms)
    name = f"{network}.triton_p50: {network} at 16 in flight, p50, against Triton"
    return [*figures, compared(name, own, "ms", other)]


def _panels(found: Found) -> list[Panel]:
    """Throughput and tail over the requests in flight; one point for those measured once."""

    def series(value: Callable[[Measured], float]) -> list[Series]:
        names = dict.fromkeys(name for name, _ in found.runs)
        return [
            Series(
                name,
                [float(level) for level in LEVELS if (name, str(level)) in found.runs],
                [
                    found.median(name, str(level), value)
                    for level in LEVELS
                    if (name, str(level)) in found.runs
                ],
            )
            for name in names
        ]

    return [
        Panel("MLP 64-128-10", "requests in flight", "requests/s", series(per_s)),
        Panel("MLP 64-128-10", "requests in flight", "p99, ms", series(p99_ms), log_y=True),
    ]


SMALL: Final = Comparison("mlp", _mlp_trials, _mlp_figures)
LARGE: Final = Comparison("transformer", _transformer_trials, _transformer_figures)
