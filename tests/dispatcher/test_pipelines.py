"""Pipelines over several executors: every request ends once, slots and load go back."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from prometheus_client import CollectorRegistry

from sits_channel.bounded import Pressure
from sits_channel.pool_reader import PoolReader
from sits_core import datatypes
from sits_core.clock import now_ns
from sits_core.tracing import Tracer
from sits_dispatcher.dispatcher import Dispatcher
from sits_dispatcher.job import Front
from sits_dispatcher.metrics import Metrics
from sits_dispatcher.placer import Placer
from sits_dispatcher.settings import DispatcherSettings
from sits_dispatcher.weights import Weights
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.common_pb2 import Error, PayloadRef, Tensor
from sits_protos.v1.link_pb2 import (
    BatchHeader,
    Cancel,
    Catalog,
    LinkMessage,
    ModelEntry,
    ModelState,
    RequestHeader,
    RequestResult,
    ResultHeader,
    StageTimes,
)
from sits_scheduling.affinity import AffinityMap
from sits_scheduling.candidates import Executor, ExecutorTable
from sits_scheduling.tenant_file import standard_tenants

READY, MISSING = ModelState.MODEL_STATE_READY, ModelState.MODEL_STATE_UNAVAILABLE
TWO_STEPS = """
name: "p" platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
ensemble_scheduling {
  step { model_name: "a" model_version: -1
    input_map { key: "in" value: "x" } output_map { key: "out" value: "h" } }
  step { model_name: "b" model_version: -1
    input_map { key: "in" value: "h" } input_map { key: "old" value: "x" }
    output_map { key: "out" value: "y" } }
}
"""


class Wire:
    """A peer that keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[LinkMessage] = []

    def write(self, message: bytes) -> Pressure:
        self.sent.append(LinkMessage.FromString(message))
        return Pressure(True, 0.0)

    def close(self) -> None:
        return None

    def batches(self) -> list[LinkMessage]:
        return [m for m in self.sent if m.HasField("batch")]

    def results(self) -> list[LinkMessage]:
        return [m for m in self.sent if m.HasField("result")]

    def released(self) -> list[PayloadRef]:
        return [slot for m in self.sent if m.HasField("release") for slot in m.release.slots]


def model(name: str, inputs: Sequence[str], datatype: str = "FP32") -> ModelConfig:
    config = ModelConfig(name=name, max_batch_size=8)
    for one in inputs:
        text = f'input {{ name: "{one}" data_type: TYPE_{datatype} dims: [ 2 ] }}'
        text_format.Merge(text, config)
    text_format.Merge(f'output {{ name: "out" data_type: TYPE_{datatype} dims: [ 2 ] }}', config)
    return config


def entry(config: ModelConfig, state: ModelState.ValueType = READY) -> ModelEntry:
    return ModelEntry(name=config.name, version="1", state=state, config=config.SerializeToString())


def pipeline() -> ModelConfig:
    return text_format.Parse(TWO_STEPS, ModelConfig())


