"""ModelInfer with the stock client: what comes back, for every datatype, and in which form."""

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_preprocess.fake_engine import model
from sits_preprocess.request import TensorData

NUMBERS = {
    "BOOL": np.array([True, False, True]),
    **{
        name: np.array([np.iinfo(dtype).min, 0, np.iinfo(dtype).max], dtype)
        for name, dtype in {
            "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
            "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
        }.items()
    },
    "FP16": np.array([1.5, -np.inf, np.nan], np.float16),
    "FP32": np.array([1.5, -np.inf, np.nan], np.float32),
    "FP64": np.array([1.5, -np.inf, np.nan], np.float64),
}  # fmt: skip
ODD_BYTES = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xff\xd8\xff\xe0JFIF",
    bytes(range(256)) * 4096,
    "žluť".encode(),
]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_arrays_of_every_datatype_come_back_bit_equal(served, datatype: str) -> None:
    sent = NUMBERS[datatype]
    result = served.infer(f"any_{datatype}", sent)
    got = result.as_numpy("OUTPUT0")
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    assert got.tobytes() == sent.tobytes()
    assert result.get_response().outputs[0].datatype == datatype
    assert not result.get_response().outputs[0].HasField("contents")


def test_bf16_comes_back_bit_equal(served) -> None:
    sent = np.array([1.5, -2.0, 3.25], ml_dtypes.bfloat16)
    tensor = triton.InferInput("INPUT0", [3], "BF16")
    tensor._raw_content = sent.tobytes()
    response = served.client().infer("any_BF16", [tensor]).get_response()
    assert response.raw_output_contents[0] == sent.tobytes()
    assert response.outputs[0].datatype == "BF16"


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_bytes_are_never_decoded(serve, shape: tuple[int, ...]) -> None:
    dims = [-1] * len(shape)
    served = serve(model("m", [("INPUT0", "BYTES", dims)], [("OUTPUT0", "BYTES", dims)]), ratio=1.0)
    sent = np.array(ODD_BYTES, dtype=object).reshape(shape)
    got = served.infer("m", sent).as_numpy("OUTPUT0")
    assert got.shape == shape
    assert list(got.reshape(-1)) == ODD_BYTES


def test_layouts_other_than_c_are_the_same_values(served) -> None:
    base = np.arange(32, dtype=np.float32).reshape(8, 4)
    fortran = np.asfortranarray(base)
    views = (base[::-1], base[::2], fortran, np.broadcast_to(base[0], (8, 4)), base.T.reshape(8, 4))
    for view in views:
        np.testing.assert_array_equal(served.infer("rows", view).as_numpy("OUTPUT0"), view)


def test_scalars_have_shape_of_no_dimensions(serve) -> None:
    served = serve(model("m", [("INPUT0", "FP64", [])], [("OUTPUT0", "FP64", [])]))
    got = served.infer("m", np.array(2.5)).as_numpy("OUTPUT0")
    assert got.shape == ()
    assert got == 2.5


def test_empty_arrays_pass(served) -> None:
    got = served.infer("any_FP32", np.empty(0, np.float32)).as_numpy("OUTPUT0")
    assert got.shape == (0,)


def test_one_raw_entry_per_output_in_the_order_asked_for(served) -> None:
    a, b = np.array([1, 2], np.int32), np.array([3, 4], np.int32)
    wanted = [triton.InferRequestedOutput("OUTPUT1"), triton.InferRequestedOutput("OUTPUT0")]
    for outputs in (None, wanted, wanted[:1]):
        result = served.infer("two", a, b, outputs=outputs)
        response = result.get_response()
        assert len(response.raw_output_contents) == len(response.outputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), b)
        if outputs is not wanted[:1]:
            assert len(response.outputs) == len(outputs or wanted)


