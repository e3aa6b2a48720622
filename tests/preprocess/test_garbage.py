"""What was answered is freed at once: payloads must not wait for the garbage collector."""

import gc
import queue
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_core.testing import wait_until
from sits_preprocess.request import Request

ROWS = np.ones((1, 4), np.float32)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive(*kinds: type) -> list[object]:
    return [thing for thing in gc.get_objects() if type(thing) in kinds]


def unary(client: triton.InferenceServerClient, inputs: list[triton.InferInput]) -> None:
    client.infer("rows", inputs)


def streamed(client: triton.InferenceServerClient, inputs: list[triton.InferInput]) -> None:
    answers: queue.Queue[object] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    client.async_stream_infer("rows", inputs)
    assert isinstance(answers.get(timeout=10), triton.InferResult)
    client.stop_stream()


@pytest.mark.parametrize("way", [unary, streamed])
def test_calls_leave_no_requests_behind(served, way: Callable[..., None]) -> None:
    x = triton.InferInput("INPUT0", ROWS.shape, "FP32")
    x.set_data_from_numpy(ROWS)
    client = served.client()
    for _ in range(5):
        way(client, [x])
    served.engine.taken.clear()
    wait_until(lambda: not alive(Request), what="requests freed")
