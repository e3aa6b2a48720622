"""Wrong requests get one clear error that names what was expected and what came."""

import concurrent.futures
import re
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from sits_core.errors import Internal, Unavailable
from sits_preprocess.fake_engine import failing, model
from sits_protos.v1.link_pb2 import ModelState

IMAGE = model(
    "image", [("INPUT0", "FP32", [3, 640, 640])], [("OUTPUT0", "FP32", [1])], max_batch_size=8
)


def tensor(shape: list[int], datatype: str, data: bytes = b"", name: str = "INPUT0"):
    made = triton.InferInput(name, shape, datatype)
    made._raw_content = data
    return made


def refused(served, name: str, *inputs, **options) -> InferenceServerException:
    with pytest.raises(InferenceServerException) as caught:
        served.client().infer(name, list(inputs), **options)
    assert not served.engine.taken
    return caught.value


def invalid(served, name: str, *inputs, **options) -> str:
    error = refused(served, name, *inputs, request_id="r 7", **options)
    assert error.status() == "StatusCode.INVALID_ARGUMENT"
    assert error.message().startswith("[request id: r 7] ")
    return error.message()


class TestShapesAndSizes:
    def test_a_missing_batch_dimension_is_explained(self, serve) -> None:
        text = invalid(serve(IMAGE), "image", tensor([3, 640, 640], "FP32"))
        assert "unexpected shape for input 'INPUT0' for model 'image'" in text
        assert "Expected [-1,3,640,640], got [3,640,640]" in text
        assert "requires a batch dimension" in text

    def test_a_wrong_dimension_shows_both_shapes(self, serve) -> None:
        text = invalid(serve(IMAGE), "image", tensor([1, 3, 384, 640], "FP32"))
        assert "Expected [-1,3,640,640], got [1,3,384,640]" in text

    def test_a_shape_is_literal_when_the_model_does_not_batch(self, served) -> None:
        text = invalid(served, "two", tensor([1, 2], "INT32"))
        assert "Expected [2], got [1,2]" in text
        assert "batch" not in text

    def test_no_shape_at_all_is_refused_when_the_model_batches(self, serve) -> None:
        text = invalid(serve(IMAGE), "image", tensor([], "FP32"))
        assert "has no shape but model requires batch dimension for 'image'" in text

    def test_data_of_another_size_than_declared_shows_both(self, serve) -> None:
        half = bytes(3 * 640 * 640 * 2)
        text = invalid(serve(IMAGE), "image", tensor([1, 3, 640, 640], "FP32", half))
        assert "input byte size mismatch for input 'INPUT0' for model 'image'" in text
        assert "Expected 4915200, got 2457600" in text

    def test_another_datatype_shows_both(self, served) -> None:
        text = invalid(served, "rows", tensor([1, 4], "FP16", bytes(8)))
        assert "inference input 'INPUT0' data-type is 'FP16', but model 'rows' expects" in text
        assert "'FP32'" in text

    @pytest.mark.parametrize("rows", [0, 9, 1 << 31, (1 << 32) + 1])
    def test_a_batch_size_out_of_range_shows_the_limit(self, served, rows: int) -> None:
        text = invalid(served, "rows", tensor([rows, 4], "FP32", bytes(16 * (rows % 16))))
        assert "must be <= 8 for 'rows'" in text or "elements" in text

    def test_rows_must_agree_across_inputs(self, serve) -> None:
        inputs = [("INPUT0", "INT8", [1]), ("INPUT1", "INT8", [1])]
        served = serve(model("m", inputs, [], max_batch_size=8))
        a, b = tensor([2, 1], "INT8", b"ab"), tensor([3, 1], "INT8", b"abc", "INPUT1")
        text = invalid(served, "m", a, b)
        assert "input 'INPUT1' batch size does not match other inputs for 'm'" in text

    # The bytes fit two negative dimensions: nothing but a look at their signs refuses these.
    @pytest.mark.parametrize(
        "shape", [[-1, 4], [4, -1], [-(1 << 63)], [0, -1], [-1, -16], [-4, -4]]
    )
    def test_negative_dimensions_are_refused_and_nobody_else_notices(self, serve, shape) -> None:
        dims = [-1] * len(shape)
        served = serve(
            model("m", [("INPUT0", "FP32", dims)], []),
            model("rows", [("INPUT0", "FP32", [4])], [("OUTPUT0", "FP32", [4])], max_batch_size=8),
        )
        bad, good = tensor(shape, "FP32", bytes(64)), np.ones((1, 4), np.float32)
        client = served.client()

        def ask(_: int) -> str:
            with pytest.raises(InferenceServerException) as caught:
                client.infer("m", [bad])
            return str(caught.value.status())

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = pool.map(ask, range(100))
            for _ in range(10):
                served.infer("rows", good)
            assert set(answers) == {"StatusCode.INVALID_ARGUMENT"}