def test_only_the_outputs_asked_for_come_back(served) -> None:
    a, b = np.array([1, 2], np.int32), np.array([3, 4], np.int32)
    result = served.infer("two", a, b, outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert [o.name for o in result.get_response().outputs] == ["OUTPUT1"]
    assert served.engine.taken[-1].outputs == (1,)


def test_inputs_go_on_in_the_order_of_the_model(served) -> None:
    x = np.zeros(2, np.int32)
    inputs = [triton.InferInput(f"INPUT{i}", [2], "INT32") for i in (1, 0)]
    for tensor in inputs:
        tensor.set_data_from_numpy(x)
    served.client().infer("two", inputs)
    assert [t.name for t in served.engine.taken[-1].inputs] == ["INPUT0", "INPUT1"]


def test_the_id_is_echoed_and_the_version_is_the_actual_one(serve) -> None:
    io = ([("INPUT0", "INT32", [1])], [("OUTPUT0", "INT32", [1])])
    served = serve(model("m", *io, version="2"), model("m", *io, version="10"))
    x = np.array([7], np.int32)
    newest = served.infer("m", x, request_id="request ž").get_response()
    assert (newest.id, newest.model_name, newest.model_version) == ("request ž", "m", "10")
    assert served.infer("m", x, model_version="2").get_response().model_version == "2"


def test_parameters_reach_the_model_and_its_own_come_back(served) -> None:
    parameters = {"k": 3, "mode": "fast", "ratio": 0.5, "flag": True}
    served.infer("any_FP32", np.ones(1, np.float32), parameters=parameters)
    assert served.engine.taken[-1].parameters == parameters


def test_priority_is_taken_from_unsigned_values_as_clients_send_them(served) -> None:
    served.infer("any_FP32", np.ones(1, np.float32), priority=2, timeout=5_000_000)
    request = served.engine.taken[-1]
    assert request.priority == 2
    assert not request.parameters


def test_optional_inputs_may_be_left_out(serve) -> None:
    inputs = [("INPUT0", "INT32", [1]), ("INPUT1", "INT32", [1])]
    served = serve(model("m", inputs, [("OUTPUT0", "INT32", [1])], optional=["INPUT1"]))
    x = np.array([7], np.int32)
    np.testing.assert_array_equal(served.infer("m", x).as_numpy("OUTPUT0"), x)
    assert [t.name for t in served.engine.taken[-1].inputs] == ["INPUT0"]


def test_classification_names_the_best_classes_of_each_row(serve) -> None:
    labels = {"OUTPUT0": ("cat", "dog", "", "owl")}
    io = ([("INPUT0", "FP32", [4])], [("OUTPUT0", "FP32", [4])])
    served = serve(model("m", *io, max_batch_size=4, labels=labels))
    x = np.array([[0.1, 0.9, 0.3, 0.2], [4, 3, 2, 1]], np.float32)
    wanted = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    got = served.infer("m", x, outputs=wanted).as_numpy("OUTPUT0")
    assert got.tolist() == [
        [b"0.900000:1:dog", b"0.300000:2"],
        [b"4.000000:0:cat", b"3.000000:1:dog"],
    ]


def test_classification_of_more_classes_than_there_are_gives_all(serve) -> None:
    served = serve(model("m", [("INPUT0", "UINT8", [3])], [("OUTPUT0", "UINT8", [3])]))
    wanted = [triton.InferRequestedOutput("OUTPUT0", class_count=99)]
    got = served.infer("m", np.array([5, 9, 9], np.uint8), outputs=wanted).as_numpy("OUTPUT0")
    assert got.tolist() == [b"9:1", b"9:2", b"5:0"]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_understood(served, transport: str, algorithm: str) -> None:
    x = np.zeros((8, 4), np.float32)
    if (transport, algorithm) == ("native", "deflate"):
        with pytest.raises(InferenceServerException) as caught:
            served.infer("rows", x, compression_algorithm=algorithm)
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
        return
    got = served.infer("rows", x, compression_algorithm=algorithm).as_numpy("OUTPUT0")
    np.testing.assert_array_equal(got, x)


def test_each_answer_keeps_its_own_request_when_they_finish_in_another_order(served) -> None:
    served.engine.hold = True
    client, answers = served.client(), {}

    def keep(result: triton.InferResult) -> None:
        answers[result.get_response().id] = result

    inputs = [np.full((1, 4), i, np.float32) for i in range(8)]
    for i, x in enumerate(inputs):
        tensor = triton.InferInput("INPUT0", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        client.async_infer("rows", [tensor], lambda result, error: keep(result), request_id=str(i))
    served.engine.wait(lambda: len(served.engine.taken) == 8)
    for request in reversed(served.engine.open_requests):
        served.engine.finish(request)
    served.until(lambda: len(answers) == 8)
    for i, x in enumerate(inputs):
        np.testing.assert_array_equal(answers[str(i)].as_numpy("OUTPUT0"), x)


def test_output_parameters_of_the_model_travel_back(serve) -> None:
    served = serve()
    served.engine.answer_parameters = {"tokens": 3, "done": True, "score": 0.5, "text": "x"}
    got = served.infer("any_FP32", np.ones(1, np.float32)).get_response().parameters
    assert got["tokens"].int64_param == 3
    assert got["done"].bool_param is True
    assert got["score"].double_param == 0.5
    assert got["text"].string_param == "x"


def test_outputs_that_are_views_of_larger_memory_are_copied_whole(serve) -> None:
    served = serve()
    served.engine.runs["any_UINT8"] = lambda request: [
        TensorData("OUTPUT0", "UINT8", (3,), memoryview(bytes(range(9)))[3:6])
    ]
    got = served.infer("any_UINT8", np.zeros(3, np.uint8)).as_numpy("OUTPUT0")
    assert got.tolist() == [3, 4, 5]
