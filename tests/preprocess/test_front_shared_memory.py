"""Tensors in the client's shared memory, through the stock client."""

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from sits_core.identity import new_process_id


@pytest.fixture
def region() -> Iterator[tuple[str, object]]:
    """A segment of 4,096 bytes of the client's: its key and its handle."""
    key = f"/{new_process_id('test')}"
    handle = shm.create_shared_memory_region("region", key, 4096)
    yield key, handle
    shm.destroy_shared_memory_region(handle)


@pytest.fixture
def sharing(serve, region):
    served = serve(preprocess_allow_client_shm=True)
    served.client().register_system_shared_memory("region", region[0], 4096)
    return served


def placed(name: str, shape: tuple[int, ...], datatype: str, size: int, offset: int = 0):
    tensor = triton.InferInput(name, shape, datatype)
    tensor.set_shared_memory("region", size, offset)
    return tensor


def wanted(name: str, size: int, offset: int = 0) -> triton.InferRequestedOutput:
    output = triton.InferRequestedOutput(name)
    output.set_shared_memory("region", size, offset)
    return output


def test_it_is_off_by_default_and_says_how_to_switch_it_on(served, region) -> None:
    client = served.client()
    for attempt in (
        lambda: client.register_system_shared_memory("region", region[0], 64),
        lambda: client.unregister_system_shared_memory(),
        lambda: client.get_system_shared_memory_status(),
        lambda: client.infer("any_INT8", [placed("INPUT0", (1,), "INT8", 1)]),
    ):
        with pytest.raises(InferenceServerException) as caught:
            attempt()
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
        assert "SITS_PREPROCESS_ALLOW_CLIENT_SHM=true" in caught.value.message()


@pytest.mark.parametrize("shared", [0, 1])
def test_one_output_shared_and_the_other_inline(sharing, region, shared: int) -> None:
    a, b = np.array([1, 2], np.int32), np.array([3, 4], np.int32)
    outputs = [triton.InferRequestedOutput("OUTPUT0"), triton.InferRequestedOutput("OUTPUT1")]
    outputs[shared] = wanted(f"OUTPUT{shared}", 8, 128)
    result = sharing.infer("two", a, b, outputs=outputs)
    response = result.get_response()
    assert len(response.raw_output_contents) == 2
    assert response.raw_output_contents[shared] == b""
    parameters = response.outputs[shared].parameters
    assert parameters["shared_memory_region"].string_param == "region"
    assert parameters["shared_memory_byte_size"].int64_param == 8
    inline = 1 - shared
    np.testing.assert_array_equal(result.as_numpy(f"OUTPUT{inline}"), (a, b)[inline])
    got = shm.get_contents_as_numpy(region[1], np.int32, [2], 128)
    np.testing.assert_array_equal(got, (a, b)[shared])


@pytest.mark.parametrize("shared", [0, 1])
def test_raw_entries_belong_to_the_inputs_that_are_not_shared(sharing, region, shared) -> None:
    a, b = np.array([1, 2], np.int32), np.array([3, 4], np.int32)
    shm.set_shared_memory_region(region[1], [(a, b)[shared]], 16)
    inputs = [triton.InferInput("INPUT0", [2], "INT32"), triton.InferInput("INPUT1", [2], "INT32")]
    inputs[1 - shared].set_data_from_numpy((a, b)[1 - shared])
    inputs[shared].set_shared_memory("region", 8, 16)
    result = sharing.clients[0].infer("two", inputs)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), b)


def test_bytes_tensors_work_there_too(sharing, region) -> None:
    sent = np.array([b"\xff\xfe", b"", b"abc"], object)
    shm.set_shared_memory_region(region[1], [serialize_byte_tensor(sent)])
    size = 4 * 3 + 5
    result = sharing.clients[0].infer("any_BYTES", [placed("INPUT0", (3,), "BYTES", size)])
    assert list(result.as_numpy("OUTPUT0")) == list(sent)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (placed("INPUT0", (4,), "INT8", 3), "Expected 4, got 3"),
        (placed("INPUT0", (4,), "INT8", 4, 4093), "region"),
        (placed("INPUT0", (4,), "INT8", 1 << 50), "Expected 4, got 1125899906842624"),
    ],
)
def test_ranges_that_do_not_fit_are_refused(sharing, tensor, text: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        sharing.clients[0].infer("any_INT8", [tensor])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert text in caught.value.message()


def test_an_output_range_of_a_petabyte_is_refused_before_the_model_runs(sharing) -> None:
    with pytest.raises(InferenceServerException) as caught:
        sharing.infer("any_INT8", np.zeros(1, np.int8), outputs=[wanted("OUTPUT0", 1 << 50)])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert not sharing.engine.taken


def test_an_output_that_does_not_fit_its_range_says_how_much_it_needs(sharing) -> None:
    with pytest.raises(InferenceServerException) as caught:
        sharing.infer("any_INT8", np.zeros(9, np.int8), outputs=[wanted("OUTPUT0", 8)])
    assert caught.value.status() == "StatusCode.INTERNAL"
    assert "should be at least 9 bytes" in caught.value.message()


def test_unknown_regions_are_not_found(sharing) -> None:
    tensor = triton.InferInput("INPUT0", [1], "INT8")
    tensor.set_shared_memory("nope", 1)
    with pytest.raises(InferenceServerException) as caught:
        sharing.clients[0].infer("any_INT8", [tensor])
    assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_classes_cannot_be_put_in_shared_memory(sharing) -> None:
    output = wanted("OUTPUT0", 8)
    output._output.parameters["classification"].int64_param = 1
    with pytest.raises(InferenceServerException, match="can't be used with classification"):
        sharing.infer("any_INT8", np.zeros(1, np.int8), outputs=[output])


def test_a_region_in_use_ends_with_the_last_request(sharing, region) -> None:
    sharing.engine.hold = True
    client, done = sharing.clients[0], []
    x = triton.InferInput("INPUT0", [2], "INT8")
    x.set_data_from_numpy(np.array([5, 6], np.int8))
    client.async_infer(
        "any_INT8", [x], lambda result, error: done.append(error), outputs=[wanted("OUTPUT0", 2)]
    )
    sharing.engine.wait(lambda: bool(sharing.engine.taken))
    client.unregister_system_shared_memory("region")
    sharing.engine.finish_all()
    sharing.until(lambda: bool(done))
    assert done == [None]
    assert shm.get_contents_as_numpy(region[1], np.int8, [2]).tolist() == [5, 6]