class World:
    """Executors that serve one model each, and a front."""

    def __init__(
        self, where: Mapping[str, str], *, strategy: str = "topo_aware", second: str = "FP32",
        shares: bool = False,
    ) -> None:  # fmt: skip
        self.table = ExecutorTable()
        self.dispatcher = Dispatcher(
            DispatcherSettings(dispatcher_strategy=strategy), self.table,
            Placer(self.table, strategy, random.Random(1)), Weights(), PoolReader("/nowhere"),
            Tracer("t", 100, 0), Metrics(CollectorRegistry()), standard_tenants(),
        )  # fmt: skip
        self.front_wire = Wire()
        self.front = Front(self.front_wire, id="front", host="h", shares_memory=shares)
        self.executors: dict[str, Wire] = {}
        for name, models in where.items():
            self.executors[name] = wire = Wire()
            self.table.add(Executor(name, "h", f"GPU-{name}"))
            self.dispatcher.executor_joined(name, wire, shares_memory=shares)
            for served in models:
                self.table.serve(name, f"{served}/1", 2, 1)
        second_step = model("b", ["in", "old"], second)
        self.catalog = self.dispatcher.steps.pipelines.follow(
            Catalog(models=[entry(model("a", ["in"])), entry(second_step),
                            entry(pipeline(), MISSING)])
        )  # fmt: skip

    def send(self, *requests: Any, batch_id: int = 7, **header: Any) -> None:
        arrays = [np.array(rows, np.float32) for rows in requests]
        rows = [len(array) for array in arrays]
        body = LinkMessage(
            requests=[RequestHeader(rows=count) for count in rows],
            inputs=[tensor("x", np.concatenate(arrays))],
        )
        own = BatchHeader(
            batch_id=batch_id, model="p", version="1", requests=len(rows), rows=sum(rows),
            payload_bytes=8 * sum(rows), inline_bytes=8 * sum(rows), request_ids=["r1"], **header,
        )  # fmt: skip
        view = memoryview(body.SerializeToString())
        self.dispatcher.batch(self.front, own.SerializeToString(), view)

    def open(self, executor: str) -> LinkMessage:
        return self.executors[executor].batches()[-1]

    def answer(
        self, executor: str, outputs: Any = None, failed: Mapping[int, Error] | None = None,
        reference: PayloadRef | None = None,
    ) -> None:  # fmt: skip
        """To its newest batch; without `outputs`: its first input plus one."""
        asked = self.open(executor)
        value = outputs if outputs is not None else array_of(asked.inputs[0]) + 1
        made = tensor("out", np.asarray(value, datatypes.NUMPY_TYPES[asked.inputs[0].datatype]))
        if reference is not None:
            made.reference.CopyFrom(reference)
        results = [
            RequestResult(error=failed[i]) if failed and i in failed else RequestResult(rows=r.rows)
            for i, r in enumerate(asked.requests)
        ]
        times = StageTimes(executor_received=1, input_started=2, infer_started=5, output_started=9,
                           executor_sent=10)  # fmt: skip
        header = ResultHeader(
            batch_id=asked.batch.batch_id, instance=executor, requests=len(results), times=times,
            executed_rows=asked.batch.rows, version="1", execution=3,
            payload_bytes=8, inline_bytes=0 if reference else 8,
        )  # fmt: skip
        body = LinkMessage(results=results, outputs=[made]).SerializeToString()
        self.dispatcher.result(executor, header.SerializeToString(), memoryview(body))

    def refuse(self, executor: str, error: Error) -> None:
        header = ResultHeader(batch_id=self.open(executor).batch.batch_id, error=error)
        self.dispatcher.result(executor, header.SerializeToString(), memoryview(b""))

    def answered(self) -> LinkMessage:
        (result,) = self.front_wire.results()
        return result

    def idle(self) -> bool:
        steps = len(self.dispatcher.steps)
        return self.table.batches_in_flight() == 0 and self.dispatcher.idle() and steps == 0


def tensor(name: str, array: Any) -> Tensor:
    return Tensor(
        name=name, datatype=datatypes.from_numpy(array.dtype), shape=array.shape,
        inline=datatypes.encode(array),
    )  # fmt: skip


def array_of(found: Tensor) -> Any:
    return datatypes.decode(found.inline, found.datatype, tuple(found.shape))


SPREAD = {"one": "a", "two": "b"}


def test_a_pipeline_whose_steps_are_served_somewhere_is_announced_as_ready() -> None:
    found = next(e for e in World(SPREAD).catalog.models if e.name == "p")
    assert (found.state, found.reason) == (READY, "")


def test_one_with_a_step_that_nobody_serves_says_which() -> None:
    pipelines = World(SPREAD).dispatcher.steps.pipelines
    catalog = pipelines.follow(
        Catalog(models=[entry(model("a", ["in"])), entry(pipeline(), MISSING)])
    )
    found = next(e for e in catalog.models if e.name == "p")
    assert found.state == MISSING
    assert "step 2 (model 'b') is ready on no executor" in found.reason
    assert pipelines.find("p/1") is None


def test_its_capacity_is_that_of_its_narrowest_step() -> None:
    world = World(SPREAD)
    world.table.serve("two", "b/1", 9, 4, 16)
    assert world.dispatcher.steps.capacity("p/1") == (2, 1, 16)


