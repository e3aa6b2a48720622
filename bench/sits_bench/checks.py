"""Whether a server answers rightly, before it is measured: a few calls of an ordinary client."""

import urllib.request
from collections.abc import Callable

import grpc
import numpy as np
import tritonclient.grpc as triton

from sits_bench.loadgen import INFER, BenchError
from sits_bench.messages import Array, Inference
from sits_bench.onnx_models import Network
from sits_bench.system import Running
from sits_core import datatypes

CALLS = 4
TIMEOUT_S = 30.0
TOLERANCE = 1e-3
"""Sums in another order differ in the last digits of 32-bit floats."""

Expect = Callable[[Array], Array]


def echoes(running: Running, inference: Inference) -> None:
    """The output equals the input, bit by bit. Raises `BenchError` otherwise."""
    (array,) = inference.inputs.values()
    for _ in range(CALLS):
        _require(bool(np.array_equal(_ask(running, inference), array)), running)


def calls(running: Running, inference: Inference) -> None:
    """It is answered without an error, wherever the answer goes."""
    with grpc.insecure_channel(running.target) as channel:
        channel.unary_unary(INFER, None, None)(inference.grpc(), timeout=TIMEOUT_S)


def serves(running: Running, network: Network) -> None:
    """The output is the network's. Raises `BenchError` otherwise."""
    for seed in range(CALLS):
        inference = network.inference(seed)
        expected = network.expected(inference.inputs["INPUT"])
        answer = _ask(running, inference).reshape(expected.shape)
        _require(bool(np.allclose(answer, expected, TOLERANCE, TOLERANCE)), running)


def _require(right: bool, running: Running) -> None:
    if not right:
        raise BenchError(f"the server at {running.target} answers wrongly")


def _ask(running: Running, inference: Inference) -> Array:
    return _ask_http(running, inference) if running.http1 else _ask_grpc(running, inference)


def _ask_grpc(running: Running, inference: Inference) -> Array:
    inputs = []
    for name, array in inference.inputs.items():
        tensor = triton.InferInput(name, array.shape, datatypes.from_numpy(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    with triton.InferenceServerClient(running.target) as client:
        result = client.infer(inference.model, inputs, client_timeout=TIMEOUT_S)
    return np.asarray(result.as_numpy("OUTPUT"))


def _ask_http(running: Running, inference: Inference) -> Array:
    request = urllib.request.Request(
        f"http://{running.target}{running.path}", inference.raw(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - as above
        return np.frombuffer(response.read(), np.float32)
