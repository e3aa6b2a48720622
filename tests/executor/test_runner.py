"""One batch inside the executor: who runs, who is dropped, who fails, and what they hear."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from prometheus_client import CollectorRegistry

from sits_channel.pool_reader import PoolReader
from sits_core.clock import now_ns
from sits_core.tracing import TraceContext, Tracer
from sits_executor import batch as batches
from sits_executor.backends import onnx
from sits_executor.backends.base import LoadSpec
from sits_executor.contract import Contract, TensorContract
from sits_executor.metrics import Metrics
from sits_executor.payloads import Payloads
from sits_executor.runner import Runner
from sits_executor.spans import Spans
from sits_executor.testing import arrays_of, batch
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import LinkMessage, RequestHeader

CONTRACT = Contract(
    "m",
    "1",
    64,
    {"x": TensorContract("x", "FP32", (-1,), None)},
    (TensorContract("y", "FP32", (-1,), None),),
)
BAD = 666.0
PAST = 1


class Model:
    """A backend around a function; remembers the rows of its runs."""

    signature = None
    fallback = ""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.runs: list[int] = []
        self.parameters: Any = None

    def run(self, inputs: Any, parameters: Any) -> Any:
        self.runs.append(len(inputs["x"]))
        self.parameters = parameters
        return {"y": self._function(inputs["x"])}

    def close(self) -> None:
        return None


def fails_on_bad(x: Any) -> Any:
    if (x == BAD).any():
        raise ValueError("bad row\nTraceback: /srv/secret.py")
    return x * 2


class Bench:
    """A runner with everything around it."""

    def __init__(self, tmp_path: Any, function: Callable[[Any], Any], own: Contract) -> None:
        self.model, self.tracer = Model(function), Tracer("executor", 100, 1.0)
        self.registry = CollectorRegistry()
        self.answers: list[LinkMessage] = []
        self.runner = Runner(
            own,
            self.model,
            Payloads(PoolReader(str(tmp_path)), None, 0),
            Spans(self.tracer, "me"),
            Metrics(self.registry).of("m"),
            "me",
            itertools.count(1),
        )

    def run(self, message: LinkMessage, before: Callable[[Any], object] = id) -> LinkMessage:
        own = batches.from_message(message, now_ns(), self.answer, "link")
        before(own)
        self.whole = self.runner.run(own)
        assert len(self.answers) == 1, "every batch gets exactly one answer"
        return self.answers.pop()

    def answer(self, message: LinkMessage) -> bool:
        self.answers.append(LinkMessage.FromString(message.SerializeToString()))
        return True

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"sits_executor_{name}", labels) or 0.0


@pytest.fixture(name="bench")
def make_bench(tmp_path: Any) -> Any:
    return lambda function=fails_on_bad, own=CONTRACT: Bench(tmp_path, function, own)


def x(*values: float) -> Any:
    return np.array([[v] for v in values], np.float32)


def reasons(message: LinkMessage) -> list[str]:
    return [r.error.reason for r in message.results]


def test_only_the_bad_request_of_a_batch_fails(bench: Any) -> None:
    own = bench()
    result = own.run(batch(1, "m", [x(1), x(2, 3), x(BAD), x(4)]))
    assert reasons(result) == ["", "", "MODEL_FAILED", ""]
    assert [r.rows for r in result.results] == [1, 2, 0, 1]
    assert arrays_of(result)["y"].tolist() == [[2], [4], [6], [8]]
    assert not result.result.HasField("error")


def test_the_retry_after_a_failed_run_is_bounded(bench: Any) -> None:
    own = bench()
    own.run(batch(1, "m", [x(BAD)] * 8))
    assert own.model.runs == [8, *[1] * 8]
    assert own.metric("failed_runs_total", model="m") == 9
    assert own.metric("errors_total", model="m", reason="MODEL_FAILED") == 8


def test_a_single_failing_request_is_not_run_twice(bench: Any) -> None:
    own = bench()
    assert reasons(own.run(batch(1, "m", [x(BAD)]))) == ["MODEL_FAILED"]
    assert own.model.runs == [1]
    assert not own.whole
    own.run(batch(2, "m", [x(1)]))
    assert own.whole


def test_a_models_exception_shows_its_first_line_without_path_or_traceback(bench: Any) -> None:
    message = bench().run(batch(1, "m", [x(BAD)])).results[0].error.message
    assert message == "model 'm' failed: ValueError: bad row"


@pytest.mark.parametrize("text", ["x" * 40_000, "a%b\n" * 10_000, "é日" * 20_000, "\0\x1b[31m"])
def test_an_exception_text_of_any_size_stays_small_and_printable(bench: Any, text: str) -> None:
    def broken(_x: Any) -> Any:
        raise RuntimeError(text)

    error = bench(broken).run(batch(1, "m", [x(1)])).results[0].error
    assert len(error.message.encode()) <= 1000
    assert error.message.isprintable()
    assert error.message.startswith("model 'm' failed: RuntimeError")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda a: a[:-1], "declared is [2, -1]"),
        (lambda a: a.astype(np.float64), "came as FP64"),
        (lambda a: a[0], "came with shape"),
    ],
)
def test_a_wrong_result_fails_that_batch_only(bench: Any, function: Any, problem: str) -> None:
    own = bench(lambda a: function(a) if a[0, 0] == BAD else a)
    bad = own.run(batch(1, "m", [x(BAD), x(1)]))
    assert bad.result.error.reason == "BAD_RESULT"
    assert problem in bad.result.error.message
    assert not bad.results
    assert not bad.outputs
    good = own.run(batch(2, "m", [x(1), x(2)]))
    assert arrays_of(good)["y"].tolist() == [[1], [2]]


def test_who_is_too_late_or_cancelled_does_not_run(bench: Any) -> None:
    own = bench()
    headers = [RequestHeader(), RequestHeader(deadline_unix_ns=PAST), RequestHeader()]
    message = batch(1, "m", [x(1), x(2), x(3)], headers=headers)
    result = own.run(message, before=lambda b: b.cancel([2]))
    assert reasons(result) == ["", "DEADLINE_EXCEEDED_IN_QUEUE", "CANCELLED"]
    assert own.model.runs == [1]
    assert arrays_of(result)["y"].tolist() == [[2]]
    assert result.result.executed_rows == 1


def test_a_batch_nobody_waits_for_is_not_even_staged(bench: Any) -> None:
    own = bench()
    headers = [RequestHeader(deadline_unix_ns=PAST)]
    result = own.run(batch(1, "m", [x(1)], headers=headers))
    assert reasons(result) == ["DEADLINE_EXCEEDED_IN_QUEUE"]
    assert own.model.runs == []
    assert result.result.times.infer_started == 0
    assert result.result.execution == 0
    assert own.metric("dropped_total", reason="DEADLINE_EXCEEDED_IN_QUEUE") == 1
    assert not own.whole


def test_a_cancel_during_staging_is_seen_right_before_the_launch(bench: Any, tmp_path: Any) -> None:
    own = bench()
    seen: list[Any] = []

    def read(_ref: Any) -> memoryview:
        seen[0].cancel([])
        return memoryview(x(1).tobytes())

    own.runner._payloads.read = read
    message = batch(1, "m", [x(1)])
    message.inputs[0].reference.pool = "p"
    assert reasons(own.run(message, before=seen.append)) == ["CANCELLED"]
    assert own.model.runs == []


def test_a_cancel_while_requests_run_one_by_one_spares_the_rest(bench: Any) -> None:
    seen: list[Any] = []

    def function(rows: Any) -> Any:
        if len(rows) == 1:
            seen[0].cancel([1])
        return fails_on_bad(rows)

    own = bench(function)
    result = own.run(batch(1, "m", [x(BAD), x(1)]), before=seen.append)
    assert reasons(result) == ["MODEL_FAILED", "CANCELLED"]
    assert own.model.runs == [2, 1]


@pytest.mark.parametrize("deadline", [0, (1 << 63) - 1, (1 << 64) - 1])
def test_no_deadline_and_a_very_far_one_never_pass(bench: Any, deadline: int) -> None:
    headers = [RequestHeader(deadline_unix_ns=deadline)]
    assert reasons(bench().run(batch(1, "m", [x(1)], headers=headers))) == [""]


def test_a_batch_that_does_not_fit_the_model_fails_as_a_whole(bench: Any) -> None:
    message = batch(1, "m", [x(1)])
    message.inputs[0].datatype = "INT32"
    result = bench().run(message)
    assert result.result.error.reason == "INVALID_ARGUMENT"
    assert result.result.requests == 1


def test_a_payload_that_is_gone_fails_as_a_whole_and_may_be_retried(bench: Any) -> None:
    message = batch(1, "m", [x(1)])
    message.inputs[0].reference.pool = "sits-test-nobody.pool"
    result = bench().run(message)
    assert result.result.error.reason == "STALE_PAYLOAD"


def test_a_fault_of_our_own_is_answered_without_detail(bench: Any) -> None:
    own = bench()
    own.runner._payloads.verify = lambda tensors: 1 / 0
    result = own.run(batch(1, "m", [x(1)]))
    assert result.result.error.message == "executor fault: ZeroDivisionError"


def test_request_parameters_reach_the_model_with_their_types(bench: Any) -> None:
    own = bench()
    header = RequestHeader()
    header.parameters["b"].bool_value = True
    header.parameters["i"].int64_value = 7
    header.parameters["s"].string_value = "x"
    header.parameters["d"].double_value = 0.5
    own.run(batch(1, "m", [x(1)], headers=[header]))
    assert own.model.parameters == {"b": True, "i": 7, "s": "x", "d": 0.5}


def test_no_row_of_an_earlier_run_ever_shows(bench: Any) -> None:
    """Batch sizes go up and down; a reused buffer would leave rows behind."""
    own, rng = bench(lambda a: a.sum(axis=1, keepdims=True)), np.random.default_rng(3)
    sizes = random.Random(3)
    for round_number in range(500):
        width = sizes.choice([15, 20])
        rows = [rng.random((sizes.randint(1, 8), width), np.float32) for _ in range(3)]
        result = own.run(batch(round_number, "m", rows))
        expected = np.concatenate(rows).sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(arrays_of(result)["y"], expected)


def test_no_row_of_an_earlier_run_shows_on_onnx_runtime(
    bench: Any, tmp_path: Path, onnx_models: Any
) -> None:
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    model = onnx_models.graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)],
        [("x", TensorProto.FLOAT, ["b", "n"])],
        [("y", TensorProto.FLOAT, ["b", 1])],
        [axes],
    )
    (tmp_path / "model.onnx").write_bytes(model)
    spec = LoadSpec("m", "1", tmp_path, "model.onnx", ModelConfig(), 1, 1, None)
    backend = onnx.load(spec)
    own, rng = bench(lambda a: backend.run({"x": a}, {})["y"]), np.random.default_rng(4)
    sizes = itertools.cycle([8, 2, 8, 1, 5, 8])
    for number, size in zip(range(500), sizes, strict=False):
        rows = [rng.integers(0, 1000, (1, 15)).astype(np.float32) for _ in range(size)]
        result = own.run(batch(number, "m", rows))
        expected = np.concatenate(rows).sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(arrays_of(result)["y"], expected)


def test_each_sampled_request_gets_a_span_for_every_stage(bench: Any) -> None:
    own = bench()
    context = TraceContext(b"t" * 16, b"p" * 8)
    headers = [RequestHeader(), RequestHeader(trace_context=context.to_wire())]
    times = own.run(batch(1, "m", [x(1), x(2, 3)], headers=headers)).result.times
    spans = own.tracer.spans(context.trace_id)
    assert [(s.name, s.start_ns, s.end_ns) for s in spans] == [
        ("executor.queue", times.executor_received, times.input_started),
        ("executor.input", times.input_started, times.infer_started),
        ("executor.infer", times.infer_started, times.output_started),
        ("executor.output", times.output_started, times.executor_sent),
    ]
    assert {s.parent_id for s in spans} == {context.span_id}
    assert spans[0].attributes == {
        "model": "m", "version": "1", "rows": 2, "batch_rows": 3, "instance": "me", "execution": 1,
    }  # fmt: skip
    assert len(own.tracer.spans()) == 4


def test_a_failed_requests_spans_name_the_reason(bench: Any) -> None:
    own = bench()
    context = TraceContext(b"t" * 16, b"p" * 8)
    headers = [RequestHeader(deadline_unix_ns=PAST, trace_context=context.to_wire())]
    own.run(batch(1, "m", [x(1)], headers=headers))
    spans = own.tracer.spans()
    assert [s.name for s in spans] == ["executor.queue", "executor.input"]
    assert {s.error for s in spans} == {"DEADLINE_EXCEEDED_IN_QUEUE"}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.batch.ClearField("requests"),
        lambda m: m.ClearField("requests"),
        lambda m: setattr(m.batch, "rows", 3),
    ],
)
def test_a_header_that_contradicts_its_body_is_refused(change: Any) -> None:
    message = batch(1, "m", [x(1), x(2)])
    change(message)
    with pytest.raises(batches.InvalidArgument, match="batch header announces"):
        batches.from_message(message, 0, lambda _: True, "link")
