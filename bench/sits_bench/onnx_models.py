"""The two networks that every server serves, built on the spot with weights from a fixed seed.

`mlp`: a small one, so that the serving around it is what costs. `transformer`: an encoder
that takes a core milliseconds, so that the model is what costs.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

from sits_bench.messages import Array, Inference, random_floats
from sits_bench.paths import WORK

SEED: Final = 20_261_129
MAX_BATCH: Final = 32
MLP_WIDTHS: Final = (64, 128, 10)
LAYERS, WIDTH, HEADS, TOKENS, INNER, VOCABULARY = 6, 512, 8, 8, 2048, 1000
"""74 MiB of weights; the shape of a small sentence encoder."""


@dataclass(frozen=True, slots=True)
class Network:
    """A model with one input [batch, …] and one output. `datatype` and `dims` of the input
    as config.pbtxt writes them."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    output_dims: tuple[int, ...]

    @property
    def file(self) -> Path:
        return WORK / "networks" / f"{self.name}.onnx"

    def sample(self, seed: int) -> Array:
        """One row of input."""
        if self.datatype == "TYPE_FP32":
            return random_floats(seed, 1, *self.dims)
        return np.random.default_rng(seed).integers(0, VOCABULARY, (1, *self.dims))

    def inference(self, seed: int = 1, kind: int = 0) -> Inference:
        return Inference(self.name, {"INPUT": self.sample(seed)}, kind=kind)

    def expected(self, rows: Array) -> Array:
        """The answer of ONNX Runtime to the same input, run here."""
        (answer,) = session(self.file).run(["OUTPUT"], {"INPUT": rows})
        return np.asarray(answer)

    def build(self) -> Path:
        """Writes the model file unless it is there."""
        if not self.file.is_file():
            graph = {MLP.name: _mlp, TRANSFORMER.name: _transformer}[self.name]()
            self.file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.file.with_suffix(".new")
            fresh.write_bytes(graph.bytes(self))
            fresh.rename(self.file)
        return self.file


MLP: Final = Network("mlp", "TYPE_FP32", MLP_WIDTHS[:1], MLP_WIDTHS[-1:])
TRANSFORMER: Final = Network("transformer", "TYPE_INT64", (TOKENS,), (WIDTH,))
NETWORKS: Final = {network.name: network for network in (MLP, TRANSFORMER)}


@cache
def session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


class _Graph:
    """Adds nodes one after the other; each step takes and returns names of values."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(SEED)
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Array) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, *shape: int) -> str:
        scale = np.sqrt(1.0 / shape[0])
        values = self._rng.standard_normal(shape, np.float32) * scale
        return self.constant(values.astype(np.float32))

    def linear(self, value: str, fan_in: int, fan_out: int) -> str:
        product = self.node("MatMul", value, self.weight(fan_in, fan_out))
        bias = self.constant(np.zeros(fan_out, np.float32))
        return self.node("Add", product, bias)

    def norm(self, value: str) -> str:
        scale = self.constant(np.ones(WIDTH, np.float32))
        bias = self.constant(np.zeros(WIDTH, np.float32))
        return self.node("LayerNormalization", value, scale, bias, axis=-1)

    def bytes(self, network: Network) -> bytes:
        self._nodes[-1].output[0] = "OUTPUT"
        elem = TensorProto.FLOAT if network.datatype == "TYPE_FP32" else TensorProto.INT64
        ends = [
            helper.make_tensor_value_info("INPUT", elem, ["batch", *network.dims]),
            helper.make_tensor_value_info(
                "OUTPUT", TensorProto.FLOAT, ["batch", *network.output_dims]
            ),
        ]
        graph = helper.make_graph(self._nodes, network.name, ends[:1], ends[1:], self._constants)
        # Versions that every onnxruntime of the last years reads.
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=9)
        return bytes(model.SerializeToString())


def _mlp() -> _Graph:
    graph = _Graph()
    hidden = graph.node("Relu", graph.linear("INPUT", MLP_WIDTHS[0], MLP_WIDTHS[1]))
    graph.linear(hidden, MLP_WIDTHS[1], MLP_WIDTHS[2])
    return graph


def _transformer() -> _Graph:
    """Pre-norm encoder layers over embedded tokens; the output is the mean over the tokens."""
    graph = _Graph()
    value = graph.node("Gather", graph.weight(VOCABULARY, WIDTH), "INPUT")
    for _ in range(LAYERS):
        value = graph.node("Add", value, _attention(graph, graph.norm(value)))
        inner = graph.node("Relu", graph.linear(graph.norm(value), WIDTH, INNER))
        value = graph.node("Add", value, graph.linear(inner, INNER, WIDTH))
    graph.node("ReduceMean", graph.norm(value), axes=[1], keepdims=0)
    return graph


def _attention(graph: _Graph, value: str) -> str:
    size = WIDTH // HEADS
    split = graph.constant(np.array([0, TOKENS, HEADS, size]))
    joined = graph.constant(np.array([0, TOKENS, WIDTH]))

    def heads(order: tuple[int, ...]) -> str:
        parts = graph.node("Reshape", graph.linear(value, WIDTH, WIDTH), split)
        return graph.node("Transpose", parts, perm=order)

    query, key, content = heads((0, 2, 1, 3)), heads((0, 2, 3, 1)), heads((0, 2, 1, 3))
    scores = graph.node("MatMul", query, key)
    scaled = graph.node("Mul", scores, graph.constant(np.array(size**-0.5, np.float32)))
    mixed = graph.node("MatMul", graph.node("Softmax", scaled, axis=-1), content)
    merged = graph.node("Reshape", graph.node("Transpose", mixed, perm=(0, 2, 1, 3)), joined)
    return graph.linear(merged, WIDTH, WIDTH)
