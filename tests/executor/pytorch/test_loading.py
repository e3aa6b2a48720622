"""PyTorch models on the CPU: what is opened, under which names, and what is refused."""

import io
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sits_core.datatypes import NUMPY_TYPES
from sits_executor.backends.base import LoadError
from sits_executor.backends.pytorch import modules
from sits_executor.backends.pytorch.archive_check import harmless
from sits_executor.backends.pytorch.loading import load
from sits_executor.backends.pytorch.naming import call_order, named_results, result_order

TWO_INPUTS = (
    "max_batch_size: 8 input { name: '%s' data_type: TYPE_FP32 dims: [2] } "
    "input { name: '%s' data_type: TYPE_FP32 dims: [2] } "
    "output { name: 'y' data_type: TYPE_FP32 dims: [2] }"
)
SMALL = {"module": "perceptron", "module.layers": 2, "module.width": 4}
ANY_TYPE = (
    "max_batch_size: 8 input { name: 'x' data_type: TYPE_%s dims: [3] } "
    "output { name: 'y' data_type: TYPE_%s dims: [3] }"
)


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Minus(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a - b


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def script(module: torch.nn.Module, folder: Path, name: str = "model.pt") -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module), str(folder / name))


def export(module: torch.nn.Module, x: torch.Tensor, folder: Path) -> Path:
    shapes = {"x": {0: torch.export.Dim.DYNAMIC}}
    path = folder / "model.pt2"
    torch.export.save(torch.export.export(module, (x,), dynamic_shapes=shapes), path)
    return path


def expected(module: torch.nn.Module, x: Any) -> Any:
    with torch.inference_mode():
        return module(torch.from_numpy(x)).numpy()


def batch_of(rows: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, 4), np.float32)


def test_a_torchscript_file_gives_what_the_module_gives(spec: Any, tmp_path: Path) -> None:
    module = Linear()
    script(module, tmp_path)
    backend = load(spec("model.pt"))
    for rows in (1, 2, 3, 8, 3, 1):
        x = batch_of(rows, rows)
        np.testing.assert_allclose(backend.run({"x": x}, {})["y"], expected(module, x), rtol=1e-6)


def test_an_exported_program_gives_what_the_module_gives(spec: Any, tmp_path: Path) -> None:
    module = Linear()
    export(module, torch.randn(3, 4), tmp_path)
    backend = load(spec("model.pt2"))
    for rows in (1, 5, 8):
        x = batch_of(rows, rows)
        np.testing.assert_allclose(backend.run({"x": x}, {})["y"], expected(module, x), rtol=1e-6)


@pytest.mark.parametrize("filename", ["model.safetensors", "model.pt"])
def test_a_registered_module_takes_its_weights_from_the_folder(
    filename: str, spec: Any, tmp_path: Path
) -> None:
    module = modules.build("perceptron", {"layers": "2", "width": "4"})
    if filename.endswith("safetensors"):
        save_file(module.state_dict(), tmp_path / filename)
    else:
        torch.save(module.state_dict(), tmp_path / filename)
    config = ANY_TYPE.replace("[3]", "[4]") % ("FP32", "FP32")
    backend = load(spec(filename, config, parameters=SMALL))
    x = batch_of(3)
    np.testing.assert_allclose(backend.run({"x": x}, {})["y"], expected(module, x), rtol=1e-6)


def test_weights_take_the_precision_that_is_asked_for(spec: Any, tmp_path: Path) -> None:
    module = modules.build("perceptron", {"layers": "2", "width": "4"})
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    config = ANY_TYPE.replace("[3]", "[4]") % ("FP16", "FP16")
    backend = load(spec("model.safetensors", config, parameters={**SMALL, "precision": "fp16"}))
    y = backend.run({"x": batch_of(3).astype(np.float16)}, {})["y"]
    np.testing.assert_allclose(y, expected(module, batch_of(3)), atol=0.02)
    assert y.dtype == np.float16


@pytest.mark.parametrize("datatype", [*NUMPY_TYPES])
def test_every_fixed_size_datatype_passes_unchanged(
    datatype: str, spec: Any, tmp_path: Path
) -> None:
    script(Same(), tmp_path)
    backend = load(spec("model.pt", ANY_TYPE % (datatype, datatype)))
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(NUMPY_TYPES[datatype])
    y = np.asarray(backend.run({"x": x}, {})["y"])
    assert (y.dtype, y.tobytes()) == (x.dtype, x.tobytes())


