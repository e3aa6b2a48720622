"""Replayed outputs against eager ones on fresh random inputs, for every bucket (figure 8)."""

import torch

from gpu.rig import Net, Setup, backend, bert, fly, mlp, small_transformer
from sits_executor.backends.pytorch.capture import TOLERANCE, difference
from sits_executor.backends.pytorch.streams import StreamedBackend
from sits_sim.figures import Figure, at_most, plain


def measure(setup: Setup) -> list[Figure]:
    most = 32 if setup.on_gpu else 8
    nets = (mlp(setup, most=most), small_transformer(setup, most), bert(setup, most))
    return [figure for net in nets for figure in _of(setup, net)]


def _of(setup: Setup, net: Net) -> list[Figure]:
    opened = backend(net, setup.open())
    precision = opened.precision
    name = f"equal: {net.name}, {precision}"
    try:
        buckets = opened._graphs._buckets
        rows = sorted({*buckets, *(max(1, bucket - 1) for bucket in buckets)})
        worst = max(_difference(setup, net, opened, count) for count in rows for _ in range(3))
        replays, eager = opened.stats.replays, opened.stats.eager_runs
    finally:
        opened.close()
    return [
        at_most(f"{name}: largest difference to eager, {len(buckets)} buckets full and padded",
                worst, "of 1", TOLERANCE[precision]),
        plain(f"{name}: replays (and {eager} eager runs)", replays, "runs"),
    ]  # fmt: skip


_seeds = iter(range(1_000_000))


def _difference(setup: Setup, net: Net, opened: StreamedBackend, rows: int) -> float:
    inputs = net.inputs(rows, next(_seeds))
    got = fly(opened, inputs)
    given = torch.from_numpy(next(iter(inputs.values()))).to(setup.device)
    with torch.inference_mode():
        wanted = net.module(given).cpu()
    return difference(torch.from_numpy(next(iter(got.values())).copy()), wanted)
