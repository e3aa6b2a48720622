"""A two-step pipeline: both halves where the data moves least, against random placement.

The decision is `sits_scheduling.pipelines` with the published costs; the time is that of real
copies. A step on another GPU gets its input over the link between the two, or, as between two
executors of the mesh, through host memory. The first input lies in host memory.
"""

import random
import time
from collections.abc import Sequence
from statistics import mean, median
from typing import Final

import numpy as np
import torch

from gpu.links import Links, host_of
from sits_scheduling.links import LATENCY_US
from sits_scheduling.pipelines import Step, best_path
from sits_sim.figures import Figure, at_least, higher

WIDTH, ROWS = 4096, 8192
HAND_OVER: Final = WIDTH * ROWS * 2
"""Bytes between the two steps: activations in half precision."""
INPUT_ROWS: Final = 128
RUNS, DRAWS = 15, 40
Choice = tuple[int, int]
Times = dict[Choice, float]


def measure(links: Links) -> list[Figure]:
    gpus = list(links.report.gpus)
    pairs = [(one, other) for one in range(len(gpus)) for other in range(len(gpus))]
    direct = {pair: _run(*pair, through_host=False) for pair in pairs}
    carried = {pair: _run(*pair, through_host=True) for pair in pairs}
    ours = chosen(links, gpus)
    rng = random.Random(3)  # noqa: S311 - repeatable
    drawn = [(rng.randrange(len(gpus)), rng.randrange(len(gpus))) for _ in range(DRAWS)]
    return [
        at_least("placement.same: topo_aware hands over where data moves least",
                 float(ours[0] == ours[1]), "1 = yes", 1),
        _against("over NVLink", direct, ours, drawn),
        _against("through host memory", carried, ours, drawn),
    ]  # fmt: skip


def _against(way: str, times: Times, ours: Choice, drawn: Sequence[Choice]) -> Figure:
    """Chosen against random, where a step elsewhere gets its input that `way`."""
    anywhere_s = mean(times[choice] for choice in drawn)
    name = f"placement.time: two steps, {HAND_OVER >> 20} MiB handed over, else {way}"
    return higher(f"{name}, runs against random", 1 / times[ours], "1/s", 1 / anywhere_s, 1.0)


def chosen(links: Links, gpus: Sequence[str]) -> Choice:
    """What the scheduler answers when all GPUs are idle and equally fast."""
    costs = {(getattr(w, "from"), w.to): w.cost_s_per_mb for w in links.published.weights}
    host, idle = host_of(links.topology), np.zeros(len(gpus))
    first_bytes = INPUT_ROWS * WIDTH * 2
    from_source = np.array([first_bytes * costs[host, gpu] for gpu in gpus])
    between = np.array([[costs[one, other] for other in gpus] for one in gpus])
    steps = [Step(idle, first_bytes), Step(idle, HAND_OVER)]
    found = best_path(steps, from_source, [between], LATENCY_US[False])
    return found.choices[0], found.choices[1]


def _run(first: int, second: int, *, through_host: bool) -> float:
    """Median seconds of input → step → hand-over → step → a value of the result on the host."""
    source = torch.ones(INPUT_ROWS, WIDTH, dtype=torch.float16).pin_memory()
    staged = torch.empty(ROWS, WIDTH, dtype=torch.float16).pin_memory()
    weights = [torch.eye(WIDTH, dtype=torch.float16, device=f"cuda:{n}") for n in (first, second)]
    there = [torch.zeros(ROWS, WIDTH, dtype=torch.float16, device=w.device) for w in weights]
    samples = []
    for _ in range(RUNS + 3):
        started = time.perf_counter()
        there[0][:INPUT_ROWS].copy_(source, non_blocking=True)
        middle = there[0] @ weights[0]
        if first != second and through_host:
            staged.copy_(middle)
            middle = there[1].copy_(staged, non_blocking=True)
        elif first != second:
            middle = there[1].copy_(middle, non_blocking=True)
        float((middle @ weights[1])[0, 0])
        samples.append(time.perf_counter() - started)
    return median(samples[3:])
