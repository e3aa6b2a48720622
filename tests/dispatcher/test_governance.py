"""Signals of a running mesh become levels, and levels what fronts and autoscalers are told."""

from dataclasses import dataclass, field

import pytest

from sits_channel.bounded import Pressure
from sits_core.metrics import ProcessRegistry
from sits_core.registry import RegistryUnavailable
from sits_core.settings import load
from sits_core.testing import MemoryRegistry
from sits_core.tracing import Tracer
from sits_dispatcher.app import build_mesh, hello
from sits_dispatcher.job import Front, Job
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.settings import DispatcherSettings
from sits_dispatcher.signals import Signals, memory_spread
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.control_pb2 import GetStateResponse
from sits_protos.v1.link_pb2 import (
    BatchHeader,
    Catalog,
    Credits,
    Hello,
    LinkMessage,
    ModelEntry,
    ModelState,
    ResultHeader,
    Role,
    StageTimes,
)
from sits_protos.v1.topology_pb2 import Device, DeviceKind, TopologySnapshot
from sits_scheduling.signals import Level, Sample
from sits_scheduling.tenants import Tier

MS = 1_000_000
S = 1_000_000_000
T = 1_700_000_000 * S
BAD, GOOD = Sample(queue_median_ms=600.0), Sample()


@dataclass(eq=False)
class Wire:
    """A link that keeps what it was sent."""

    peer: str = "peer:1"
    sent: list[LinkMessage] = field(default_factory=list)

    def write(self, message: bytes) -> Pressure:
        self.sent.append(LinkMessage.FromString(message))
        return Pressure(True, 0.0)

    def close(self) -> None: ...

    def way(self, *, shared_payloads: bool) -> str:
        return "grpc"

    @property
    def credits(self) -> Credits:
        return next(m.credits for m in reversed(self.sent) if m.HasField("credits"))


@pytest.fixture
def registry() -> ProcessRegistry:
    return ProcessRegistry()


@pytest.fixture
def mesh(registry: ProcessRegistry) -> Mesh:
    return mesh_with(registry)


def mesh_with(registry: ProcessRegistry, **values: object) -> Mesh:
    """A dispatcher with one executor, which serves `m` with batches of 16."""
    settings = load(DispatcherSettings, "dispatcher", {}, **values)
    made = build_mesh(settings, hello(settings), Tracer("dispatcher", 100, 0.0), registry)
    link = Wire()
    made.executors.opened(link)
    entry = ModelEntry(
        name="m", version="1", state=ModelState.MODEL_STATE_READY, slots=2, instances=1,
        config=ModelConfig(name="m", max_batch_size=16).SerializeToString(),
    )  # fmt: skip
    for message in (
        LinkMessage(hello=Hello(role=Role.ROLE_EXECUTOR, id="e")),
        LinkMessage(catalog=Catalog(models=[entry])),
    ):
        made.executors.received(link, message.SerializeToString())
    return made


@pytest.fixture
def front(mesh: Mesh) -> Wire:
    link = Wire()
    mesh.fronts.opened(link)
    return link


def govern(mesh: Mesh, sample: Sample, times: int) -> None:
    for _ in range(times):
        mesh.governance.look(sample, T)


def job(queued_ms: int, received_ms: int, sent_ms: int) -> Job:
    header = BatchHeader(oldest_queued_unix_ns=T, closed_unix_ns=T + queued_ms * MS)
    made = Job(1, Front(Wire()), header, b"", received_ns=T + received_ms * MS)
    made.sent_ns = T + sent_ms * MS
    return made


class TestSignals:
    def test_a_wait_is_the_sum_of_what_each_service_saw_on_its_own_clock(self) -> None:
        signals = Signals()
        an_hour = 3600 * S
        times = StageTimes(executor_received=an_hour, input_started=an_hour + 5 * MS)
        signals.returned(job(queued_ms=100, received_ms=70_000, sent_ms=70_020), times)
        assert signals.take([], 0, [], T).queue_median_ms == 125

    def test_what_waits_counts_and_what_did_not_run_does_not(self) -> None:
        signals = Signals()
        signals.returned(job(9_000, 9_000, 9_000), StageTimes())
        waiting = job(queued_ms=50, received_ms=0, sent_ms=0)
        assert signals.take([waiting], 0, [], T + 250 * MS).queue_median_ms == 300

    def test_between_results_of_long_runs_the_last_median_holds_until_nothing_runs(self) -> None:
        signals = Signals()
        signals.returned(job(100, 0, 0), StageTimes(executor_received=1, input_started=1))
        medians = [signals.take([], in_flight, [], T).queue_median_ms for in_flight in (1, 1, 0, 1)]
        assert medians == [100, 100, 0, 0]

    def test_the_busiest_model_is_the_load_on_average(self) -> None:
        signals = Signals()
        signals.load({"a": 1, "b": 9, "gone": 5}, {"a": 10, "b": 10, "gone": 0})
        signals.load({}, {})
        assert signals.take([], 0, [], T).load_over_knee == pytest.approx(0.45 / 0.9)
        assert signals.take([], 0, [], T).load_over_knee == 0

    def test_failed_collectives_are_those_of_gangs_in_the_last_minute(self) -> None:
        signals = Signals()
        signals.gang_ran(ResultHeader(gang_runs=98), T)
        signals.gang_ran(ResultHeader(gang_runs=2, gang_failures=2), T + S)
        assert signals.take([], 0, [], T + 2 * S).collective_failure == pytest.approx(0.02)
        assert signals.take([], 0, [], T + 120 * S).collective_failure == 0

    def test_memory_spread_is_between_gpus_that_tell(self) -> None:
        def gpu(free: int) -> Device:
            return Device(
                kind=DeviceKind.DEVICE_KIND_GPU, memory_total_bytes=100, memory_free_bytes=free
            )

        quiet = Device(kind=DeviceKind.DEVICE_KIND_GPU)
        host = Device(kind=DeviceKind.DEVICE_KIND_CPU, memory_total_bytes=100, memory_free_bytes=0)
        nodes = [
            TopologySnapshot(devices=[gpu(90), quiet, host]),
            TopologySnapshot(devices=[gpu(40)]),
        ]
        assert memory_spread(nodes) == pytest.approx(0.5)
        assert memory_spread(nodes[:1]) == 0


