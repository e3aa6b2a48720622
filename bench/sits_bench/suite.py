"""`sits bench mesh`: all groups, or some; a report with figures, and what could not be measured."""

from collections.abc import Sequence
from typing import Final

import grpc
from tritonclient.utils import InferenceServerException

from sits_bench.compare import Plan, Progress
from sits_bench.group import Bench, Group
from sits_bench.groups import (
    cache,
    front,
    mesh,
    networks,
    overload,
    payload,
    scale,
    tracing,
    window,
)
from sits_bench.loadgen import BenchError, build
from sits_sim.figures import Figure

EXPECTED: Final = (BenchError, InferenceServerException, grpc.RpcError, OSError)
"""What a server that does not do as it should leads to."""

GROUPS: Final[Sequence[Group]] = (
    front.FRONT,
    mesh.MESH,
    payload.PAYLOAD,
    networks.SMALL,
    networks.LARGE,
    overload.SMALL,
    overload.LARGE,
    tracing.TRACING,
    window.WINDOW,
    scale.SCALE,
    cache.CACHE,
)


def chosen(only: Sequence[str]) -> list[Group]:
    """The groups that the wanted figures are in; all when nothing is named. Raises `BenchError`."""
    names = [group.name for group in GROUPS]
    wanted = {figure.partition(".")[0] for figure in only}
    if unknown := sorted(wanted - set(names)):
        raise BenchError(f"unknown: {', '.join(unknown)}; there are {', '.join(names)}")
    return [group for group in GROUPS if not only or group.name in wanted]


def run(plan: Plan, progress: Progress, only: Sequence[str] = ()) -> tuple[Bench, list[Figure]]:
    """A group that fails is noted, and the others go on."""
    build()
    bench = Bench(plan, progress)
    groups = chosen(only)
    progress.expect(sum(group.seconds(plan) for group in groups))
    figures: list[Figure] = []
    for group in groups:
        try:
            figures += group.run(bench)
        except EXPECTED as error:
            bench.failures.append(f"{group.name}: {error}")
    return bench, [figure for figure in figures if _wanted(figure, only)]


def _wanted(figure: Figure, only: Sequence[str]) -> bool:
    """Named by its group (`mesh`), by a figure (`mesh.raw`), or by the start of one."""
    return not only or any(
        figure.figure.startswith(name if "." in name else f"{name}.") for name in only
    )
