"""No decision is made in the simulator: each is asked of `sits_scheduling`, and obeyed.

Three ways to see it. The world's modules do not know the scheduling layer, and no code that
runs in a simulation chooses or orders. What happens in a run is what the objects answered.
And a run whose decision object says nothing is the run without it.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sits_sim
from sits_scheduling.batching import BatchQueue, ClosedBatch, CloseReason
from sits_scheduling.communication_quota import LinkQuota
from sits_scheduling.gangs import Gang, TopologyGangs
from sits_scheduling.gate import Gate
from sits_scheduling.governance import Governor
from sits_scheduling.jitter import JitterControl, JitterState, Mode
from sits_scheduling.placing import Placed, Placing
from sits_scheduling.quotas import Reason, Refusal
from sits_scheduling.time_slices import TimeSlices
from sits_sim import gang_run
from sits_sim.batch import Batch
from sits_sim.cluster import mixed
from sits_sim.device import Device
from sits_sim.governed import Trouble
from sits_sim.ledger import End
from sits_sim.mesh import Mesh
from sits_sim.scenarios import contention, governance, jitter, timeslice
from sits_sim.testing import batched, mesh, requests

SOURCES = Path(sits_sim.__file__).parent

WORLD = (
    "clock", "cluster", "device", "figures", "gangs", "ledger", "link", "link_times", "load",
    "meter", "parallel", "pipeline", "plot", "progress", "service_times", "slices", "traces",
    "workload", "faults", "scenarios/size",
)  # fmt: skip
"""What is the world's: arrivals, run times, links, devices, and the reports about them."""

CHOOSING = {
    "argmax", "argmin", "argpartition", "argsort", "choice", "choices", "heapify", "heappop",
    "heappush", "lexsort", "nlargest", "nsmallest", "randint", "randrange", "sample", "shuffle",
    "sort", "sorted",
}  # fmt: skip

NOT_DECISIONS = {
    ("load", "argsort"): "arrivals in order of time",
    ("load", "sort"): "arrivals in order of time",
    ("traces", "argsort"): "arrivals in order of time",
    ("mesh", "argsort"): "requests in the order in which front doors have read them",
    ("mesh", "sorted"): "CPU nodes of a host, to spread front doors over them",
    ("link", "heappush"): "the transfer that ends first, by physics",
    ("link", "heappop"): "the transfer that ends first, by physics",
    ("link_times", "sorted"): "measured sizes in order",
    ("agree", "sorted"): "measured sizes in order",
    ("serving", "choice"): "a sample of the traces, to know the mean",
    ("governed", "choice"): "whose request comes next",
}


def tree(module: str) -> ast.Module:
    return ast.parse((SOURCES / f"{module}.py").read_text())


def modules() -> list[str]:
    found = (path.relative_to(SOURCES).with_suffix("") for path in SOURCES.rglob("*.py"))
    return sorted(str(path) for path in found)


def imports(module: str) -> set[str]:
    nodes = ast.walk(tree(module))
    return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def in_simulation(module: str) -> Iterator[ast.AST]:
    """All code but the functions of scenarios, which set up runs and report on them."""
    for top in tree(module).body:
        if not (module.startswith("scenarios/") and isinstance(top, ast.FunctionDef)):
            yield from ast.walk(top)


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    target = node.func
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""


def test_the_modules_of_the_world_do_not_know_the_scheduling_layer() -> None:
    knowing = {m for m in modules() if any(i.startswith("sits_scheduling") for i in imports(m))}
    assert set(WORLD) & knowing == set()
    assert set(WORLD) <= set(modules())


def test_no_code_in_a_simulation_chooses_or_orders() -> None:
    found = {
        (module, called(node))
        for module in modules()
        for node in in_simulation(module)
        if called(node) in CHOOSING
    }
    assert found - NOT_DECISIONS.keys() == set()
    assert NOT_DECISIONS.keys() - found == set()


def test_the_least_and_greatest_are_never_taken_by_a_measure_of_their_own() -> None:
    """`min` and `max` with a key pick one of several things: that would be a decision."""
    picking = [
        (module, node.lineno)
        for module in modules()
        for node in in_simulation(module)
        if isinstance(node, ast.Call)
        and called(node) in {"min", "max"}
        and any(keyword.arg == "key" for keyword in node.keywords)
    ]
    assert picking == []


# what happens is what was answered