def test_arrays_of_any_layout_and_byte_order_are_read_by_value(spec: Any, tmp_path: Path) -> None:
    script(Same(), tmp_path)
    backend = load(spec("model.pt", ANY_TYPE % ("FP32", "FP32")))
    wide = np.arange(36, dtype=np.float32).reshape(6, 6)
    for x in (wide[::2, ::2], wide[::-2, 3:], wide[:3, :3].T, wide[:2, :3].astype(">f4")):
        np.testing.assert_array_equal(backend.run({"x": x}, {})["y"], x)


def test_outputs_that_are_permuted_or_expanded_have_their_values(spec: Any, tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.reshape(-1, 2, 2).permute(0, 2, 1), x[:, :1].expand(-1, 3)

    script(Odd(), tmp_path)
    config = (
        "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: [4] } "
        "output { name: 'p' data_type: TYPE_FP32 dims: [2, 2] } "
        "output { name: 'e' data_type: TYPE_FP32 dims: [3] }"
    )
    x = batch_of(3)
    outputs = load(spec("model.pt", config)).run({"x": x}, {})
    np.testing.assert_array_equal(outputs["p"], x.reshape(-1, 2, 2).transpose(0, 2, 1))
    np.testing.assert_array_equal(outputs["e"], np.broadcast_to(x[:, :1], (3, 3)))


def test_a_model_that_writes_into_its_input_does_not_change_the_senders(
    spec: Any, tmp_path: Path
) -> None:
    class Greedy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    script(Greedy(), tmp_path)
    x = np.zeros((2, 3), np.float32)
    x.flags.writeable = False
    y = load(spec("model.pt", ANY_TYPE % ("FP32", "FP32"))).run({"x": x}, {})["y"]
    assert (x.sum(), y.sum()) == (0, 6)


@pytest.mark.parametrize(
    ("names", "b_is"), [(("b", "a"), "b"), (("IN__1", "IN__0"), "IN__1"), (("one", "two"), "two")]
)
def test_inputs_are_named_by_forward_by_number_or_by_order(
    names: tuple[str, str], b_is: str, spec: Any, tmp_path: Path
) -> None:
    script(Minus(), tmp_path)
    backend = load(spec("model.pt", TWO_INPUTS % names))
    ones, zeros = np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32)
    y = backend.run({name: ones if name == b_is else zeros for name in names}, {})["y"]
    assert y.tolist() == [[-1, -1]]


def test_numbers_with_gaps_and_left_out_arguments_are_refused() -> None:
    with pytest.raises(LoadError, match="not 0 to 1"):
        call_order(["x__0", "x__2"], ["a"])
    with pytest.raises(LoadError, match="cannot be left out"):
        call_order(["a", "c"], ["a", "b", "c"])
    assert result_order(["y__1", "y__0"]) == ("y__0", "y__1")


@pytest.mark.parametrize("result", [None, (torch.zeros(1),), {"a": torch.zeros(1)}, 3, [1, 2]])
def test_results_that_are_not_the_outputs_are_an_error_that_names_them(result: Any) -> None:
    with pytest.raises(ValueError, match=r"forward returned"):
        named_results(result, ["a", "b"])


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ("max_batch_size: 8", "write them in config.pbtxt"),
        (ANY_TYPE % ("STRING", "FP32"), "'x' is TYPE_STRING"),
        (ANY_TYPE.replace("dims: [3] }", "dims: [3] optional: true }", 1) % ("FP32", "FP32"),
         "'x' is optional"),
    ],
)  # fmt: skip
def test_what_pytorch_cannot_take_is_refused_at_load(
    config: str, match: str, spec: Any, tmp_path: Path
) -> None:
    script(Same(), tmp_path)
    with pytest.raises(LoadError, match=match):
        load(spec("model.pt", config))


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"module": "os.system"}, "no registered module 'os.system', expected one of encoder"),
        ({"module": "perceptron", "module.width": "x"}, "'module.width' is 'x'"),
        ({"module": "perceptron", "module.size": "3"}, "unknown option 'module.size'"),
        ({"module": "encoder", "module.width": "5"}, "multiple of 12 heads"),
        ({"precision": "fp8"}, "'precision' is 'fp8'"),
        ({}, "needs the parameter 'module'"),
    ],
)
def test_wrong_parameters_are_named(
    parameters: dict[str, str], match: str, spec: Any, tmp_path: Path
) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=match):
        load(spec("model.safetensors", parameters=parameters))


