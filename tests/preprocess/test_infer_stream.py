"""ModelStreamInfer: order, errors, half-close, cancellation, slow readers."""

import queue
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb

from sits_core.errors import Unavailable
from sits_preprocess.fake_engine import model
from sits_preprocess.request import Answer, TensorData

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def request(request_id: str, name: str = "rows", rows: int = 1, value: float = 0.0, **fields):
    made = pb.ModelInferRequest(model_name=name, id=request_id, **fields)
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[rows, 4])
    made.raw_input_contents.append(np.full((rows, 4), value, np.float32).tobytes())
    return made


def wrong(request_id: str) -> pb.ModelInferRequest:
    made = request(request_id)
    made.inputs[0].shape[1] = 5
    return made


class Stream:
    """A raw stream whose two halves the test drives by hand."""

    def __init__(self, address: str, *metadata: tuple[str, str], **options) -> None:
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.outgoing: queue.Queue = queue.Queue()
        method = self.channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        self.call = method(iter(self.outgoing.get, None), metadata=metadata, timeout=60, **options)

    def send(self, *requests: pb.ModelInferRequest) -> None:
        for message in requests:
            self.outgoing.put(message)

    def half_close(self) -> None:
        self.outgoing.put(None)

    def read(self) -> pb.ModelStreamInferResponse:
        return next(self.call)

    def __enter__(self):
        return self

    def __exit__(self, *_exc: object) -> None:
        self.half_close()
        self.call.cancel()
        self.channel.close()


@pytest.fixture
def stream(served):
    with Stream(served.address) as opened:
        yield opened


def test_answers_come_in_the_order_of_requests(served, stream) -> None:
    served.engine.hold = True
    stream.send(*(request(str(i), value=i) for i in range(10)))
    served.engine.wait(lambda: len(served.engine.taken) == 10)
    for taken in reversed(served.engine.open_requests):
        served.engine.finish(taken)
    for i in range(10):
        response = stream.read()
        assert response.infer_response.id == str(i)
        values = np.frombuffer(response.infer_response.raw_output_contents[0], np.float32)
        assert set(values) == {i}


def test_every_response_says_that_it_is_the_last_of_its_request(stream) -> None:
    asking = request("b")
    asking.parameters["triton_enable_empty_final_response"].bool_param = True
    stream.send(request("a"), asking, wrong("c"))
    for _ in range(3):
        assert stream.read().infer_response.parameters["triton_final_response"].bool_param


def test_refused_requests_are_answered_with_their_id_and_the_stream_goes_on(stream) -> None:
    stream.send(
        request("a"), wrong("b"), request("c"), request("d", name="nope"), request("e")
    )  # fmt: skip
    responses = [stream.read() for _ in range(5)]
    assert [r.infer_response.id for r in responses] == list("abcde")
    assert [bool(r.error_message) for r in responses] == [False, True, False, True, False]
    assert "unexpected shape" in responses[1].error_message
    assert responses[1].infer_response.parameters["sits_status"].string_param == "INVALID_ARGUMENT"
    assert responses[3].error_message == "Request for unknown model: 'nope' is not found"
    assert responses[3].infer_response.parameters["sits_status"].string_param == "NOT_FOUND"


def test_the_grpc_error_header_ends_the_stream_at_the_first_error(served) -> None:
    with Stream(served.address, ("triton_grpc_error", "true")) as stream:
        stream.send(request("a"), wrong("b"), request("c"))
        assert stream.read().infer_response.id == "a"
        with pytest.raises(grpc.RpcError) as caught:
            stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "[request id: b] unexpected shape" in caught.value.details()


def test_with_that_header_what_is_in_flight_behind_the_error_is_cancelled(served) -> None:
    served.engine.hold = True
    with Stream(served.address, ("triton_grpc_error", "true")) as stream:
        stream.send(request("a"), request("b"))
        served.engine.wait(lambda: len(served.engine.taken) == 2)
        first, second = served.engine.taken
        served.engine.finish(first, Answer(error=Unavailable("busy")))
        with pytest.raises(grpc.RpcError) as caught:
            stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    served.engine.wait(lambda: second in served.engine.cancelled)