class TestInputsAndOutputs:
    def test_a_missing_input_is_named(self, served) -> None:
        text = invalid(served, "two", tensor([2], "INT32", bytes(8)))
        assert "expected 2 inputs but got 1 inputs for model 'two'" in text
        assert "missing required input(s) ['INPUT1']" in text

    def test_an_extra_input_is_named(self, served) -> None:
        text = invalid(
            served, "any_INT8", tensor([1], "INT8", b"a"), tensor([1], "INT8", b"a", "X")
        )
        assert "unexpected inference input 'X' for model 'any_INT8', expected ['INPUT0']" in text

    def test_an_input_given_twice_is_refused(self, served) -> None:
        twice = tensor([1], "INT8", b"a")
        assert "'INPUT0' already exists in request" in invalid(served, "any_INT8", twice, twice)

    def test_an_unknown_output_is_named(self, served) -> None:
        wanted = [triton.InferRequestedOutput("OUTPUT9")]
        text = invalid(served, "any_INT8", tensor([1], "INT8", b"a"), outputs=wanted)
        assert "unexpected inference output 'OUTPUT9' for model 'any_INT8'" in text

    def test_an_output_asked_for_twice_is_refused(self, served) -> None:
        wanted = [triton.InferRequestedOutput("OUTPUT0")] * 2
        text = invalid(served, "any_INT8", tensor([1], "INT8", b"a"), outputs=wanted)
        assert "output 'OUTPUT0' already requested" in text

    def test_classes_of_bytes_do_not_exist(self, serve) -> None:
        served = serve()
        wanted = [triton.InferRequestedOutput("OUTPUT0", class_count=1)]
        with pytest.raises(InferenceServerException) as caught:
            served.infer("any_BYTES", np.array([b"x"], object), outputs=wanted)
        assert "unsupported type 'BYTES'" in caught.value.message()


class TestBytesPayloads:
    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (b"\x01\0\0\0a\x01\0", "incomplete string length indicator"),
            (b"\x05\0\0\0abc", "incomplete string data"),
            (b"\xff\xff\xff\xff", "incomplete string data"),
            (b"\x01\0\0\0a", "expected 2 string elements"),
            (b"\0\0\0\0" * 3, "expected 2 string elements"),
            (b"", "expected 2 string elements"),
        ],
    )
    def test_lengths_must_add_up(self, served, data: bytes, text: str) -> None:
        assert text in invalid(served, "any_BYTES", tensor([2], "BYTES", data))


