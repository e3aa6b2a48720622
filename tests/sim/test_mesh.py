"""What every run of a simulated mesh must hold, whatever is decided in it."""

from dataclasses import replace

import numpy as np
import pytest

from sits_sim.batch import Batch
from sits_sim.faults import DEAD, Fault
from sits_sim.ledger import End, Ledger
from sits_sim.testing import batched, mesh, requests


def outcome(load: float, seed: int) -> list[float]:
    found = mesh(requests(load, seed), batched(seed=seed)).run().results()
    return found.latency_ms.tolist()


def test_the_same_seed_gives_the_same_run_and_another_gives_another() -> None:
    assert outcome(1.0, seed=1) == outcome(1.0, seed=1)
    assert outcome(1.0, seed=1) != outcome(1.0, seed=2)


@pytest.mark.parametrize("load", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("strategy", ["round_robin", "least_loaded", "topo_aware"])
def test_every_request_ends_once_and_all_load_is_released(strategy: str, load: float) -> None:
    simulated = mesh(requests(load), batched(strategy))
    results = simulated.run().results()
    assert set(results.end.tolist()) == {End.ANSWERED}
    assert simulated.dispatcher.table.batches_in_flight() == 0
    assert all(device.load == 0 for device in simulated.devices)


def test_a_second_end_of_a_request_is_an_error() -> None:
    ledger = Ledger(requests(0.3))
    ledger.close(0, End.ANSWERED, 1)
    with pytest.raises(RuntimeError, match="request 0 ended twice: ANSWERED, EXPIRED"):
        ledger.close(0, End.EXPIRED, 2)


def test_a_request_without_an_end_is_an_error() -> None:
    load = requests(0.3)
    ledger = Ledger(load)
    ledger.close(0, End.ANSWERED, 1)
    with pytest.raises(RuntimeError, match=f"{len(load) - 1} requests were lost"):
        ledger.results()


def test_devices_are_as_busy_as_the_work_they_got() -> None:
    """Single rows one after the other at 60 % of what the devices can do so."""
    load = requests(0.6)
    plan = batched()
    unbatched = type(plan)("round_robin", type(plan.policy)(0), slots=0, fronts=plan.fronts)
    simulated = mesh(load, unbatched)
    simulated.run()
    assert simulated.meter.utilisation == pytest.approx(0.6, rel=0.1)


def test_batches_carry_more_than_devices_could_run_one_by_one() -> None:
    simulated = mesh(requests(5.0), batched())
    results = simulated.run().results()
    assert results.attainment > 0.95
    assert simulated.dispatcher.decisions < len(results) / 2


def test_refused_requests_count_as_missed_and_not_as_fast() -> None:
    load = requests(0.3, count=4)
    ledger = Ledger(load)
    for request in range(len(load)):
        end = End.ANSWERED if request % 2 else End.REFUSED
        ledger.close(request, end, int(load.at_ns[request]) + 1_000_000)
    results = ledger.results()
    assert results.attainment == pytest.approx(np.mean(results.end == End.ANSWERED))
    assert results.percentile_ms(50) == pytest.approx(1.0)


def test_goodput_is_what_came_out_in_the_window_and_not_what_a_short_run_lets_wait() -> None:
    load = requests(0.3, count=100)
    ledger = Ledger(load)
    for request in range(len(load)):
        late = request >= len(load) // 2
        ledger.close(request, End.ANSWERED, int(load.at_ns[-1]) + 1 if late else request + 1)
    window_s = load.duration_s
    assert ledger.results().goodput_per_s(0.0, window_s) * window_s == len(load) // 2


def test_what_dead_devices_held_runs_elsewhere_and_nothing_is_lost() -> None:
    load = requests(4.0)  # every device holds something at any time
    end_ns = int(load.at_ns[-1])
    faults = [Fault(device, end_ns // 4, end_ns // 4, DEAD) for device in range(4)]
    plan = replace(batched(admission=True), faults=tuple(faults))
    simulated = mesh(load, plan)
    moved: list[Batch] = []
    simulated.dispatcher.lost = moved.extend  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="requests were lost"):
        simulated.run().results()
    assert moved
    results = mesh(load, plan).run().results()
    assert results.share(End.FAILED) == 0
    assert results.attainment > 0.9


def test_devices_that_come_back_are_used_again() -> None:
    load = requests(2.0)
    end_ns = int(load.at_ns[-1])
    simulated = mesh(load, replace(batched(), faults=(Fault(0, 0, end_ns // 2, DEAD),)))
    simulated.run().results()
    assert simulated.devices[0].rows > 0
    assert simulated.dispatcher.table.batches_in_flight() == 0
    assert len(simulated.dispatcher.table) == 16


def test_a_slow_device_is_noticed_and_gets_less() -> None:
    load = requests(2.0)
    end_ns = int(load.at_ns[-1])
    simulated = mesh(load, replace(batched(), faults=(Fault(0, 0, end_ns, 4.0),)))
    simulated.run().results()
    others = np.mean([device.rows for device in simulated.devices[1:]])
    assert simulated.devices[0].rows < others / 2
