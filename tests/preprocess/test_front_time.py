"""Deadlines and cancellation at the front port."""

import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from sits_core.clock import Deadline, now_ns
from sits_core.errors import DeadlineExceeded
from sits_preprocess.inference import Ask
from sits_preprocess.request import Answer

INFER = "/inference.GRPCInferenceService/ModelInfer"


def one_byte(**fields) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="any_INT8", raw_input_contents=[b"a"], **fields)
    request.inputs.add(name="INPUT0", datatype="INT8", shape=[1])
    return request


def left_s(served) -> float | None:
    request = served.engine.taken[-1]
    return None if request.deadline is None else request.deadline.left_s(request.received_ns)


def test_without_a_deadline_none_is_made_up(served) -> None:
    served.infer("any_INT8", np.zeros(1, np.int8))
    assert left_s(served) is None


@pytest.mark.parametrize("seconds", [0.5, 10.0, 31_000_000.0])
def test_the_deadline_of_the_call_is_taken_over(served, seconds: float) -> None:
    served.infer("any_INT8", np.zeros(1, np.int8), client_timeout=seconds)
    left = left_s(served)
    assert left is None if seconds > 1e8 else 0 < left <= seconds * 1.1 + 0.2


def test_the_timeout_parameter_is_in_microseconds_and_the_earlier_one_wins(served) -> None:
    served.infer("any_INT8", np.zeros(1, np.int8), timeout=2_000_000)
    assert left_s(served) == pytest.approx(2.0, abs=1e-6)
    served.infer("any_INT8", np.zeros(1, np.int8), timeout=2_000_000, client_timeout=0.5)
    assert left_s(served) < 1
    served.infer("any_INT8", np.zeros(1, np.int8), timeout=2_000_000, client_timeout=50)
    assert left_s(served) == pytest.approx(2.0, abs=1e-6)


def test_the_servers_own_limit_holds_for_requests_that_bring_none(serve) -> None:
    served = serve(preprocess_default_timeout_s=3.0)
    served.infer("any_INT8", np.zeros(1, np.int8))
    assert left_s(served) == pytest.approx(3.0, abs=1e-6)
    served.infer("any_INT8", np.zeros(1, np.int8), timeout=9_000_000)
    assert left_s(served) == pytest.approx(9.0, abs=1e-6)


def test_a_request_that_comes_too_late_is_refused_before_any_work(served) -> None:
    origin = served.front.inference.admission.origin(FakeCall(Deadline(1)))
    results = []
    ask = Ask(Unreadable(), origin, 9, results.append)
    served.front.inference.start([ask], now_ns())
    assert isinstance(results[0].error, DeadlineExceeded)
    assert not served.engine.taken


def test_a_deadline_that_passes_is_told_to_the_engine_and_to_the_client(served) -> None:
    served.engine.hold = True
    with pytest.raises(InferenceServerException) as caught:
        served.infer("any_INT8", np.zeros(1, np.int8), client_timeout=0.2)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    served.engine.wait(lambda: served.engine.cancelled == served.engine.taken)
    served.until(lambda: served.front.inference.open_requests == 0)


def test_an_inner_timeout_is_deadline_exceeded(served) -> None:
    served.engine.hold = True
    client, done = served.client(), []
    x = triton.InferInput("INPUT0", [1], "INT8")
    x.set_data_from_numpy(np.zeros(1, np.int8))
    client.async_infer("any_INT8", [x], lambda result, error: done.append(error))
    served.engine.wait(lambda: bool(served.engine.taken))
    late = Answer(error=DeadlineExceeded("Request timeout expired"))
    served.engine.finish(served.engine.taken[0], late)
    served.until(lambda: bool(done))
    assert done[0].status() == "StatusCode.DEADLINE_EXCEEDED"


def test_cancelled_calls_are_told_to_the_engine(served) -> None:
    served.engine.hold = True
    client = served.client()
    x = triton.InferInput("INPUT0", [1], "INT8")
    x.set_data_from_numpy(np.zeros(1, np.int8))
    errors = []
    handles = [
        client.async_infer("any_INT8", [x], lambda result, error: errors.append(error))
        for _ in range(10)
    ]
    served.engine.wait(lambda: len(served.engine.taken) == 10)
    for handle in handles:
        handle.cancel()
    served.engine.wait(lambda: len(served.engine.cancelled) == 10)
    served.until(lambda: served.front.inference.open_requests == 0 and len(errors) == 10)
    outcome = {"model": "any_INT8", "tenant": "bronze", "outcome": "CANCELLED"}
    assert served.metric("sits_requests_total", **outcome) == 10


def test_a_client_that_vanishes_cancels_its_requests(served) -> None:
    served.engine.hold = True
    channel = grpc.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1)])
    method = channel.unary_unary(INFER, pb.ModelInferRequest.SerializeToString, None)
    futures = [method.future(one_byte()) for _ in range(5)]
    served.engine.wait(lambda: len(served.engine.taken) == 5)
    channel.close()
    served.engine.wait(lambda: len(served.engine.cancelled) == 5)
    assert all(future.done() for future in futures)


def test_cancels_that_race_with_answers_end_every_call_once(served) -> None:
    served.engine.hold = True
    ended = []
    with grpc.insecure_channel(served.address) as channel:
        method = channel.unary_unary(INFER, pb.ModelInferRequest.SerializeToString, None)
        for round_ in range(200):
            call = method.future(one_byte(id=str(round_)), timeout=20)
            served.engine.wait(lambda wanted=round_ + 1: len(served.engine.taken) == wanted)
            answering = threading.Thread(target=served.engine.finish_all)
            answering.start()
            time.sleep(round_ % 4 / 10_000)
            call.cancel()
            answering.join()
            ended.append(call.code())
    assert set(ended) <= {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}
    served.until(lambda: served.front.inference.open_requests == 0)


class Unreadable:
    """Must not be looked at."""

    def names(self) -> None:
        pytest.fail("was looked at")

    def read(self) -> None:
        pytest.fail("was read")


class FakeCall:
    """As much of a call as its origin is read from."""

    def __init__(self, deadline: Deadline) -> None:
        self.metadata: dict[str, str] = {}
        self.deadline = deadline
        self.peer = "test"
