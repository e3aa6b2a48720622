"""Model repositories in Triton's layout, made on the spot under .sits/bench."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sits_bench.onnx_models import MAX_BATCH, NETWORKS, Network
from sits_bench.paths import WORK

ECHO: Final = "echo"


@dataclass(frozen=True, slots=True)
class Model:
    """A folder of a repository. `file` is linked as 1/model.onnx; without one the model has an
    empty version 1. `more` is the rest of its config.pbtxt."""

    name: str
    config: str
    file: Path | None = None


def echo(
    name: str = ECHO, *, max_batch: int = MAX_BATCH, function: str = "identity", more: str = ""
) -> Model:
    """Answers what it gets: INPUT and OUTPUT of floats of any length."""
    tensor = "data_type: TYPE_FP32 dims: [ -1 ]"
    return Model(
        name,
        f'backend: "builtin"\nmax_batch_size: {max_batch}\n'
        f'input {{ name: "INPUT" {tensor} }}\noutput {{ name: "OUTPUT" {tensor} }}\n'
        f'parameters {{ key: "function" value: {{ string_value: "{function}" }} }}\n{more}',
    )


def network(net: Network, *, more: str = "") -> Model:
    """One instance that computes on one thread, as with every other server."""
    return Model(
        net.name,
        f'backend: "onnxruntime"\n{tensors(net)}'
        "instance_group { count: 1 kind: KIND_CPU }\n"
        'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }\n' + more,
        NETWORKS[net.name].build(),
    )


def tensors(net: Network) -> str:
    """What any server that reads config.pbtxt has to know."""
    dims, output_dims = (", ".join(map(str, d)) for d in (net.dims, net.output_dims))
    return (
        f"max_batch_size: {MAX_BATCH}\n"
        f'input {{ name: "INPUT" data_type: {net.datatype} dims: [ {dims} ] }}\n'
        f'output {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ {output_dims} ] }}\n'
    )


def write(folder: str, models: Sequence[Model]) -> Path:
    """A fresh repository of that name."""
    root = WORK / "repositories" / folder
    shutil.rmtree(root, ignore_errors=True)
    for model in models:
        version = root / model.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(f'name: "{model.name}"\n{model.config}')
        if model.file is not None:
            os.link(model.file, version / "model.onnx")
    return root
