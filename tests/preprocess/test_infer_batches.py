"""sits.v1 InferBatches: every message a batch, one answer a request, in any order."""

import queue

import grpc
import numpy as np
import pytest

from sits_core.clock import now_ns
from sits_preprocess.fake_engine import model
from sits_preprocess.request import TensorData
from sits_protos.v1 import common_pb2, inference_pb2, inference_pb2_grpc

X = np.arange(4, dtype=np.float32)


def request(request_id: str, value: float = 0.0, name: str = "rows", **fields):
    made = inference_pb2.InferRequest(id=request_id, model=name, **fields)
    made.inputs.add(
        name="INPUT0", datatype="FP32", shape=[1, 4], inline=(X + value).astype("<f4").tobytes()
    )
    return made


def batch(batch_id: int, *requests):
    return inference_pb2.InferBatchesRequest(batch_id=batch_id, requests=requests)


class Batches:
    """An open stream."""

    def __init__(self, address: str, *metadata: tuple[str, str]) -> None:
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._outgoing: queue.Queue = queue.Queue()
        stub = inference_pb2_grpc.InferenceStub(self.channel)
        self.call = stub.InferBatches(iter(self._outgoing.get, None), metadata=metadata, timeout=60)

    def send(self, *messages) -> None:
        for message in messages:
            self._outgoing.put(message)

    def half_close(self) -> None:
        self._outgoing.put(None)

    def answers(self, count: int):
        """So many answers, by batch and index."""
        found = {}
        while len(found) < count:
            message = next(self.call)
            for response in message.responses:
                assert (message.batch_id, response.index) not in found
                found[message.batch_id, response.index] = response
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_exc: object) -> None:
        self.half_close()
        self.call.cancel()
        self.channel.close()


@pytest.fixture
def batches(served):
    with Batches(served.address) as opened:
        yield opened


def test_every_request_gets_the_answer_to_its_own_input(batches) -> None:
    batches.send(
        *(batch(b, *(request(f"{b}/{i}", b * 10 + i) for i in range(5))) for b in range(4))
    )
    answers = batches.answers(20)
    for (b, i), answer in answers.items():
        assert (answer.id, answer.model, answer.version) == (f"{b}/{i}", "rows", "1")
        assert not answer.HasField("error")
        got = np.frombuffer(answer.outputs[0].inline, "<f4")
        np.testing.assert_array_equal(got, X + b * 10 + i)
        assert list(answer.outputs[0].shape) == [1, 4]


def test_an_error_is_in_the_answer_of_its_request_only(batches) -> None:
    wrong = request("b")
    wrong.inputs[0].shape[1] = 5
    batches.send(batch(1, request("a"), wrong, request("c", name="nope"), request("d")))
    answers = batches.answers(4)
    assert [answers[1, i].error.code for i in range(4)] == [0, 3, 5, 0]
    assert answers[1, 1].error.message.startswith("[request id: b] unexpected shape")
    assert answers[1, 1].error.reason == "INVALID_ARGUMENT"
    assert answers[1, 2].error.reason == "NOT_FOUND"


def test_answers_come_as_they_are_ready(served, batches) -> None:
    served.engine.hold = True
    batches.send(batch(1, request("a"), request("b")))
    served.engine.wait(lambda: len(served.engine.taken) == 2)
    served.engine.finish(served.engine.taken[1])
    assert list(batches.answers(1)) == [(1, 1)]
    served.engine.finish(served.engine.taken[0])
    assert list(batches.answers(1)) == [(1, 0)]


def test_parameters_mean_what_they_mean_in_model_infer(served, batches) -> None:
    asked = request("a")
    asked.parameters["priority"].int64_value = 2
    asked.parameters["timeout"].int64_value = 1_000_000
    asked.parameters["sits_tenant"].string_value = "gold"
    asked.parameters["k"].double_value = 0.5
    batches.send(batch(1, asked))
    batches.answers(1)
    taken = served.engine.taken[0]
    assert (taken.priority, taken.tenant, taken.parameters) == (2, "gold", {"k": 0.5})
    assert taken.deadline.unix_ns - taken.received_ns == 1_000_000_000


