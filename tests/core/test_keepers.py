"""Keepers publish and follow, outlive a registry that is down, and stop at once."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from sits_core import keepers
from sits_core.keepers import Follower, LeaseKeeper, Periodic
from sits_core.registry import LEASE_TTL_S, TOPOLOGY_TTL_S, Keeper, RegistryUnavailable
from sits_core.testing import FakeClock, MemoryRegistry, wait_until
from sits_protos.v1.link_pb2 import ROLE_DISPATCHER, ROLE_EXECUTOR
from sits_protos.v1.registry_pb2 import Lease
from sits_protos.v1.topology_pb2 import TopologySnapshot

LEASE = Lease(role=ROLE_EXECUTOR, id="e1", address="127.0.0.1:8020")


@contextmanager
def running(keeper: Keeper) -> Iterator[None]:
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()


@pytest.fixture
def hourly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs by its period: what runs was woken."""
    monkeypatch.setattr(keepers, "POLL_PERIOD_S", 3600.0)
    monkeypatch.setattr(keepers, "LEASE_PERIOD_S", 3600.0)


def test_a_periodic_runs_at_once_and_again() -> None:
    runs: list[None] = []
    with running(Periodic(lambda: runs.append(None), 0.001, "test")):
        wait_until(lambda: len(runs) >= 3)


def test_many_wakes_share_a_run_and_the_last_is_never_lost() -> None:
    seen: list[int] = []
    value = 0
    periodic = Periodic(lambda: seen.append(value), 3600.0, "test")
    with running(periodic):
        wait_until(lambda: seen)
        for number in range(1, 10_001):
            value = number
            periodic.wake()
        wait_until(lambda: seen[-1] == 10_000)
    assert len(seen) < 1000


def test_age_counts_from_the_last_run_that_worked() -> None:
    clock, registry, runs = FakeClock(), MemoryRegistry(), []

    def poll() -> None:
        runs.append(None)
        registry.strategies()

    periodic = Periodic(poll, 0.001, "test", clock=clock)
    assert (periodic.age_s, periodic.connected) == (math.inf, False)
    with running(periodic):
        wait_until(lambda: periodic.connected)
        registry.down = True
        wait_until(lambda: not periodic.connected)
        clock.advance(7)
        failed = len(runs)
        wait_until(lambda: len(runs) > failed)
        assert periodic.age_s == 7
        registry.down = False
        wait_until(lambda: periodic.connected)
        assert periodic.age_s == 0


def test_an_unexpected_error_is_logged_once_and_does_not_end_the_keeper() -> None:
    runs: list[None] = []

    def broken() -> None:
        runs.append(None)
        raise ValueError("bad")

    with capture_logs() as lines:
        periodic = Periodic(broken, 0.001, "test")
        with running(periodic):
            wait_until(lambda: len(runs) > 2)
    assert [line["event"] for line in lines] == ["keeper.failed"]
    assert not periodic.connected


def test_stopping_does_not_wait_for_a_run_that_hangs() -> None:
    started, release = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(60)

    periodic = Periodic(hang, 1.0, "test")
    periodic.start()
    assert started.wait(10)
    before = time.monotonic()
    periodic.stop()
    took_s = time.monotonic() - before
    release.set()
    assert took_s < 30


def test_stop_is_safe_before_start_and_twice() -> None:
    periodic = Periodic(lambda: None, 1.0, "test")
    periodic.stop()
    follower = Follower(MemoryRegistry(), lambda: None)
    follower.start()
    follower.stop()
    follower.stop()


def test_the_registry_failing_now_and_then_is_retried_before_the_period(hourly: None) -> None:
    outcomes = [RegistryUnavailable("gone"), None]

    def step() -> None:
        if (error := outcomes.pop(0) if outcomes else None) is not None:
            raise error

    periodic = Periodic(step, 3600.0, "test")
    with running(periodic):
        wait_until(lambda: periodic.connected)


def test_a_lease_is_published_changed_when_woken_and_withdrawn(hourly: None) -> None:
    registry, lease = MemoryRegistry(), Lease()
    lease.CopyFrom(LEASE)
    keeper = LeaseKeeper(registry, lambda: lease)
    with running(keeper):
        wait_until(lambda: registry.leases(ROLE_EXECUTOR) == [LEASE])
        lease.draining = True
        keeper.wake()
        wait_until(lambda: registry.leases(ROLE_EXECUTOR)[0].draining)
    assert registry.leases(ROLE_EXECUTOR) == []


def test_a_lease_keeper_stops_while_the_registry_is_down(hourly: None) -> None:
    registry = MemoryRegistry()
    keeper = LeaseKeeper(registry, lambda: LEASE)
    with running(keeper):
        wait_until(lambda: keeper.connected)
        registry.down = True
    registry.down = False
    assert registry.leases(ROLE_EXECUTOR) == [LEASE]


def test_a_follower_polls_when_something_changed(hourly: None) -> None:
    registry, seen = MemoryRegistry(), []
    with running(Follower(registry, lambda: seen.append(registry.strategies()))):
        wait_until(lambda: seen)
        registry.set_strategy("", "topo_aware")
        wait_until(lambda: seen[-1] == {"": "topo_aware"})


def test_a_stopped_follower_is_not_called_again(hourly: None) -> None:
    registry, polls = MemoryRegistry(), []
    with running(Follower(registry, lambda: polls.append(None))):
        wait_until(lambda: polls)
    count = len(polls)
    registry.set_strategy("", "topo_aware")
    assert len(polls) == count


@pytest.mark.parametrize(
    "make",
    [lambda: LeaseKeeper(None, lambda: LEASE), lambda: Follower(None, lambda: None)],
    ids=["lease", "follower"],
)
def test_without_a_registry_keepers_do_nothing(make: Callable[[], Periodic]) -> None:
    keeper = make()
    with running(keeper):
        assert not keeper.connected
        assert keeper.age_s == math.inf


def test_the_memory_registry_expires_as_the_real_one_does() -> None:
    clock = FakeClock()
    registry = MemoryRegistry(clock)
    registry.publish_lease(LEASE)
    registry.publish_topology(TopologySnapshot(host="h"))
    registry.set_strategy("", "topo_aware")
    clock.advance(LEASE_TTL_S)
    assert registry.leases(ROLE_EXECUTOR) == []
    assert registry.leases(ROLE_DISPATCHER) == []
    assert registry.topologies() == [TopologySnapshot(host="h")]
    clock.advance(TOPOLOGY_TTL_S)
    assert registry.topologies() == []
    assert registry.strategies() == {"": "topo_aware"}


def test_a_memory_registry_that_is_down_refuses_every_call() -> None:
    registry = MemoryRegistry()
    registry.down = True
    for call in (
        lambda: registry.publish_lease(LEASE),
        lambda: registry.withdraw_lease(ROLE_EXECUTOR, "e1"),
        lambda: registry.leases(ROLE_EXECUTOR),
        lambda: registry.publish_topology(TopologySnapshot()),
        registry.topologies,
        lambda: registry.set_strategy("", ""),
        registry.strategies,
    ):
        with pytest.raises(RegistryUnavailable):
            call()