def test_bytes_that_are_no_request_are_answered_like_a_wrong_request(served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        method = channel.stream_stream(STREAM, None, pb.ModelStreamInferResponse.FromString)
        responses = list(method(iter([b"\xff\xff", request("a").SerializeToString()]), timeout=20))
    assert "expected an inference.ModelInferRequest" in responses[0].error_message
    assert responses[1].infer_response.id == "a"


def test_half_close_finishes_what_is_in_flight_and_ends_well(served, stream) -> None:
    served.engine.hold = True
    stream.send(request("a"), request("b"))
    stream.half_close()
    served.engine.wait(lambda: len(served.engine.taken) == 2)
    served.engine.finish_all()
    assert [r.infer_response.id for r in stream.call] == ["a", "b"]
    assert stream.call.code() is grpc.StatusCode.OK


def test_a_stream_without_requests_ends_well(stream) -> None:
    stream.half_close()
    assert list(stream.call) == []
    assert stream.call.code() is grpc.StatusCode.OK


def test_cancelling_the_stream_cancels_all_that_is_in_flight(served, stream) -> None:
    served.engine.hold = True
    stream.send(*(request(str(i)) for i in range(5)))
    served.engine.wait(lambda: len(served.engine.taken) == 5)
    stream.call.cancel()
    served.engine.wait(lambda: set(served.engine.cancelled) == set(served.engine.taken))
    served.until(lambda: served.front.inference.open_requests == 0)


def test_a_deadline_on_the_stream_holds_for_its_requests(served) -> None:
    with Stream(served.address) as stream:
        stream.send(request("a"))
        stream.read()
    left = served.engine.taken[0].deadline.left_s(served.engine.taken[0].received_ns)
    assert 50 < left < 61  # gRPC rounds up what travels


def test_one_stream_waits_for_nobody_elses_slow_reader(served) -> None:
    big = 8
    with Stream(served.address) as slow, Stream(served.address) as quick:
        slow.send(*(request(str(i), rows=big) for i in range(50)))
        for i in range(50):
            quick.send(request(str(i)))
            assert quick.read().infer_response.id == str(i)
        assert [slow.read().infer_response.id for _ in range(50)] == list(map(str, range(50)))


def test_a_client_that_does_not_read_is_read_no_further(serve) -> None:
    served = serve(preprocess_stream_requests=8, preprocess_stream_bytes=1 << 20)
    served.engine.hold = True
    with Stream(served.address) as stream:
        stream.send(*(request(str(i)) for i in range(40)))
        served.engine.wait(lambda: len(served.engine.taken) >= 8)
        for answered in range(40):
            served.engine.wait(lambda: bool(served.engine.open_requests))
            assert len(served.engine.open_requests) <= 8
            served.engine.finish(served.engine.open_requests[0])
            assert stream.read().infer_response.id == str(answered)
    assert len(served.engine.taken) == 40


def test_responses_waiting_for_a_stalled_client_are_bounded(serve) -> None:
    served = serve(
        model("big", [("INPUT0", "FP32", [-1, 4])], [("OUTPUT0", "UINT8", [-1])]),
        preprocess_stream_requests=16,
    )
    megabyte = bytes(1 << 20)
    served.engine.runs["big"] = lambda _: [TensorData("OUTPUT0", "UINT8", (1 << 20,), megabyte)]
    total = 300
    with Stream(served.address) as stream:
        stream.send(*(request(str(i), name="big") for i in range(total)))
        served.engine.wait(lambda: len(served.engine.taken) >= 16)
        wait_steady(served)
        # 16 unanswered, and what HTTP/2 windows and sockets of both sides take up.
        assert len(served.engine.taken) < 100
        ids = [stream.read().infer_response.id for _ in range(total)]
    assert ids == list(map(str, range(total)))


def wait_steady(served) -> None:
    """Until nothing more has been taken for a while."""
    pause, before = threading.Event(), -1
    while before != len(served.engine.taken):
        before = len(served.engine.taken)
        pause.wait(0.5)


def test_the_stock_client_streams(served) -> None:
    client, got = served.client(), queue.Queue()
    for _ in range(20):  # a second stream after the first, on one client
        client.start_stream(callback=lambda result, error: got.put((result, error)))
        for i in range(10):
            x = triton.InferInput("INPUT0", [1, 4], "FP32")
            x.set_data_from_numpy(np.full((1, 4), i, np.float32))
            client.async_stream_infer("rows", [x], request_id=str(i))
        for i in range(10):
            result, error = got.get(timeout=20)
            assert error is None
            assert result.get_response().id == str(i)
            assert result.as_numpy("OUTPUT0")[0, 0] == i
        client.stop_stream()


def test_the_stock_client_sees_refusals_in_its_callback(served) -> None:
    client, got = served.client(), queue.Queue()
    client.start_stream(callback=lambda result, error: got.put((result, error)))
    bad = triton.InferInput("INPUT0", [1, 5], "FP32")
    bad.set_data_from_numpy(np.zeros((1, 5), np.float32))
    client.async_stream_infer("rows", [bad], request_id="b")
    _result, error = got.get(timeout=20)
    assert "[request id: b] unexpected shape" in str(error)
    client.stop_stream()


def test_many_streams_on_one_connection_keep_their_answers_apart(served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        method = channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        calls = [
            method(iter([request(f"{c}/{i}", value=c * 100 + i) for i in range(50)]), timeout=60)
            for c in range(8)
        ]
        for c, call in enumerate(calls):
            responses = [r.infer_response for r in call]
            assert [r.id for r in responses] == [f"{c}/{i}" for i in range(50)]
            firsts = [np.frombuffer(r.raw_output_contents[0], np.float32)[0] for r in responses]
            assert firsts == [c * 100 + i for i in range(50)]


def test_open_streams_cost_no_threads(served) -> None:
    before = threading.active_count()
    with grpc.insecure_channel(served.address) as channel:
        method = channel.stream_stream(STREAM, None, None)
        gate = threading.Event()

        def idle():
            gate.wait(30)
            yield from ()

        calls = [method(idle(), timeout=60) for _ in range(50)]
        served.until(lambda: len(served.front.servicer.streams) == 50)
        # The client has one thread a stream; the server none.
        assert threading.active_count() - before <= 50 + 5
        gate.set()
        for call in calls:
            assert list(call) == []
    served.until(lambda: len(served.front.servicer.streams) == 0)


def test_stopping_ends_open_streams_within_the_grace(served) -> None:
    """50 of them, each with requests in flight and answers that nobody reads."""
    with grpc.insecure_channel(served.address) as channel:
        method = channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        gate = threading.Event()

        def asking():
            yield from (request(str(i)) for i in range(5))
            gate.wait(30)

        calls = [method(asking(), timeout=60) for _ in range(50)]
        served.until(lambda: len(served.engine.taken) == 250)
        started = time.monotonic()
        served.front.stop(0.2)
        assert time.monotonic() - started < 0.2 + 5
        for call in calls:
            with pytest.raises(grpc.RpcError):
                list(call)
        gate.set()
    served.until(lambda: not served.front.servicer.streams)


def test_draining_answers_what_came_and_ends_the_stream_with_a_retryable_status(served) -> None:
    served.engine.hold = True
    with Stream(served.address) as stream:
        stream.send(request("a"))
        served.engine.wait(lambda: len(served.engine.taken) == 1)
        served.front.servicer.drain()
        stream.send(request("b"))
        served.engine.finish_all()
        assert stream.read().infer_response.id == "a"
        rest = []
        with pytest.raises(grpc.RpcError) as caught:
            rest.extend(iter(stream.read, None))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(served.engine.taken) == 1


def test_a_stream_opened_while_draining_ends_with_a_retryable_status(served) -> None:
    served.front.servicer.drain()
    with Stream(served.address) as stream, pytest.raises(grpc.RpcError) as caught:
        stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
