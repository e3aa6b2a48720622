"""The cooperative scheduler: what starts next, what is held back, and what becomes of a lost
device. Every turn is made by the test, on a device whose runs end when it says so."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sits_channel.pool_reader import PoolReader
from sits_core.clock import now_ns
from sits_core.tracing import Tracer
from sits_executor import batch as batches
from sits_executor.backends.budget import Budget
from sits_executor.backends.streamed import DeviceLost, OutOfMemory, StreamBackend
from sits_executor.batch import Batch
from sits_executor.contract import Contract, TensorContract
from sits_executor.metrics import Metrics
from sits_executor.payloads import Payloads
from sits_executor.queue import BatchQueue
from sits_executor.spans import Spans
from sits_executor.streams.buffers import Buffers
from sits_executor.streams.collector import StreamCollector
from sits_executor.streams.model import StreamModel
from sits_executor.streams.runner import StreamRunner
from sits_executor.streams.scheduler import StreamScheduler
from sits_executor.streams.testing import FakeClock, FakeStreams
from sits_executor.testing import arrays_of, batch
from sits_protos.v1.link_pb2 import LinkMessage, RequestHeader
from sits_scheduling.watermarks import Precision

URGENT = 1


class Device:
    """A scheduler that a test turns, with models on fake streams. `answers` by batch number."""

    def __init__(self, streams: int = 32, hang_s: float = 60.0) -> None:
        self.clock, self.lost = FakeClock(), list[DeviceLost]()
        self.scheduler = StreamScheduler(
            streams=streams, hang_s=hang_s, lost=self.lost.append, clock_ns=self.clock
        )
        self.answers: dict[int, LinkMessage] = {}
        self.closed: list[str] = []
        self._executions, self._numbers = count(1), count(1)
        self.models: dict[str, StreamModel] = {}

    def add(
        self, backend: FakeStreams, name: str = "m", *, base: int = 1 << 20, announced: int = 0
    ) -> StreamModel:
        contract = Contract(
            name,
            "1",
            64,
            {"x": TensorContract("x", "FP32", (-1,), None)},
            (TensorContract("y", "FP32", (-1,), None),),
        )
        registry = CollectorRegistry()
        runner = StreamRunner(
            contract,
            backend,
            Payloads(PoolReader("/nonexistent"), None, 0),
            Spans(Tracer("executor", 100, 0.0), "e"),
            Metrics(registry).of(name),
            "e",
            self._executions,
        )
        runner.stream, runner.lost = backend, self.scheduler.lose
        buffers = Buffers(Precision[backend.precision], base, announced)
        queue = BatchQueue(64, gauge=buffers.queue)
        model = StreamModel(
            f"{name}/1", queue, backend, runner, buffers, lambda: self.closed.append(name)
        )
        self.models[name] = model
        self.scheduler._joining.append(model)
        return model

    def send(
        self,
        value: float,
        model: str = "m",
        *,
        rows: int = 1,
        priority: int = 0,
        requests: int = 1,
        deadline: int = 0,
    ) -> Batch:
        """A batch whose elements are `value`; it is answered under its number."""
        number = next(self._numbers)
        parts = [np.full((rows, 2), value + n, np.float32) for n in range(requests)]
        headers = [RequestHeader(deadline_unix_ns=deadline) for _ in parts]
        message = batch(number, model, parts, headers=headers)
        message.batch.priority = priority

        def answer(result: LinkMessage) -> bool:
            assert number not in self.answers
            self.answers[number] = result
            return True

        one = batches.from_message(message, now_ns(), answer, "link")
        assert self.models[model].queue.write(one).accepted
        return one

    def turn(self) -> None:
        """Until nothing moves any more."""
        while self.scheduler.turn():
            pass

    def reason(self, number: int) -> str:
        return self.answers[number].result.error.reason


def outputs(message: LinkMessage) -> Any:
    return arrays_of(message)["y"].tolist()


@pytest.fixture
def device() -> Device:
    return Device()


def test_a_batch_is_launched_landed_and_answered(device: Device) -> None:
    backend = FakeStreams()
    device.add(backend)
    device.send(3, rows=2)
    device.turn()
    assert (backend.launched, device.answers) == ([3], {})
    (flight,) = backend.flights
    flight.end()
    device.turn()
    assert outputs(device.answers[1]) == [[6, 6], [6, 6]]
    assert device.answers[1].result.executed_rows == 2
    assert flight.released
    assert isinstance(backend, StreamBackend)


def test_batches_run_beside_each_other_and_land_in_any_order(device: Device) -> None:
    backend = FakeStreams(streams=3)
    device.add(backend)
    for value in (1, 2, 3, 4):
        device.send(value)
    device.turn()
    assert backend.launched == [1, 2, 3]
    backend.flights[2].end()
    device.turn()
    assert list(device.answers) == [3]
    assert backend.launched == [1, 2, 3, 4]


def test_no_more_run_at_once_than_the_device_has_streams() -> None:
    device = Device(streams=2)
    first, second = FakeStreams(streams=2), FakeStreams(streams=2)
    device.add(first, "a")
    device.add(second, "b")
    for value in (1, 2):
        device.send(value, "a")
        device.send(value, "b")
    device.turn()
    assert len(first.flights) + len(second.flights) == 2


def test_an_urgent_batch_is_launched_at_once_where_a_stream_is_free(device: Device) -> None:
    backend = FakeStreams(streams=2)
    device.add(backend)
    device.send(1)
    device.turn()
    device.send(9, priority=URGENT)
    device.turn()
    assert backend.launched == [1, 9]


@pytest.mark.parametrize("waiting", [1, 3, 20])
def test_an_urgent_batch_overtakes_all_that_wait_at_the_next_end_of_any_run(
    waiting: int, device: Device
) -> None:
    """The stated bound: it waits for one run under way, never for a second one after it."""
    backend = FakeStreams(streams=2)
    device.add(backend)
    for value in range(2 + waiting):
        device.send(value)
    device.turn()
    device.send(99, priority=URGENT)
    device.turn()
    assert backend.launched == [0, 1]
    backend.flights[1].end()
    device.turn()
    assert backend.launched == [0, 1, 99]


def test_an_urgent_batch_overtakes_those_of_other_models(device: Device) -> None:
    device = Device(streams=1)
    slow, urgent = FakeStreams(), FakeStreams()
    device.add(slow, "slow")
    device.add(urgent, "urgent")
    for value in range(5):
        device.send(value, "slow")
    device.turn()
    device.send(7, "urgent", priority=URGENT)
    slow.flights[0].end()
    device.turn()
    assert urgent.launched == [7]
    assert len(slow.launched) == 1


def test_the_earliest_deadline_goes_first_among_equals(device: Device) -> None:
    backend = FakeStreams(streams=1)
    device.add(backend)
    device.send(1)
    device.turn()
    late = now_ns() + 10**15
    device.send(2, deadline=late)
    device.send(3, deadline=late - 10**12)
    backend.flights[0].end()
    device.turn()
    assert backend.launched == [1, 3]


def test_the_next_batches_are_staged_while_all_streams_are_busy(device: Device) -> None:
    backend = FakeStreams(streams=1)
    model = device.add(backend, base=16)
    for value in range(12):
        device.send(value)
    device.turn()
    assert backend.launched == [0]
    assert model.buffers.held() == {"queue": 3, "staging": 8, "device": 1}
    for _ in range(8):
        backend.flights[0].end()
        device.turn()
    assert backend.launched == list(range(9))


@pytest.mark.parametrize(
    ("precision", "most"), [(Precision.FP32, 32), (Precision.FP16, 27), (Precision.BF16, 24)]
)
def test_the_samples_on_the_device_are_held_to_the_mark_of_the_precision(
    precision: Precision, most: int, device: Device
) -> None:
    backend = FakeStreams(streams=64, precision=precision.name)
    device.scheduler._streams = 64
    device.add(backend, base=128)
    for value in range(48):
        device.send(value)
    device.turn()
    assert len(backend.flights) == most
    backend.flights[0].end()
    device.turn()
    assert len(backend.flights) == most - 1, "it goes on at the low mark, not one by one"
    while len(backend.flights) > most // 2:
        backend.flights[0].end()
        device.turn()
        if len(backend.launched) > most:
            break
    assert len(backend.launched) > most


def test_two_batches_are_always_allowed_on_the_device_however_large(device: Device) -> None:
    backend = FakeStreams(streams=4)
    device.add(backend, base=128, announced=256)
    for value in range(4):
        device.send(value, rows=64)
    device.turn()
    assert backend.launched == [0, 1]


def test_the_queue_refuses_at_its_mark_but_takes_what_was_announced(device: Device) -> None:
    busy = FakeStreams(streams=0)
    announced = device.add(busy, "announced", base=16, announced=48)
    plain = device.add(busy, "plain", base=16)
    for _ in range(3):
        device.send(1, "announced", rows=16)
    assert announced.queue.level < 1
    device.send(1, "plain", rows=16)
    assert plain.queue.level == 1
    assert plain.queue.take() is not None
    assert plain.queue.level < 1


def test_what_finds_no_staging_memory_waits_and_runs_later(device: Device) -> None:
    backend = FakeStreams(streams=2, sets=1)
    device.add(backend)
    device.send(1)
    device.send(2)
    device.turn()
    assert backend.launched == [1]
    backend.flights[0].end()
    device.turn()
    assert backend.launched == [1, 2]


def test_a_batch_cancelled_while_staged_is_never_launched(device: Device) -> None:
    backend = FakeStreams(streams=1)
    device.add(backend)
    device.send(1)
    device.turn()
    late = device.send(2)
    device.send(3)
    device.turn()
    late.cancel(())
    backend.flights[0].end()
    device.turn()
    assert backend.launched == [1, 3]
    assert [r.error.reason for r in device.answers[2].results] == ["CANCELLED"]


def test_only_those_still_wanted_are_launched_from_a_staged_batch(device: Device) -> None:
    backend = FakeStreams(streams=1)
    device.add(backend)
    device.send(1)
    device.turn()
    several = device.send(10, requests=3)
    device.turn()
    several.cancel([0])
    backend.flights[0].end()
    device.turn()
    assert backend.launched == [1, 11]
    backend.flights[0].end()
    device.turn()
    assert outputs(device.answers[2]) == [[22, 22], [24, 24]]


def test_a_wrong_batch_is_answered_without_a_run(device: Device) -> None:
    backend = FakeStreams()
    device.add(backend)
    message = batch(50, "m", [np.zeros((1, 2), np.int32)])
    answered: list[LinkMessage] = []

    def answer(result: LinkMessage) -> bool:
        answered.append(result)
        return True

    device.models["m"].queue.write(batches.from_message(message, now_ns(), answer, "link"))
    device.turn()
    assert "is INT32, model expects FP32" in answered[0].result.error.message
    assert backend.launched == []


def fails_on(value: float) -> Callable[[Any], Any]:
    def run(inputs: Any) -> Any:
        if (inputs["x"] == value).any():
            raise ValueError(f"found {value}")
        return {"y": inputs["x"] * 2}

    return run


@pytest.mark.parametrize("when", ["launch", "run"])
def test_a_run_that_raises_is_run_again_one_by_one(when: str, device: Device) -> None:
    backend = FakeStreams(function=fails_on(11.0))
    device.add(backend)
    backend.error = ValueError("found it") if when == "launch" else None
    device.send(10, requests=3)
    device.turn()
    if when == "run":
        backend.flights[0].fail(ValueError("found it"))
        device.turn()
    assert [r.error.reason for r in device.answers[1].results] == ["", "MODEL_FAILED", ""]
    assert outputs(device.answers[1]) == [[20, 20], [24, 24]]
    assert backend.flights == []


def test_memory_that_ran_out_fails_that_request_and_the_next_one_runs(device: Device) -> None:
    def hungry(inputs: Any) -> Any:
        if len(inputs["x"]) > 4:
            raise OutOfMemory("no memory left")
        return {"y": inputs["x"] * 2}

    backend = FakeStreams(function=hungry)
    device.add(backend)
    backend.error = OutOfMemory("no memory left")
    device.send(1, rows=8)
    device.turn()
    assert [r.error.reason for r in device.answers[1].results] == ["OUT_OF_MEMORY"]
    backend.error = None
    device.send(2, rows=2)
    device.turn()
    backend.flights[0].end()
    device.turn()
    assert outputs(device.answers[2]) == [[4, 4], [4, 4]]
    assert device.lost == []


def test_a_lost_device_fails_what_was_under_way_and_leaves_the_rest_for_others(
    device: Device,
) -> None:
    backend = FakeStreams(streams=2)
    model = device.add(backend)
    for value in range(5):
        device.send(value)
    device.turn()
    backend.flights[0].fail(DeviceLost("CUDA error: an illegal memory access"))
    device.turn()
    assert sorted(device.answers) == [1, 2]
    assert {device.reason(1), device.reason(2)} == {"DEVICE_LOST"}
    assert device.answers[1].result.error.code == 13, "INTERNAL: it may be the cause"
    assert len(model.queue) == 3, "staged ones too wait to be refused with UNAVAILABLE"
    assert len(device.lost) == 1
    device.turn()
    assert len(device.lost) == 1, "it is told once"
    assert backend.launched == [0, 1]


def test_a_device_lost_at_the_launch_answers_that_batch_too(device: Device) -> None:
    backend = FakeStreams()
    device.add(backend)
    backend.error = DeviceLost("gone")
    device.send(1)
    device.turn()
    assert device.reason(1) == "DEVICE_LOST"
    assert len(device.lost) == 1


def test_a_device_lost_before_any_model_is_on_streams_is_told_at_once() -> None:
    device = Device()
    for _ in range(2):
        device.scheduler.lose(DeviceLost("gone"))
    assert len(device.lost) == 1


def test_a_run_that_never_ends_is_a_lost_device() -> None:
    device = Device(hang_s=5)
    backend = FakeStreams()
    device.add(backend)
    device.send(1)
    device.turn()
    device.clock.pass_s(4.9)
    device.turn()
    assert device.lost == []
    device.clock.pass_s(0.2)
    device.turn()
    assert "has not ended in time" in str(device.lost[0])


def test_an_unloaded_model_finishes_what_it_accepted_and_is_closed_then(device: Device) -> None:
    backend = FakeStreams(streams=1)
    model = device.add(backend)
    device.send(1)
    device.send(2)
    device.turn()
    model.queue.close()
    for _ in range(2):
        assert device.closed == []
        backend.flights[0].end()
        device.turn()
    assert device.closed == ["m"]
    assert device.scheduler.models == ()


def test_shares_follow_the_load_after_it_moved_twice() -> None:
    """E6: decided every 100 ms over a window of 5, from arrivals × run time."""
    device = Device(streams=1)
    busy, idle = FakeStreams(streams=1), FakeStreams(streams=1)
    device.add(busy, "busy")
    device.add(idle, "idle")
    device.turn()
    assert device.scheduler.shares.by_model() == {"busy/1": 0.5, "idle/1": 0.5}
    for _ in range(80):
        device.send(1, "busy")
        device.turn()
        device.clock.pass_s(0.008)
        busy.flights[0].end()
        device.turn()
        device.clock.pass_s(0.002)
    shares = device.scheduler.shares.by_model()
    assert shares["busy/1"] > 0.7
    assert device.scheduler.shares.reallocations > 0


def test_among_equally_urgent_models_time_is_given_by_share() -> None:
    device = Device(streams=1)
    long, short = FakeStreams(streams=1), FakeStreams(streams=1)
    device.add(long, "long")
    device.add(short, "short")
    for value in range(30):
        device.send(value, "long")
        device.send(value, "short")
    device.turn()
    used = {"long": 0.0, "short": 0.0}
    for _ in range(24):
        name, backend, took = ("long", long, 0.003) if long.flights else ("short", short, 0.001)
        used[name] += took
        device.clock.pass_s(took)
        backend.flights[0].end()
        device.turn()
    assert used["long"] == pytest.approx(used["short"], rel=0.25)
    assert len(short.launched) > 2 * len(long.launched)


def test_metrics_tell_streams_shares_buffers_graphs_and_memory(device: Device) -> None:
    backend = FakeStreams()
    device.add(backend)
    backend.stats.fallbacks["differs"] = 2
    device.send(1, rows=3)
    device.turn()
    registry = CollectorRegistry()
    registry.register(StreamCollector(device.scheduler, Budget(), lambda name: name))
    text = generate_latest(registry).decode()
    for line in (
        "sits_executor_streams_running 1.0",
        'sits_executor_buffer_samples{buffer="device",model="m"} 3.0',
        'sits_executor_share{model="m"} 1.0',
        'sits_executor_graph_fallbacks_total{model="m",reason="differs"} 2.0',
        'sits_executor_gpu_memory_bytes{kind="budget"} 3.0',
        "sits_executor_device_lost 0.0",
    ):
        assert line in text