def test_steps_run_one_after_the_other_and_the_front_gets_one_result() -> None:
    world = World(SPREAD)
    world.send([[1, 2]], [[3, 4], [5, 6]])
    first = world.open("one")
    assert (first.batch.model, [t.name for t in first.inputs]) == ("a", ["in"])
    assert not world.executors["two"].batches()
    world.answer("one")
    second = world.open("two")
    assert [t.name for t in second.inputs] == ["in", "old"]
    assert array_of(second.inputs[0]).tolist() == [[2, 3], [4, 5], [6, 7]]
    assert array_of(second.inputs[1]).tolist() == [[1, 2], [3, 4], [5, 6]]
    world.answer("two", [[9, 9], [8, 8], [7, 7]])
    result = world.answered()
    assert (result.result.batch_id, result.result.requests) == (7, 2)
    assert [r.rows for r in result.results] == [1, 2]
    assert (result.outputs[0].name, array_of(result.outputs[0]).tolist()) == (
        "y", [[9, 9], [8, 8], [7, 7]],
    )  # fmt: skip
    steps = [(s.model, s.instance, s.infer_ns, s.rows) for s in result.result.steps]
    assert steps == [("a", "one", 4, 3), ("b", "two", 4, 3)]
    assert world.idle()


def test_a_request_that_fails_at_a_step_goes_no_further_and_the_others_do() -> None:
    world = World(SPREAD)
    world.send([[1, 1]], [[2, 2]], [[3, 3]])
    bad = Error(code=13, message="bad row", reason="MODEL_FAILED")
    world.answer("one", [[2, 2], [4, 4]], failed={1: bad})
    second = world.open("two")
    assert len(second.requests) == 2
    assert array_of(second.inputs[1]).tolist() == [[1, 1], [3, 3]]
    world.answer("two")
    result = world.answered()
    assert [r.error.message for r in result.results] == ["", "step 1 (model 'a'): bad row", ""]
    assert array_of(result.outputs[0]).tolist() == [[3, 3], [5, 5]]
    assert world.idle()


def test_when_all_requests_fail_at_a_step_the_others_are_not_begun() -> None:
    world = World(SPREAD)
    world.send([[1, 1]])
    world.answer("one", np.zeros((0, 2)), failed={0: Error(code=13, message="bad row")})
    assert [r.error.code for r in world.answered().results] == [13]
    assert not world.answered().outputs
    assert not world.executors["two"].batches()
    assert world.idle()


@pytest.mark.parametrize("at", ["one", "two"])
def test_the_error_of_a_step_is_the_error_of_the_batch_and_names_the_step(at: str) -> None:
    world = World(SPREAD)
    world.send([[1, 1]])
    if at == "two":
        world.answer("one")
    world.refuse(at, Error(code=3, message="no", reason="INVALID_ARGUMENT"))
    error = world.answered().result.error
    assert error.message == f"step {2 if at == 'two' else 1} (model '{'ab'[at == 'two']}'): no"
    assert (error.code, error.reason) == (3, "INVALID_ARGUMENT")
    assert world.idle()


def test_the_deadline_is_carried_and_a_step_is_not_begun_after_it() -> None:
    world = World(SPREAD)
    deadline = now_ns() + 50_000_000
    world.send([[1, 1]], latest_deadline_unix_ns=deadline, earliest_deadline_unix_ns=deadline)
    assert world.open("one").batch.latest_deadline_unix_ns == deadline
    run = next(iter(world.dispatcher.steps._runs))
    run.part.header.latest_deadline_unix_ns = 1
    world.answer("one")
    assert world.answered().result.error.reason == "DEADLINE_EXCEEDED_IN_DISPATCHER"
    assert not world.executors["two"].batches()
    assert world.idle()


def test_a_lost_executor_moves_the_step_and_not_the_pipeline() -> None:
    world = World({"one": "a", "two": "b", "three": "b"}, strategy="round_robin")
    world.send([[1, 1]])
    world.answer("one")
    at = "two" if world.executors["two"].batches() else "three"
    other = "three" if at == "two" else "two"
    world.table.remove(at)
    world.dispatcher.executor_lost(at)
    world.answer(other)
    assert array_of(world.answered().outputs[0]).tolist() == [[3, 3]]
    assert len(world.executors["one"].batches()) == 1
    assert world.idle()


