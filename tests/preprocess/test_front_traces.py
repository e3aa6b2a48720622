"""Spans of the front port: one for the request, one for its wait, nothing when not sampled."""

import numpy as np
import pytest
import tritonclient.grpc as triton
from prometheus_client.openmetrics.exposition import generate_latest

from sits_core.clock import now_ns
from sits_preprocess.request import Answer, Run, TensorData, Times

X = np.ones((2, 4), np.float32)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_nothing_is_recorded_when_the_client_does_not_ask(served) -> None:
    served.infer("rows", X)
    assert served.tracer.spans() == []
    assert served.engine.taken[0].trace is None


@pytest.mark.parametrize(("flags", "spans"), [("01", 1), ("00", 0)])
def test_the_client_decides_by_its_flag(served, flags: str, spans: int) -> None:
    served.infer("rows", X, headers={"traceparent": f"00-{TRACE}-{PARENT}-{flags}"})
    assert len(served.tracer.spans()) == spans


def test_the_request_span_covers_it_all_and_is_the_parent_of_the_rest(served) -> None:
    served.engine.hold = True
    before = now_ns()
    client, done = served.client(), []
    x = served_tensor()
    client.async_infer(
        "rows", [x], lambda result, error: done.append(error), request_id="a",
        headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "sits-tenant": "gold"},
    )  # fmt: skip
    served.engine.wait(lambda: bool(served.engine.taken))
    request = served.engine.taken[0]
    closed = now_ns()
    output = TensorData("OUTPUT0", "FP32", (2, 4), X.tobytes())
    served.engine.finish(request, Answer((output,), run=Run(Times(batch_closed=closed))))
    served.until(lambda: bool(done))
    own, wait = served.tracer.spans()
    assert (own.name, wait.name) == ("preprocess.request", "preprocess.queue")
    assert (own.trace_id.hex(), own.parent_id.hex()) == (TRACE, PARENT)
    assert own.span_id == request.trace.span_id == wait.parent_id
    assert before <= own.start_ns == wait.start_ns <= closed == wait.end_ns <= own.end_ns
    assert own.attributes == {
        "model": "rows", "version": "1", "tenant": "gold", "rows": 2, "bytes": 32,
    }  # fmt: skip
    assert served.metric("sits_queue_seconds_count", model="rows", tenant="gold") == 1


def served_tensor():
    tensor = triton.InferInput("INPUT0", X.shape, "FP32")
    tensor.set_data_from_numpy(X)
    return tensor


def test_a_refused_request_shows_as_failed(served) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    with pytest.raises(Exception, match="unexpected shape"):
        served.infer("rows", np.ones((2, 5), np.float32), headers=headers)
    (span,) = served.tracer.spans()
    assert (span.name, span.error) == ("preprocess.request", "INVALID_ARGUMENT")


def test_without_a_parent_the_share_of_the_settings_is_traced(serve) -> None:
    served = serve(ratio=1.0)
    served.infer("rows", X)
    (span,) = served.tracer.spans()
    assert span.parent_id == bytes(8)


@pytest.mark.parametrize(("flags", "exemplars"), [("01", 1), ("00", 0)])
def test_a_traced_request_is_the_example_of_its_latency_bucket(
    served, flags: str, exemplars: int
) -> None:
    """For scrapers that ask for OpenMetrics; from a bucket of a graph they lead to its trace."""
    served.infer("rows", X, headers={"traceparent": f"00-{TRACE}-{PARENT}-{flags}"})
    lines = generate_latest(served.registry).decode().splitlines()
    found = [line for line in lines if f'# {{trace_id="{TRACE}"}}' in line]
    assert len(found) == exemplars
    assert all(line.startswith("sits_request_seconds_bucket") for line in found)