def test_outputs_may_be_chosen(served, batches) -> None:
    asked = inference_pb2.InferRequest(model="two", outputs=["OUTPUT1"])
    for number in range(2):
        asked.inputs.add(name=f"INPUT{number}", datatype="INT32", shape=[2], inline=bytes(8))
    batches.send(batch(1, asked))
    assert [o.name for o in batches.answers(1)[1, 0].outputs] == ["OUTPUT1"]


@pytest.mark.parametrize("payload", [{}, {"reference": common_pb2.PayloadRef(pool="p", length=16)}])
def test_data_must_be_inline(batches, payload) -> None:
    asked = inference_pb2.InferRequest(model="rows")
    asked.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4], **payload)
    batches.send(batch(1, asked))
    error = batches.answers(1)[1, 0].error
    assert error.code == 3
    assert "expected inline data for input 'INPUT0' for model 'rows'" in error.message


def test_half_close_finishes_what_is_in_flight_and_ends_well(served, batches) -> None:
    served.engine.hold = True
    batches.send(batch(1, request("a"), request("b")), batch(2))
    batches.half_close()
    served.engine.wait(lambda: len(served.engine.taken) == 2)
    served.engine.finish_all()
    assert len(batches.answers(2)) == 2
    assert list(batches.call) == []
    assert batches.call.code() is grpc.StatusCode.OK


def test_cancelling_cancels_all_that_is_in_flight(served, batches) -> None:
    served.engine.hold = True
    batches.send(batch(1, *(request(str(i)) for i in range(5))))
    served.engine.wait(lambda: len(served.engine.taken) == 5)
    batches.call.cancel()
    served.engine.wait(lambda: set(served.engine.cancelled) == set(served.engine.taken))
    served.until(lambda: not served.front.servicer.streams)


def test_a_client_without_bounds_is_read_no_further(serve) -> None:
    served = serve(preprocess_stream_requests=8)
    served.engine.hold = True
    with Batches(served.address) as batches:
        batches.send(*(batch(b, *(request(f"{b}/{i}") for i in range(4))) for b in range(20)))
        answered = 0
        while answered < 80:
            served.engine.wait(lambda: bool(served.engine.open_requests))
            # What is held when a message is read may be just under the limit.
            assert len(served.engine.open_requests) < 8 + 4
            served.engine.finish(served.engine.open_requests[0])
            batches.answers(1)
            answered += 1
    assert len(served.engine.taken) == 80


def test_answers_that_wait_for_the_client_leave_together(serve) -> None:
    served = serve(model("m", [("INPUT0", "FP32", [-1, 4])], [("OUTPUT0", "UINT8", [-1])]))
    block = bytes(200_000)
    served.engine.runs["m"] = lambda _: [TensorData("OUTPUT0", "UINT8", (len(block),), block)]
    with Batches(served.address) as batches:
        batches.send(batch(1, *(request(str(i), name="m") for i in range(200))))
        served.engine.wait(lambda: len(served.engine.taken) == 200)
        served.until(lambda: served.front.inference.open_requests == 0)
        messages, answers = 0, 0
        while answers < 200:
            message = next(batches.call)
            messages, answers = messages + 1, answers + len(message.responses)
            assert message.ByteSize() < 2 << 20
    assert messages < 200


@pytest.mark.parametrize("message", [b"\xff\xff", None])
def test_what_cannot_be_read_ends_the_stream(served, message: bytes | None) -> None:
    data = message or batch(1, *[inference_pb2.InferRequest()] * 5000).SerializeToString()
    with grpc.insecure_channel(served.address) as channel:
        call = channel.stream_stream("/sits.v1.Inference/InferBatches")(iter([data]), timeout=20)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "expected" in caught.value.details()


def test_draining_ends_the_stream_after_its_answers(served, batches) -> None:
    served.engine.hold = True
    batches.send(batch(1, request("a")))
    served.engine.wait(lambda: len(served.engine.taken) == 1)
    served.front.servicer.drain()
    served.engine.finish_all()
    assert len(batches.answers(1)) == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(batches.call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_deadline_is_fixed_when_the_message_arrives(served, batches) -> None:
    before = now_ns()
    batches.send(batch(1, request("a")))
    batches.answers(1)
    assert before <= served.engine.taken[0].received_ns <= now_ns()