def test_a_cancelled_request_is_cancelled_at_its_step_and_never_begins_the_next() -> None:
    world = World(SPREAD)
    world.send([[1, 1]], [[2, 2]])
    world.dispatcher.cancel(world.front, Cancel(batch_id=7, requests=[1]))
    sent = world.executors["one"].sent[-1]
    assert list(sent.cancel.requests) == [1]
    world.answer("one")
    assert len(world.open("two").requests) == 1
    world.answer("two")
    assert [r.error.reason for r in world.answered().results] == ["", "CANCELLED"]
    assert world.idle()


def test_a_lost_front_leaves_nothing_behind() -> None:
    slot = PayloadRef(pool="q", offset=64, length=8, generation=5)
    world = World(SPREAD, shares=True)
    world.send([[1, 1]])
    world.answer("one", reference=slot)
    world.dispatcher.front_lost(world.front)
    assert world.executors["two"].sent[-1].HasField("cancel")
    assert world.executors["one"].released() == [slot]
    world.answer("two", [[1, 1]])
    assert not world.front_wire.results()
    assert world.idle()


def test_tensors_stay_where_they_were_made_and_are_released_when_they_have_been_read() -> None:
    first = PayloadRef(pool="one", offset=64, length=8, generation=5)
    last = PayloadRef(pool="two", offset=64, length=8, generation=6)
    world = World(SPREAD, shares=True)
    world.send([[1, 1]])
    world.answer("one", reference=first)
    second = world.open("two")
    assert (second.inputs[0].reference, second.batch.by_reference) == (first, True)
    assert (second.batch.payload_host, second.batch.payload_device) == ("h", "GPU-one")
    assert world.executors["one"].released() == []
    world.answer("two", [[1, 1]], reference=last)
    assert world.executors["one"].released() == [first]
    result = world.answered()
    assert result.outputs[0].reference == last
    assert result.result.instance == "two"
    assert world.executors["two"].released() == [], "the front gives these back"
    assert world.idle()


def test_precisions_are_converted_between_executors() -> None:
    world = World(SPREAD, second="FP16")
    world.send([[0.1, 2]])
    world.answer("one", [[0.1, 3]])
    second = world.open("two")
    assert [t.datatype for t in second.inputs] == ["FP16", "FP16"]
    assert array_of(second.inputs[0]).tolist() == np.array([[0.1, 3]], np.float16).tolist()
    world.answer("two")
    assert world.answered().outputs[0].datatype == "FP32"


def test_a_step_is_placed_next_to_where_its_input_was_made() -> None:
    world = World({"one": "a", "far": "b", "near": "b"})
    weights = {("GPU-one", "GPU-near"): 0.9, ("GPU-one", "GPU-far"): 0.01}
    world.table.set_affinity(AffinityMap({"h": weights}))
    for number in range(2):
        world.send([[1, 1]], batch_id=number)
        world.answer("one")
        world.answer("near")
    assert (len(world.executors["near"].batches()), world.executors["far"].batches()) == (2, [])


def test_the_first_step_looks_ahead_to_where_the_second_one_is() -> None:
    """Both are as near to the request; only one of them is near to the second step."""
    world = World({"left": "a", "right": "a", "last": "b"})
    weights = {("GPU-left", "GPU-last"): 0.9, ("GPU-right", "GPU-last"): 1e-4}
    world.table.set_affinity(AffinityMap({"h": weights}))
    world.send([[1, 1]])
    begun = "left" if world.executors["left"].batches() else "right"
    world.answer(begun)
    world.answer("last")
    for number in range(5):
        world.send([[1, 1]], batch_id=number)
        world.answer("left")
        world.answer("last")
    assert world.idle()


def test_explain_shows_the_whole_path() -> None:
    world = World(SPREAD)
    world.send([[1, 1]])
    world.answer("one")
    found = world.dispatcher.placer.explain("r1", 1)
    assert [(e.path.pipeline, e.path.step, e.pick.executor) for e in found] == [
        ("p", 1, "one"), ("p", 2, "two"),
    ]  # fmt: skip