def recorded(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """All answers of a method from now on."""
    answers: list[object] = []
    inner: Callable[..., object] = getattr(owner, name)

    def outer(*args: object, **kwargs: object) -> object:
        answers.append(inner(*args, **kwargs))
        return answers[-1]

    monkeypatch.setattr(owner, name, outer)
    return answers


def submitted(monkeypatch: pytest.MonkeyPatch, simulated: Mesh) -> list[tuple[str, Batch]]:
    """Which batch came to which device."""
    came: list[tuple[str, Batch]] = []
    inner = Device.submit

    def outer(device: Device[Batch], batch: Batch) -> bool:
        number = simulated.devices.index(device)
        came.append((simulated.cluster.gpus[number].id, batch))
        return inner(device, batch)

    monkeypatch.setattr(Device, "submit", outer)
    return came


@pytest.mark.parametrize("load", [0.5, 4.0])
def test_batches_are_those_that_were_closed_and_run_where_they_were_placed(
    monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    closed = recorded(monkeypatch, BatchQueue, "take")
    placed = recorded(monkeypatch, Placing, "place")
    simulated = mesh(requests(load), batched())
    came = submitted(monkeypatch, simulated)
    simulated.run()
    formed = sorted(batch.items for batch in closed if isinstance(batch, ClosedBatch))
    assert sorted(batch.requests for _, batch in came) == formed
    chosen = [place.executor for place in placed if isinstance(place, Placed)]
    assert sorted(executor for executor, _ in came) == sorted(chosen)
    assert all(batch.instance == executor for executor, batch in came)


def test_exactly_those_are_refused_whom_the_gate_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_third(gate: Gate, entry: object, *rest: object) -> Refusal | None:
        third = entry.item % 3 == 0  # type: ignore[attr-defined]
        return Refusal(Reason.SHED, 0, 1) if third else None

    monkeypatch.setattr(Gate, "judge", every_third)
    results = mesh(requests(0.5), batched(admission=True)).run().results()
    assert [end == End.REFUSED for end in results.end] == [n % 3 == 0 for n in range(len(results))]


def test_no_batch_leaves_before_the_queue_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_full(queue: BatchQueue[int], now_ns: int, capacity: object) -> CloseReason | None:
        return CloseReason.ROWS if queue.rows >= queue.policy.max_rows else None

    monkeypatch.setattr(BatchQueue, "should_close", only_full)
    monkeypatch.setattr(BatchQueue, "next_wakeup_ns", lambda *_: None)
    closed = recorded(monkeypatch, BatchQueue, "take")
    ledger = mesh(requests(0.5), batched()).run()
    assert {batch.rows for batch in closed if isinstance(batch, ClosedBatch)} == {32}
    assert 0 < len(ledger.load) - ledger.closed < 4 * 32


def test_gangs_run_on_the_devices_that_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_ones(gangs: TopologyGangs, size: int, *_: object) -> Gang:
        return Gang(tuple(range(16 - size, 16)), 1.0)

    monkeypatch.setattr(TopologyGangs, "place", last_ones)
    run = gang_run.GangRun(
        mixed(16),
        gang_run.PLACEMENTS["topo_aware"](gang_run.fabric_of(mixed(16)), None),  # type: ignore[arg-type]
        gang_run.inputs(gang_run.GangTask("topo_aware", 16, 500.0, 200, 1)),
    )
    run.run()
    assert len(run.latencies_ns) == run.devices.finished
    assert not any(loads[:8].any() for loads in run.loads)
    assert any(loads[15] > 0 for loads in run.loads)


# without an answer it is the run without the object


def test_a_quota_that_never_holds_back_is_no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkQuota, "wait_ns", lambda *_: 0)
    jobs = [contention.Job("", 1, quota, 2, 0.05, 1) for quota in (False, True)]
    without, silent = (contention.run_job(job) for job in jobs)
    assert silent.delays_ms == without.delays_ms


def test_slices_that_are_never_changed_are_fixed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeSlices, "look", lambda *_: False)
    jobs = [timeslice.Job(adaptive, 1, 10.0) for adaptive in (False, True)]
    fixed, silent = (timeslice.run_job(job) for job in jobs)
    assert silent.waits_ms.tolist() == fixed.waits_ms.tolist()


def test_jitter_control_that_is_off_is_no_control(monkeypatch: pytest.MonkeyPatch) -> None:
    off = JitterState(0.0, Mode.OFF, 1.0, 1, False)
    monkeypatch.setattr(JitterControl, "state", lambda _: off)
    jobs = [jitter.Job(60.0, control, 20.0, 1) for control in (False, True)]
    without, silent = (jitter.run_job(job) for job in jobs)
    assert silent.per_second == without.per_second


def test_without_a_plan_nothing_is_done_about_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governance, "SAMPLES", 60)
    neutral = Governor().plan()
    monkeypatch.setattr(Governor, "look", lambda *_: neutral)
    world = governance.World(governance.Job("", Trouble(load=1.5), 1))
    world.run()
    waits = [sample.queue_median_ms for sample in world.samples]
    assert max(waits) > 5_000
    assert {level.name for level in world.levels} == {"NORMAL"}