class TestModels:
    @pytest.mark.parametrize(
        ("name", "version", "code", "text"),
        [
            ("nope", "", "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
            ("a/b", "", "NOT_FOUND", "Request for unknown model: 'a/b' is not found"),
            ("rows", "999", "NOT_FOUND", "unknown model: 'rows' version 999 is not found"),
            ("rows", "abc", "INVALID_ARGUMENT", "specified version string 'abc'"),
            ("", "", "INVALID_ARGUMENT", "model name"),
            ("loading", "", "UNAVAILABLE", "is not at ready state"),
            ("failed", "1", "UNAVAILABLE", "is not at ready state"),
            ("a\nb", "", "INVALID_ARGUMENT", "control characters"),
            ("n" * 20_000, "", "INVALID_ARGUMENT", "20000 characters, expected at most 256"),
        ],
    )
    def test_unknown_malformed_and_unready_are_told_apart(
        self, serve, name: str, version: str, code: str, text: str
    ) -> None:
        served = serve(
            model("rows", [], []),
            model("loading", [], [], state=ModelState.MODEL_STATE_LOADING),
            model("failed", [], [], state=ModelState.MODEL_STATE_UNAVAILABLE),
        )
        error = refused(served, name, model_version=version)
        assert error.status() == f"StatusCode.{code}"
        assert text in error.message()
        assert (
            served.metric("sits_requests_total", model="other", tenant="other", outcome=code) == 1
        )

    def test_unknown_names_share_one_series(self, served) -> None:
        for number in range(20):
            refused(served, f"unknown {number}")
        outcomes = {
            sample.labels["model"]
            for metric in served.registry.collect()
            for sample in metric.samples
            if "model" in sample.labels
        }
        assert outcomes == {"other"}

    def test_decoupled_models_are_refused_clearly(self, serve) -> None:
        served = serve(model("m", [], [], decoupled=True))
        error = refused(served, "m")
        assert error.status() == "StatusCode.UNIMPLEMENTED"
        assert "decoupled transaction policy" in error.message()


class TestParameters:
    def test_sequences_are_refused_until_they_exist(self, served) -> None:
        x = tensor([1], "INT8", b"a")
        for options in ({"sequence_id": 5, "sequence_start": True}, {"sequence_id": "abc"}):
            error = refused(served, "any_INT8", x, request_id="r", **options)
            assert error.status() == "StatusCode.UNIMPLEMENTED"
            assert "sequence" in error.message()

    @pytest.mark.parametrize(
        ("key", "value", "text"),
        [
            ("timeout", {"string_param": "5"}, "'timeout' parameter, expected int64_param."),
            ("timeout", {"uint64_param": 5}, "got uint64_param"),
            ("timeout", {"int64_param": -1}, "expected >= 0, got -1"),
            ("priority", {"bool_param": True}, "'priority' parameter, expected int64_param or"),
            ("priority", {"int64_param": -1}, "expected >= 0"),
            ("triton_x", {"int64_param": 1}, "starting with 'triton_' are reserved"),
            ("triton_enable_empty_final_response", {"int64_param": 1}, "expected bool_param"),
            ("own", {"uint64_param": 1}, "expected bool_param, int64_param, string_param"),
            ("own", {}, "got nothing"),
            ("sits_tenant", {"int64_param": 1}, "expected string_param"),
            ("sits_tenant", {"string_param": "g o l d"}, "invalid tenant"),
            ("a\0b", {"int64_param": 1}, "control characters"),
            ("k" * 1_000_000, {"int64_param": 1}, "expected at most 256"),
            ("own", {"string_param": "v" * 100_000}, "expected at most 65536"),
        ],
    )
    def test_wrong_types_and_reserved_names(self, served, key: str, value, text: str) -> None:
        request = one_byte()
        request.parameters[key].CopyFrom(pb.InferParameter(**value))
        code, details = call(served, request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in details

    def test_an_empty_final_response_may_be_asked_for_on_every_request(self, served) -> None:
        request = one_byte()
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        assert call(served, request)[0] is grpc.StatusCode.OK

    def test_ids_are_bounded_and_printable(self, served) -> None:
        for wrong in ("x" * 1_000_000, "a\0b", "a\x1bb"):
            request = one_byte(id=wrong)
            code, details = call(served, request)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "request id" in details


class TestTypedContents:
    @pytest.mark.parametrize(
        ("datatype", "contents", "raw"),
        [
            ("BOOL", {"bool_contents": [True, False]}, b"\1\0"),
            ("INT8", {"int_contents": [-128, 127]}, b"\x80\x7f"),
            ("INT16", {"int_contents": [-1, 1]}, b"\xff\xff\1\0"),
            ("INT32", {"int_contents": [-1, 1]}, b"\xff\xff\xff\xff\1\0\0\0"),
            ("INT64", {"int64_contents": [1, 2]}, b"\1" + bytes(7) + b"\2" + bytes(7)),
            ("UINT8", {"uint_contents": [0, 255]}, b"\0\xff"),
            ("UINT16", {"uint_contents": [0, 65535]}, b"\0\0\xff\xff"),
            ("UINT32", {"uint_contents": [0, 1]}, bytes(4) + b"\1\0\0\0"),
            ("UINT64", {"uint64_contents": [1, 2]}, b"\1" + bytes(7) + b"\2" + bytes(7)),
            ("FP32", {"fp32_contents": [1.0, -2.0]}, np.array([1, -2], "<f4").tobytes()),
            ("FP64", {"fp64_contents": [1.0, -2.0]}, np.array([1, -2], "<f8").tobytes()),
            ("BYTES", {"bytes_contents": [b"\xff", b""]}, b"\1\0\0\0\xff\0\0\0\0"),
        ],
    )
    def test_every_datatype_is_packed_and_answered_raw(
        self, served, datatype: str, contents, raw: bytes
    ) -> None:
        request = pb.ModelInferRequest(model_name=f"any_{datatype}")
        request.inputs.add(
            name="INPUT0", datatype=datatype, shape=[2], contents=pb.InferTensorContents(**contents)
        )
        response = infer(served, request)
        assert list(response.raw_output_contents) == [raw]

    @pytest.mark.parametrize(
        ("datatype", "contents", "text"),
        [
            ("INT8", {"int_contents": [1, 128]}, "INT8 from -128 to 127, got 1 to 128"),
            ("UINT8", {"uint_contents": [1, 256]}, "UINT8 from 0 to 255"),
            ("UINT16", {"uint_contents": [1, 65536]}, "UINT16 from 0 to 65535"),
            ("INT16", {"int_contents": [-32769, 0]}, "INT16 from -32768 to 32767"),
            (
                "FP32",
                {"fp64_contents": [1, 2]},
                "of type 'fp64_contents', expected datatype 'FP32'",
            ),
            ("FP16", {"fp32_contents": [1, 2]}, "which travels in raw_input_contents only"),
            ("FP32", {"fp32_contents": [1]}, "Expected 8, got 4"),
            ("FP32", {}, "Expected 8, got 0"),
            ("BYTES", {"bytes_contents": [b"a"]}, "expected 2 string elements"),
        ],
    )
    def test_values_that_do_not_fit_are_refused(self, served, datatype, contents, text) -> None:
        request = pb.ModelInferRequest(model_name=f"any_{datatype}")
        request.inputs.add(
            name="INPUT0", datatype=datatype, shape=[2], contents=pb.InferTensorContents(**contents)
        )
        code, details = call(served, request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in details

    def test_raw_and_typed_do_not_mix(self, served) -> None:
        request = one_byte()
        request.inputs[0].contents.int_contents.append(1)
        code, details = call(served, request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "contents field must not be specified when using raw_input_contents" in details

    def test_no_data_at_all_is_said_so(self, served) -> None:
        request = one_byte()
        request.raw_input_contents.pop()
        code, details = call(served, request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "unable to find data for input tensor 'INPUT0' for model 'any_INT8'" in details

    def test_surplus_raw_entries_are_refused(self, served) -> None:
        request = one_byte()
        request.raw_input_contents.append(b"b")
        code, details = call(served, request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "expected 1 entries" in details
        assert "got 2" in details


class TestDeclaredSizes:
    """Nothing is allocated from a declaration alone."""

    @pytest.mark.parametrize(
        "shape",
        [
            [1 << 32, 1 << 32], [1 << 62, 4], [65536] * 4, [1 << 31, 1], [0, 1 << 62],
            [1] * 100_000,
        ],
    )  # fmt: skip
    def test_giant_shapes_are_refused_at_once(self, serve, shape: list[int]) -> None:
        dims = [-1] * min(len(shape), 4)
        served = serve(model("m", [("INPUT0", "FP32", dims)], []))
        started = time.monotonic()
        invalid(served, "m", tensor(shape, "FP32", bytes(8)))
        assert time.monotonic() - started < 5

    def test_100000_inputs_or_outputs_are_refused_at_once(self, served) -> None:
        many = pb.ModelInferRequest(model_name="any_INT8")
        many.inputs.extend([pb.ModelInferRequest.InferInputTensor(name="x")] * 100_000)
        code, details = call(served, many)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "100000 inputs, expected at most 1024" in details
        wide = one_byte()
        wide.outputs.extend([pb.ModelInferRequest.InferRequestedOutputTensor(name="x")] * 100_000)
        code, details = call(served, wide)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "100000 outputs, expected at most 1024" in details


class TestTexts:
    def test_long_and_odd_texts_arrive_cut_with_the_true_status(self, serve) -> None:
        served = serve()
        served.engine.runs["any_INT8"] = failing(Internal("ž % \n\r" + "x" * 40_000))
        with pytest.raises(InferenceServerException) as caught:
            served.infer("any_INT8", np.zeros(1, np.int8))
        assert caught.value.status() == "StatusCode.INTERNAL"
        assert caught.value.message().startswith("ž %   xxx")
        assert len(caught.value.message().encode()) <= 1000

    def test_what_we_did_not_expect_shows_no_detail(self, serve) -> None:
        served = serve()

        def broken(_request):
            raise ZeroDivisionError("secret path /etc/passwd")

        served.engine.runs["any_INT8"] = broken
        with pytest.raises(InferenceServerException) as caught:
            served.infer("any_INT8", np.zeros(1, np.int8))
        assert caught.value.status() == "StatusCode.INTERNAL"
        assert caught.value.message() == "internal error"

    def test_a_refusal_of_the_engine_is_passed_on(self, serve) -> None:
        served = serve()
        served.engine.refuse = Unavailable("Exceeds maximum queue size")
        with pytest.raises(InferenceServerException, match="Exceeds maximum queue size") as caught:
            served.infer("any_INT8", np.zeros(1, np.int8))
        assert caught.value.status() == "StatusCode.UNAVAILABLE"

    def test_bytes_that_are_no_message_are_refused(self, served) -> None:
        with grpc.insecure_channel(served.address) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
            with pytest.raises(grpc.RpcError) as caught:
                method(b"\xff\xff\xff", timeout=5)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert re.search(
            r"expected an inference.ModelInferRequest, got 3 bytes", caught.value.details()
        )


def one_byte(**fields) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="any_INT8", raw_input_contents=[b"a"], **fields)
    request.inputs.add(name="INPUT0", datatype="INT8", shape=[1])
    return request


def infer(served, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    return served.client()._client_stub.ModelInfer(request, timeout=10)


def call(served, request: pb.ModelInferRequest) -> tuple[grpc.StatusCode, str]:
    try:
        infer(served, request)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""
