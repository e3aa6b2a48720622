"""Answers through all four services are bit-equal, whatever the datatype and the client."""

import asyncio
import queue
import threading
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import Array, tensor

pytestmark = pytest.mark.mesh

Infer = Callable[[Mesh, str, list[triton.InferInput]], triton.InferResult]

ODD_BYTES = [b"", b"\0", b"\xff\xfe", b"\xff\xd8\xff\xe0JFIF", "žluť 🐎".encode(), b"x" * 100_000]
BITS = (8, 16, 32, 64)
SAMPLES: dict[str, Array] = {
    "BOOL": np.array([[True, False, True]]),
    **{f"INT{b}": np.array([[-(2 ** (b - 1)), -1, 2 ** (b - 1) - 1]], f"<i{b // 8}") for b in BITS},
    **{f"UINT{b}": np.array([[0, 1, 2**b - 1]], f"<u{b // 8}") for b in BITS},
    "FP16": np.array([[1.5, -0.0, np.inf, 6e-8]], np.float16),
    "FP32": np.array([[1.1, -0.0, np.nan, 1e-45]], np.float32),
    "BF16": np.array([[1.5, -0.0, np.nan, 1e-38]], ml_dtypes.bfloat16),
    "FP64": np.array([[1.1, -0.0, np.nan, 5e-324]], np.float64),
    "BYTES": np.array([ODD_BYTES], dtype=object),
}  # fmt: skip


def sync(mesh: Mesh, model: str, inputs: list[triton.InferInput]) -> triton.InferResult:
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        return client.infer(model, inputs, client_timeout=20)


def aio(mesh: Mesh, model: str, inputs: list[triton.InferInput]) -> triton.InferResult:
    async def call() -> triton.InferResult:
        async with triton_aio.InferenceServerClient(mesh.addresses.front) as client:
            return await client.infer(model, inputs, client_timeout=20)

    return asyncio.run(call())


def streaming(mesh: Mesh, model: str, inputs: list[triton.InferInput]) -> triton.InferResult:
    answers: queue.Queue[tuple[triton.InferResult, InferenceServerException | None]] = queue.Queue()
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model, inputs)
        result, error = answers.get(timeout=20)
        client.stop_stream()
    assert error is None
    return result


@pytest.mark.parametrize("infer", [sync, aio, streaming])
@pytest.mark.parametrize("datatype", SAMPLES)
def test_every_datatype_comes_back_bit_equal(mesh: Mesh, datatype: str, infer: Infer) -> None:
    sent = SAMPLES[datatype]
    answer = infer(mesh, f"identity_{datatype.lower()}", [tensor(sent, datatype)]).as_numpy("Y")
    assert answer.shape == sent.shape
    if datatype == "BYTES":
        assert answer.tolist() == sent.tolist()
    else:
        assert answer.dtype == sent.dtype
        assert answer.tobytes() == sent.tobytes()


def test_transposed_and_sliced_arrays_arrive_as_numpy_sees_them(mesh: Mesh) -> None:
    base = np.arange(64, dtype=np.float32).reshape(8, 8)
    for view in (base.T, base[::-1], base[::2], base[:, ::-2], np.asfortranarray(base)):
        answer = sync(mesh, "identity_fp32", [tensor(view)]).as_numpy("Y")
        assert np.array_equal(answer, view)


def test_rows_of_different_shapes_and_sizes_never_mix(mesh: Mesh) -> None:
    """BAT-02: equal inner shapes share a run, and no row of another request shows."""
    rng = np.random.default_rng(5)
    wrong: list[object] = []

    def ask(seed: int) -> None:
        own = np.random.default_rng(seed)
        with triton.InferenceServerClient(mesh.addresses.front) as client:
            for _ in range(40):
                shape = (int(own.choice([1, 2, 3, 5, 8])), int(own.choice([15, 20])))
                data = own.random(shape, dtype=np.float32)
                answer = client.infer("identity_fp32", [tensor(data)], client_timeout=20)
                if not np.array_equal(answer.as_numpy("Y"), data):
                    wrong.append((shape, seed))

    threads = [threading.Thread(target=ask, args=(int(rng.integers(1 << 30)),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_bad_row_fails_only_its_own_request(mesh: Mesh) -> None:
    """BAT-05: what shares a run with bad input still gets its answer."""
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        pending: list[tuple[float, triton.CallContext, queue.Queue[object]]] = []
        for value in (1, 2, 3, 666, 5, 6, 7, 8):
            box: queue.Queue[object] = queue.Queue()
            data = np.full((1, 3), value, np.float32)
            handle = client.async_infer(
                "picky",
                [tensor(data)],
                lambda result, error, box=box: box.put(error or result),
            )
            pending.append((float(value), handle, box))
        for value, _, box in pending:
            outcome = box.get(timeout=20)
            if value == 666:
                assert isinstance(outcome, InferenceServerException)
                assert "666" in outcome.message()
            else:
                assert not isinstance(outcome, InferenceServerException)
                assert float(outcome.as_numpy("Y")[0, 0]) == value