class TestLevels:
    def test_a_bad_signal_halves_batches_and_then_sheds_and_a_good_one_undoes_it(
        self, mesh: Mesh, front: Wire
    ) -> None:
        assert [c.micro_batch_rows for c in front.credits.models] == [0]
        govern(mesh, BAD, 2)
        assert mesh.governance.plan.level is Level.DEGRADE
        assert [c.micro_batch_rows for c in front.credits.models] == [8], "of 16"
        assert list(front.credits.shed_tiers) == []
        assert front.credits.degrade
        govern(mesh, BAD, 5)
        assert list(front.credits.shed_tiers) == ["bronze"]
        govern(mesh, GOOD, 20)
        assert mesh.governance.plan.level is Level.NORMAL
        assert mesh.governance.plan.shed == ()
        assert not front.credits.degrade
        assert [c.micro_batch_rows for c in front.credits.models] == [0]
        assert list(front.credits.shed_tiers) == []

    def test_batches_stay_whole_where_halves_would_take_as_long(
        self, mesh: Mesh, front: Wire
    ) -> None:
        """Half of the rows in the same time is half of the capacity, which is what is short."""
        times = mesh.dispatcher.placer._placing.times
        for _ in range(20):
            for rows in (8, 16):
                times.observe("m/1", rows, "e", 20 * MS)
        govern(mesh, BAD, 2)
        assert [c.micro_batch_rows for c in front.credits.models] == [16]

    def test_it_may_be_told_to_watch_only(self, registry: ProcessRegistry) -> None:
        mesh, link = mesh_with(registry, dispatcher_governance=False), Wire()
        mesh.fronts.opened(link)
        govern(mesh, BAD, 9)
        mesh.tell_fronts()
        assert mesh.governance.plan.shed == (Tier.BRONZE,)
        assert list(link.credits.shed_tiers) == []
        assert [c.micro_batch_rows for c in link.credits.models] == [0]

    def test_fronts_are_told_of_changes_only(self, mesh: Mesh, front: Wire) -> None:
        before = len(front.sent)
        govern(mesh, GOOD, 10)
        assert len(front.sent) == before

    def test_each_step_goes_to_redis_once_and_waits_while_it_is_away(self, mesh: Mesh) -> None:
        mesh.registry = registry = MemoryRegistry()
        govern(mesh, BAD, 2)
        registry.down = True
        with pytest.raises(RegistryUnavailable):
            mesh.poll_registry()
        registry.down = False
        mesh.poll_registry()
        mesh.poll_registry()
        (step,) = registry.events()
        assert (step["before"], step["after"]) == ("normal", "degrade")
        assert step["cause"] == "queue_median_ms 600 above 500"

    def test_steps_are_counted(self, mesh: Mesh, registry: ProcessRegistry) -> None:
        govern(mesh, BAD, 8)
        name = "sits_governance_steps_total"
        assert registry.get_sample_value(name, {"level": "degrade"}) == 2, "and a tier shed"

    def test_the_state_tells_the_level_and_what_caused_each_step(self, mesh: Mesh) -> None:
        govern(mesh, BAD, 8)
        state = GetStateResponse()
        mesh.describe(state)
        assert state.governance.level == "degrade"
        assert list(state.governance.shed_tiers) == [Tier.BRONZE.name.lower()]
        assert state.governance.signals["queue_median_ms"] == 600
        newest, oldest = state.governance.events
        assert list(newest.shed_tiers) == ["bronze"]
        assert (oldest.before, oldest.after) == ("normal", "degrade")
        assert oldest.cause == "queue_median_ms 600 above 500"

    def test_autoscalers_read_the_wanted_capacity(
        self, mesh: Mesh, registry: ProcessRegistry
    ) -> None:
        mesh.registry = shared = MemoryRegistry()
        mesh.poll_registry()
        assert shared.scale() == registry.get_sample_value("sits_scale_factor") == 1.0
        govern(mesh, Sample(load_over_knee=1.5), 2)
        mesh.poll_registry()
        assert shared.scale() == registry.get_sample_value("sits_scale_factor") == 1.5
        assert registry.get_sample_value("sits_governance_level") == 1

    def test_looks_come_at_even_intervals(self, mesh: Mesh) -> None:
        mesh.governance.look(BAD, T)
        for tick in range(20):
            mesh.governance.tick(T + tick * S // 20)
        assert mesh.governance.sample == GOOD  # of the one look of that second
        assert mesh.governance.plan.level is Level.NORMAL
