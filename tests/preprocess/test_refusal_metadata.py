"""A refusal tells programs why, and when to come back: in trailers or parameters."""

import grpc
import numpy as np
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from tritonclient.grpc import service_pb2 as pb

from sits_core.errors import InvalidArgument, Unavailable, from_proto
from sits_protos.v1.inference_pb2 import InferBatchesRequest, InferBatchesResponse, InferRequest

SERVICE = "/inference.GRPCInferenceService/"
SHED = Unavailable("too much work", reason="SHED_UNDER_OVERLOAD", retry_after_ms=1500)


def request() -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="rows", id="r")
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    made.raw_input_contents.append(np.zeros((1, 4), np.float32).tobytes())
    return made


def trailers(served, message: pb.ModelInferRequest) -> dict[str, str]:
    with grpc.insecure_channel(served.address) as channel:
        call = channel.unary_unary(
            SERVICE + "ModelInfer", pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )  # fmt: skip
        try:
            call(message, timeout=20)
        except grpc.RpcError as error:
            return dict(error.trailing_metadata())
    raise AssertionError("the call succeeded")


def test_a_refused_call_has_its_reason_and_when_to_retry_in_its_trailers(served, transport) -> None:
    served.engine.refuse = SHED
    found = trailers(served, request())
    assert found["sits-reason"] == "SHED_UNDER_OVERLOAD"
    assert found["sits-retry-after-ms"] == "1500"
    # pygrpc-native does not send this one key.
    assert found.get("grpc-retry-pushback-ms") == ("1500" if transport == "grpcio" else None)


def test_when_to_retry_is_in_the_status_details_as_clients_of_google_apis_know_it(served) -> None:
    served.engine.refuse = SHED
    status = Status.FromString(trailers(served, request())["grpc-status-details-bin"])
    retry, info = RetryInfo(), ErrorInfo()
    assert status.details[0].Unpack(retry)
    assert status.details[1].Unpack(info)
    assert (status.code, status.message) == (14, "too much work")
    assert retry.retry_delay.ToMilliseconds() == 1500
    assert (info.reason, info.domain) == ("SHED_UNDER_OVERLOAD", "sits")


def test_an_error_that_no_retry_mends_has_its_reason_only(served) -> None:
    found = trailers(served, pb.ModelInferRequest(model_name="nobody"))
    assert found["sits-reason"] == "NOT_FOUND"
    assert not {"grpc-retry-pushback-ms", "grpc-status-details-bin"} & found.keys()


def test_on_a_stream_they_are_parameters_of_the_answer(served) -> None:
    served.engine.refuse = SHED
    with grpc.insecure_channel(served.address) as channel:
        stream = channel.stream_stream(
            SERVICE + "ModelStreamInfer", pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )  # fmt: skip
        (answer,) = stream(iter([request()]), timeout=20)
    parameters = answer.infer_response.parameters
    assert parameters["sits_status"].string_param == "UNAVAILABLE"
    assert parameters["sits_reason"].string_param == "SHED_UNDER_OVERLOAD"
    assert parameters["sits_retry_after_ms"].int64_param == 1500


def test_in_batches_they_are_in_the_error(served) -> None:
    served.engine.refuse = SHED
    inference = InferRequest(model="rows")
    inference.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4], inline=bytes(16))
    with grpc.insecure_channel(served.address) as channel:
        stream = channel.stream_stream(
            "/sits.v1.Inference/InferBatches", InferBatchesRequest.SerializeToString,
            InferBatchesResponse.FromString,
        )  # fmt: skip
        (answer,) = stream(iter([InferBatchesRequest(requests=[inference])]), timeout=20)
    error = answer.responses[0].error
    assert (error.reason, error.retry_after_ms) == ("SHED_UNDER_OVERLOAD", 1500)


def test_an_error_keeps_them_from_service_to_service() -> None:
    again = from_proto(SHED.to_proto())
    assert (again.trailers(), str(again)) == (SHED.trailers(), str(SHED))
    assert from_proto(InvalidArgument("x").to_proto()).retry_after_ms == 0
