"""The ablation ladder: 17 steps from the naive mesh to the full one, each a configuration."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from sits_bench import checks, client_memory, machine, repositories
from sits_bench.compare import (
    FULL,
    QUICK,
    Found,
    Plan,
    Trial,
    alternate,
    copies_in_all,
    cpu_us,
    expect,
    p50_ms,
    p99_ms,
    per_s,
    request_file,
)  # fmt: skip
from sits_bench.loadgen import Measured, build
from sits_bench.mesh_system import MeshSystem
from sits_bench.messages import Inference, Region, random_floats
from sits_bench.servers import NaiveMesh
from sits_bench.show import finish, main, options
from sits_bench.steps import Step, steps
from sits_bench.system import Running, System
from sits_bench.watching import watching
from sits_cli.output import Column, print_table
from sits_sim.figures import Figure, Panel, Report, Series, plain

EXECUTORS = 2
IN_FLIGHT = 64
SMALL, MEDIUM, LARGE = (
    Inference(repositories.ECHO, {"INPUT": random_floats(1, 1, count)}, kind=kind)
    for kind, count in enumerate((256, 16 << 10, 128 << 10))
)
"""1 KB, 64 KB, 512 KB."""
MIX = (*[SMALL] * 14, MEDIUM, LARGE)
"""Mostly small, as requests are; the large ones show what their bytes cost."""
LOAD = "mix"
START_S = 8.0

Regions = tuple[Region, Region]


@dataclass(frozen=True, slots=True)
class Named:
    """A system under the name of its step."""

    name: str
    system: System

    @contextmanager
    def start(self) -> Iterator[Running]:
        with self.system.start() as running:
            yield running


def trials(plan: Plan, regions: Regions) -> list[Trial]:
    inline = plan.closed(request_file("mix", MIX), IN_FLIGHT)
    shared = [*[SMALL] * 14, MEDIUM, client_memory.by_reference(LARGE, regions)]
    by_region = replace(inline, requests=request_file("mix-region", shared))
    check = partial(checks.echoes, inference=SMALL)
    found = [Trial(Named("1", NaiveMesh(EXECUTORS)), {LOAD: inline}, check, start_s=3.0)]
    for number, step in enumerate(steps(), 2):
        found.append(
            Trial(
                Named(str(number), _mesh(number, step)),
                {LOAD: by_region if step.client_memory else inline},
                partial(_check, regions=regions) if step.client_memory else check,
                start_s=START_S,
            )
        )
    return found


def _mesh(number: int, step: Step) -> MeshSystem:
    model = repositories.echo(max_batch=step.max_batch, more=step.more)
    return MeshSystem(f"ladder {number}", [model], step.env, executors=EXECUTORS, base={})


def _check(running: Running, regions: Regions) -> None:
    checks.echoes(running, SMALL)
    client_memory.register(running, regions)


def titles() -> list[str]:
    return ["the naive mesh", *(step.title for step in steps())]


def figures(found: Found) -> list[Figure]:
    made = []
    for number, title in enumerate(titles(), 1):
        made += [
            plain(f"ladder.{number}.{name}: {title}, {text}",
                  found.median(str(number), LOAD, value), unit)
            for name, text, value, unit in COLUMNS
        ]  # fmt: skip
    return made


def p95_ms(run: Measured) -> float:
    return run.answered.p95


COLUMNS = (
    ("p50", "p50", p50_ms, "ms"),
    ("p95", "p95", p95_ms, "ms"),
    ("p99", "p99", p99_ms, "ms"),
    ("requests", "requests/s", per_s, "req/s"),
    ("cpu", "CPU a request", cpu_us, "µs"),
    ("copies", "copies a request", copies_in_all, ""),
)


def table(found: Found) -> None:
    right = [Column(text, right=True) for _, text, _, _ in COLUMNS]
    rows = [
        (str(number), title,
         *(shown(found.median(str(number), LOAD, value)) for _, _, value, _ in COLUMNS))
        for number, title in enumerate(titles(), 1)
    ]  # fmt: skip
    print_table(("step", "what it adds", *right), rows)


def shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.4g}"


def panels(found: Found) -> list[Panel]:
    numbers = list(range(1, len(titles()) + 1))
    x = [float(number) for number in numbers]
    return [
        Panel(
            "Ablation ladder", "step", text,
            [Series(text, x, [found.median(str(n), LOAD, value) for n in numbers])], log_y=True,
        )
        for _, text, value, _ in COLUMNS[2:5]
    ]  # fmt: skip


def body() -> int:
    parser = options(__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it into this PNG or SVG")
    given = parser.parse_args()
    plan = replace(QUICK, rounds=1) if given.quick else FULL
    described = machine.describe()
    build()
    (array,) = LARGE.inputs.values()
    with (
        client_memory.regions(array, f"bench-{os.getpid()}") as regions,
        watching() as progress,
    ):
        chosen = trials(plan, regions)
        progress.expect(expect(chosen, plan.rounds))
        found = alternate(chosen, plan.rounds, progress)
    parameters = {**described, "plan": asdict(plan), "requests": "14 of 1 KB, one of 64 KB, "
                  "one of 512 KB; 64 in flight, 2 executors"}  # fmt: skip
    report = Report(parameters, figures(found), panels(found))
    if not given.json:
        table(found)
    return finish("ladder", report, given, raw=found.as_list(), plot=given.plot, table=False)


if __name__ == "__main__":
    main(body)
