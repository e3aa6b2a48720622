"""What the backend costs on top of bare copies and a bare replay (figure 2).

Bare: pinned memory → device, `graph.replay()`, device → pinned memory, `synchronize`. Ours: the
copy into pinned memory, the same, an event looked at until it is done, and the results as arrays.
Both on the same graph, in turns.
"""

from collections.abc import Callable
from statistics import median
from typing import Final

import torch

from gpu.rig import Net, Setup, all_us, backend, fly, mlp, small_transformer
from sits_executor.backends.pytorch.streams import StreamedBackend
from sits_sim.figures import Figure, at_most, plain

MOST_US: Final = 40.0
WITHIN: Final = 1.10
ROUNDS: Final = 5


def measure(setup: Setup) -> list[Figure]:
    figures: list[Figure] = []
    for net, rows, bar in (
        (mlp(setup), 8, False),
        (small_transformer(setup), 1, True),
        (small_transformer(setup), 32, True),
    ):
        figures += _of(setup, net, rows, bar)
    return figures


def _of(setup: Setup, net: Net, rows: int, near_bare: bool) -> list[Figure]:
    opened = backend(net, setup.open(), buckets=(rows,))
    try:
        bare, ours = _in_turns(setup, _bare(setup, opened, rows), _ours(opened, net, rows))
    finally:
        opened.close()
    name = f"own cost: {net.name}, batch {rows}"
    figures = [
        at_most(f"{name}, on top of bare replay and copies, p50", ours - bare, "us", MOST_US),
        plain(f"{name}, ours", ours, "us"),
        plain(f"{name}, bare", bare, "us"),
    ]
    if near_bare:
        figures.append(at_most(f"{name}, ours over bare, p50", ours / bare, "x", WITHIN))
    return figures


def _in_turns(
    setup: Setup, bare: Callable[[], object], ours: Callable[[], object]
) -> tuple[float, float]:
    times = setup.times(300)
    rounds = [(median(all_us(bare, times)), median(all_us(ours, times))) for _ in range(ROUNDS)]
    return median(r[0] for r in rounds), median(r[1] for r in rounds)


def _bare(setup: Setup, opened: StreamedBackend, rows: int) -> Callable[[], None]:
    slot = opened._slots.slots[0]
    captured = slot.graphs[next(iter(slot.graphs))]
    layout = next(iter(opened._graphs._layouts.values()))
    held = layout.take()
    if held is None:
        raise RuntimeError("no staging memory")
    views = held.views(rows)
    views.inputs[0].tensor.zero_()

    def run() -> None:
        with opened.device.on(slot.stream):
            captured.inputs[0].copy_(views.inputs[0].tensor, non_blocking=True)
            captured.graph.replay()
            views.outputs[0].tensor.copy_(captured.outputs[0], non_blocking=True)
            if setup.on_gpu:
                torch.cuda.current_stream().synchronize()

    return run


def _ours(opened: StreamedBackend, net: Net, rows: int) -> Callable[[], object]:
    inputs = net.inputs(rows, 1)
    return lambda: fly(opened, inputs)