def test_weights_that_are_not_the_modules_are_refused(spec: Any, tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match="state_dict"):
        load(spec("model.safetensors", parameters=SMALL))


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("parameters", [{}, SMALL])
def test_a_pickled_module_is_refused_and_runs_nothing(
    parameters: dict[str, Any], spec: Any, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    torch.save({"w": Bomb(mark)}, tmp_path / "model.pt")
    with pytest.raises(LoadError):
        load(spec("model.pt", parameters=parameters))
    assert not mark.exists()


def changed(path: Path, member: str, change: Any) -> None:
    """Write the archive again with one member changed, or added."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    full = next((name for name in held if name.endswith(member)), f"model/{member}")
    held[full] = change(held.get(full, b""))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in held.items():
            archive.writestr(name, data)


def replaced(old: str, new: str) -> Any:
    return lambda data: data.decode().replace(old, new).encode()


def bomb(path: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save((Bomb(path),), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("member", "change", "match"),
    [
        ("sample_inputs/model.pt", lambda mark: lambda _: bomb(mark), "more than plain tensors"),
        ("weights_config.json", lambda _: replaced('"use_pickle": false', '"use_pickle": true'),
         "pickled entries"),
        ("data/constants/custom_obj_0", lambda mark: lambda _: pickle.dumps(Bomb(mark)),
         "'data/constants/custom_obj_0', which is not opened"),
        ("data/aotinductor/model/a.so", lambda _: lambda _data: b"\x7fELF", "not opened here"),
        ("models/model.json", lambda mark: replaced(
            "Symbol('s", f"__import__('os').mkdir('{mark}') or Symbol('s"), "more than sizes"),
        ("models/model.json", lambda _: replaced("torch.ops.aten.linear.default",
                                                 "torch.hub.load"), "calls torch.hub.load"),
        ("models/model.json", lambda _: lambda data: data[:100], "cannot be read"),
    ],
)  # fmt: skip
def test_an_exported_program_that_could_run_code_is_refused_before_it_does(
    member: str, change: Any, match: str, spec: Any, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    changed(export(Linear(), torch.randn(3, 4), tmp_path), member, change(mark))
    with pytest.raises(LoadError, match=match):
        load(spec("model.pt2"))
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    ["2*s0 + 1", "Symbol('s77', positive=True, integer=True)", "Max(1, s0)", "s0 // 2 >= 1",
     "L['x'].size()[0] <= 64"],
)  # fmt: skip
def test_expressions_of_sizes_are_harmless(text: str) -> None:
    assert harmless(text)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "open('f')", "(1).__class__", "[x for x in y]", "lambda: 1",
     "Symbol('s', f=exec('1'))", "a.b()", "f'{x}'", "x := 1", "", "x = 1", "size.__call__(1)",
     "Symbol.mro()"],
)  # fmt: skip
def test_expressions_that_do_more_are_not(text: str) -> None:
    assert not harmless(text)


def test_a_gpu_that_is_not_there_fails_the_load_with_the_cause(spec: Any, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    script(Same(), tmp_path)
    with pytest.raises(LoadError, match=r"asks for a GPU, but this PyTorch .* install a CUDA"):
        load(spec("model.pt", ANY_TYPE % ("FP32", "FP32"), gpu=0))


def test_the_cpu_stands_in_for_a_gpu_only_when_that_is_configured(
    spec: Any, tmp_path: Path
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    script(Same(), tmp_path)
    fallback = {"cpu_fallback": "true"}
    backend = load(spec("model.pt", ANY_TYPE % ("FP32", "FP32"), gpu=0, parameters=fallback))
    assert "asks for a GPU" in backend.fallback
    assert backend.run({"x": np.ones((1, 3), np.float32)}, {})["y"].sum() == 3


def test_the_archive_check_names_an_archive_that_is_none(spec: Any, tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_text(json.dumps({"no": "zip"}))
    with pytest.raises(LoadError, match="cannot be read"):
        load(spec("model.pt2"))
