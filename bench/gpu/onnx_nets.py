"""ONNX models of the part `onnx`: two that every server serves, one with large inputs, and three
that a GPU refuses, each at another time,
and one that breaks it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sits_bench.onnx_models import MLP, TRANSFORMER, VOCABULARY
from sits_core.datatypes import Array
from sits_executor.backends import onnx
from sits_executor.backends.base import Backend, LoadSpec
from sits_protos.oip.model_config_pb2 import ModelConfig

IMAGE: Final = (3, 224, 224)
_LAYERS: Final = ((64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
"""Channels and stride of each convolution of 3 × 3."""
_CLASSES: Final = 100
TOO_LARGE: Final = (1 << 16, 3 << 12)
"""3 GiB of weights, in a file without content."""
MIB_FLOATS: Final = (1 << 20) // 4


@dataclass(frozen=True, slots=True)
class Net:
    """One input INPUT [rows, *dims], one output OUTPUT."""

    name: str
    file: Path
    dims: tuple[int, ...]
    datatype: str = "FP32"

    def inputs(self, rows: int, seed: int) -> Array:
        rng = np.random.default_rng(seed)
        if self.datatype == "INT64":
            return rng.integers(0, VOCABULARY, (rows, *self.dims))
        return rng.standard_normal((rows, *self.dims), np.float32)

    def expected(self, inputs: Array) -> Array:
        """By the CPU provider."""
        (found,) = on_cpu(self.file).run(["OUTPUT"], {"INPUT": inputs})
        return np.asarray(found)


def nets(folder: Path) -> tuple[Net, ...]:
    image = folder / "image.onnx"
    image.write_bytes(_image())
    return (
        Net("mlp", MLP.build(), MLP.dims),
        Net("transformer", TRANSFORMER.build(), TRANSFORMER.dims, "INT64"),
        Net("image", image, IMAGE),
    )


@cache
def on_cpu(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def opened(file: Path, gpu: int | None, **parameters: str) -> Backend:
    """By the executor's own backend."""
    config = ModelConfig()
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return onnx.load(LoadSpec(file.stem, "1", file.parent, file.name, config, 1, 1, gpu))


def far(found: Array, wanted: Array) -> float:
    """The largest difference over the largest magnitude."""
    difference: Array = np.subtract(found, wanted)
    return float(np.abs(difference).max() / np.abs(wanted).max())


def grows() -> bytes:
    """The sum of x repeated n times: takes as much memory as is asked for."""
    return _model(
        [_node("Tile", ["x", "n"], "t"), _node("ReduceSum", ["t"], "y", keepdims=1)],
        {"x": (TensorProto.FLOAT, [None]), "n": (TensorProto.INT64, [1])},
        {"y": (TensorProto.FLOAT, [1])},
    )


def labels() -> bytes:
    """Texts become numbers: no GPU has such an operator."""
    node = _node("LabelEncoder", ["x"], "y", domain="ai.onnx.ml", keys_strings=["a"],
                 values_int64s=[1], default_int64=0)  # fmt: skip
    return _model([node], {"x": (TensorProto.STRING, ["b"])}, {"y": (TensorProto.INT64, ["b"])})


def reverses() -> bytes:
    """The first x[0] of each row's numbers in reverse; no GPU checks that there are so many."""
    nodes = [
        _node("Gather", ["x", "zero"], "first", axis=1),
        _node("Cast", ["first"], "lengths", to=TensorProto.INT64),
        _node("ReverseSequence", ["x", "lengths"], "y", batch_axis=0, time_axis=1),
    ]
    row = (TensorProto.FLOAT, ["b", 4])
    zero = numpy_helper.from_array(np.array(0), "zero")
    return _model(nodes, {"x": row}, {"y": row}, [zero])


def too_large(folder: Path) -> bytes:
    """Its weights lie beside it in `folder`."""
    with (folder / "weights").open("wb") as file:
        file.truncate(4 * TOO_LARGE[0] * TOO_LARGE[1])
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=TOO_LARGE)
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="weights")
    return _model(
        [_node("MatMul", ["x", "w"], "y")],
        {"x": (TensorProto.FLOAT, ["b", TOO_LARGE[0]])},
        {"y": (TensorProto.FLOAT, ["b", TOO_LARGE[1]])},
        [weights],
    )


def _image() -> bytes:
    rng = np.random.default_rng(1)
    nodes, weights, value, before = [], [], "INPUT", IMAGE[0]
    for number, (channels, stride) in enumerate(_LAYERS):
        weights.append(_weights(rng, f"w{number}", channels, before, 3, 3))
        nodes.append(_node("Conv", [value, f"w{number}"], f"c{number}", strides=[stride] * 2,
                           pads=[1] * 4))  # fmt: skip
        value, before = f"r{number}", channels
        nodes.append(_node("Relu", [f"c{number}"], value))
    weights.append(_weights(rng, "last", before, _CLASSES))
    nodes += [
        _node("GlobalAveragePool", [value], "pooled"),
        _node("Flatten", ["pooled"], "flat"),
        _node("MatMul", ["flat", "last"], "OUTPUT"),
    ]
    return _model(
        nodes,
        {"INPUT": (TensorProto.FLOAT, ["batch", *IMAGE])},
        {"OUTPUT": (TensorProto.FLOAT, ["batch", _CLASSES])},
        weights,
    )


def _weights(rng: np.random.Generator, name: str, *shape: int) -> TensorProto:
    values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
    return numpy_helper.from_array(values.astype(np.float32), name)


def _node(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs, [output], **attributes)


def _model(
    nodes: list[Any],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Mapping[str, tuple[int, list[Any]]],
    weights: list[TensorProto] | None = None,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *entry) for name, entry in inputs.items()],
        [helper.make_tensor_value_info(name, *entry) for name, entry in outputs.items()],
        weights or [],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
