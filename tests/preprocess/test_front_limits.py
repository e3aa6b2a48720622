"""Large messages, too large ones, and headers beyond all measure."""

import queue
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from sits_preprocess.fake_engine import model
from sits_preprocess.request import TensorData

MIB = 1 << 20
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def blob(size: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="any_UINT8", raw_input_contents=[bytes(size)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[size])
    return request


@pytest.mark.parametrize("size", [5 * MIB, 120 * MIB])
def test_messages_under_the_limit_pass_both_ways(served, size: int) -> None:
    sent = np.zeros(size, np.uint8)
    sent[-1] = 7
    got = served.infer("any_UINT8", sent).as_numpy("OUTPUT0")
    assert got.shape == (size,)
    assert got[-1] == 7


def test_a_request_over_the_limit_names_size_and_limit_and_the_next_one_works(serve) -> None:
    served = serve(max_message_bytes=2 * MIB)
    with pytest.raises(InferenceServerException) as caught:
        served.infer("any_UINT8", np.zeros(3 * MIB, np.uint8))
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert str(2 * MIB) in caught.value.message()
    assert "31457" in caught.value.message()
    served.infer("any_UINT8", np.zeros(10, np.uint8))


def test_calls_beyond_those_of_a_connection_wait_at_the_client(serve) -> None:
    served = serve(preprocess_connection_calls=2)
    served.engine.hold = True
    message = pb.ModelInferRequest(model_name="any_UINT8", raw_input_contents=[b"\1"])
    message.inputs.add(name="INPUT0", datatype="UINT8", shape=[1])
    with grpc.insecure_channel(served.address) as channel:
        infer = channel.unary_unary(INFER, pb.ModelInferRequest.SerializeToString)
        calls = [infer.future(message, timeout=30) for _ in range(2)]
        served.until(lambda: len(served.engine.taken) == 2)
        with pytest.raises(grpc.RpcError) as caught:
            infer(message, timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert len(served.engine.taken) == 2
        served.engine.finish_all()
        assert all(call.result() for call in calls)


def test_streams_of_different_clients_do_not_share_the_calls_of_one_connection(serve) -> None:
    served = serve(preprocess_connection_calls=1)
    ends = [queue.SimpleQueue() for _ in range(3)]
    with ExitStack() as channels:
        for requests in ends:
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = channels.enter_context(grpc.insecure_channel(served.address, options))
            stream = channel.stream_stream(STREAM, pb.ModelInferRequest.SerializeToString)
            requests.put(pb.ModelInferRequest(model_name="nobody"))
            answers = stream(iter(requests.get, None), timeout=30)
            assert next(answers), "while those before are open"
        for requests in ends:
            requests.put(None)


def test_bytes_of_unanswered_requests_are_bounded_over_all_calls(serve) -> None:
    served = serve(preprocess_open_bytes=4 * MIB)
    served.engine.hold = True
    client, errors = served.client(), []
    tensor = triton.InferInput("INPUT0", [MIB], "UINT8")
    tensor.set_data_from_numpy(np.zeros(MIB, np.uint8))
    for _ in range(6):
        client.async_infer("any_UINT8", [tensor], lambda result, error: errors.append(error))
    served.until(lambda: len(served.engine.taken) == 3 and len(errors) == 3)
    for error in errors:
        assert error.status() == "StatusCode.UNAVAILABLE"
        assert "Exceeds maximum queue size" in error.message()
    served.engine.finish_all()
    served.until(lambda: len(errors) == 6)
    assert served.front.inference.open_bytes == 0
    served.engine.hold = False
    served.infer("any_UINT8", np.zeros(MIB, np.uint8))


def test_a_single_request_may_take_more_than_that(serve) -> None:
    served = serve(preprocess_open_bytes=MIB)
    served.infer("any_UINT8", np.zeros(3 * MIB, np.uint8))


def test_a_stream_ends_with_that_status_and_the_next_stream_works(serve) -> None:
    served = serve(max_message_bytes=2 * MIB)
    with grpc.insecure_channel(served.address, options=UNLIMITED) as channel:
        method = channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        outgoing: queue.Queue = queue.Queue()
        call = method(iter(outgoing.get, None), timeout=20)
        outgoing.put(blob(10))
        assert not next(call).error_message
        outgoing.put(blob(3 * MIB))
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(2 * MIB) in caught.value.details()
        outgoing.put(None)
        assert len(list(method(iter([blob(10)]), timeout=20))) == 1
    served.until(lambda: not served.front.servicer.streams)


def test_a_response_over_the_limit_is_an_error_that_names_both(serve) -> None:
    served = serve(
        model("grow", [("INPUT0", "INT8", [1])], [("OUTPUT0", "UINT8", [-1])]),
        max_message_bytes=2 * MIB,
    )
    served.engine.runs["grow"] = lambda _: [
        TensorData("OUTPUT0", "UINT8", (3 * MIB,), bytes(3 * MIB))
    ]
    with pytest.raises(InferenceServerException) as caught:
        served.infer("grow", np.zeros(1, np.int8))
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert "response of model 'grow'" in caught.value.message()
    assert f"limit of {2 * MIB}" in caught.value.message()


def test_oversized_headers_are_refused_and_the_connection_stays_up(served, transport) -> None:
    client = served.client()
    x = triton.InferInput("INPUT0", [1], "INT8")
    x.set_data_from_numpy(np.zeros(1, np.int8))
    with pytest.raises(InferenceServerException) as caught:
        client.infer("any_INT8", [x], headers={"authorization": "x" * 60_000})
    # The native front says it in HTTP (431), for which gRPC clients have no status of its own.
    status = {"grpcio": "RESOURCE_EXHAUSTED", "native": "UNKNOWN"}[transport]
    assert caught.value.status() == f"StatusCode.{status}"
    client.infer("any_INT8", [x])


def test_many_and_long_headers_within_bounds_pass(served) -> None:
    client = served.client()
    x = triton.InferInput("INPUT0", [1], "INT8")
    x.set_data_from_numpy(np.zeros(1, np.int8))
    client.infer("any_INT8", [x], headers={f"h{i}": "v" for i in range(200)})
    client.infer("any_INT8", [x], headers={"authorization": "x" * 12_000})
    client.infer("any_INT8", [x], headers={"tracestate": "a=" + "x" * 4000})
    client.infer("any_INT8", [x], headers={"baggage": "a=" + "x" * 4000})


def test_unknown_methods_are_unimplemented(served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        for path in ("/inference.GRPCInferenceService/Nope", "/nope.Nope/Nope"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(b"", timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
