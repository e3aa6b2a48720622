"""ONNX Runtime behind the backend seam."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from sits_core.datatypes import BYTES, NUMPY_TYPES
from sits_executor.backends import onnx, onnx_cuda
from sits_executor.backends.base import Backend, LoadError, LoadSpec, Signature
from sits_executor.backends.streamed import DeviceLost, OutOfMemory
from sits_protos.oip.model_config_pb2 import ModelConfig, ModelInstanceGroup

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
REAL_SESSION = onnxruntime.InferenceSession

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32, "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16, "INT32": TensorProto.INT32, "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16, "BYTES": TensorProto.STRING,
}  # fmt: skip


@pytest.fixture(name="load")
def loader(tmp_path: Path) -> Any:
    def load_bytes(model: bytes, gpu: int | None = None, **parameters: str) -> Backend:
        (tmp_path / "model.onnx").write_bytes(model)
        config = ModelConfig(name="m")
        for key, value in parameters.items():
            config.parameters[key].string_value = value
        return onnx.load(LoadSpec("m", "1", tmp_path, "model.onnx", config, 1, 1, gpu))

    return load_bytes


@pytest.mark.parametrize("datatype", [*NUMPY_TYPES])
def test_every_fixed_size_datatype_passes_unchanged(
    datatype: str, load: Any, onnx_models: Any
) -> None:
    backend = load(onnx_models.unary("Identity", ["b", 3], ONNX_TYPES[datatype]))
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(NUMPY_TYPES[datatype])
    y = backend.run({"x": x}, {})["y"]
    assert y.dtype == x.dtype
    assert y.tobytes() == x.tobytes()
    assert backend.signature.inputs[0].datatype == datatype
    assert backend.signature.inputs[0].shape == ("b", 3)


def test_bfloat16_keeps_its_precision_and_empty_arrays_pass(load: Any, onnx_models: Any) -> None:
    backend = load(onnx_models.unary("Identity", ["b", 2], TensorProto.BFLOAT16))
    x = np.array([[1.5, -3.25]], NUMPY_TYPES["BF16"])
    assert backend.run({"x": x}, {})["y"].tolist() == [[1.5, -3.25]]
    assert backend.run({"x": x[:0]}, {})["y"].shape == (0, 2)


def test_bytes_that_are_not_text_pass_unchanged(load: Any, onnx_models: Any) -> None:
    backend = load(onnx_models.unary("Identity", ["b", 1], TensorProto.STRING))
    values = [b"", b"\0", b"a\0b", b"\xff\xfe", "é日".encode(), b"\xf4\x8f\xbe\x80"]
    x = np.empty((len(values), 1), object)
    x[:, 0] = values
    assert backend.run({"x": x}, {})["y"][:, 0].tolist() == values


def test_text_reaches_the_model_as_text(load: Any, onnx_models: Any) -> None:
    """A label encoder knows its keys by value, whatever else is in the batch."""
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml",
        keys_strings=["é日", "b"], values_int64s=[1, 2], default_int64=0,
    )  # fmt: skip
    model = onnx_models.graph(
        [node], [("x", TensorProto.STRING, ["b"])], [("y", TensorProto.INT64, ["b"])]
    )
    x = np.array(["é日".encode(), b"b", b"\xff", b""], object)
    assert load(model).run({"x": x}, {})["y"].tolist() == [1, 2, 0, 0]


def test_a_gpu_that_is_not_there_fails_the_load(load: Any, onnx_models: Any) -> None:
    with pytest.raises(LoadError, match="no CUDAExecutionProvider"):
        load(onnx_models.unary("Identity", ["b"]), gpu=0)


class Runtime:
    """ONNX Runtime with a CUDA provider, as `open_session` makes its sessions."""

    def __init__(self, patch: pytest.MonkeyPatch, open_session: Any) -> None:
        self.opened: list[list[Any]] = []
        self.preloads = 0
        self._open = open_session
        patch.setattr(onnx.ort, "get_available_providers", lambda: [CUDA, CPU])
        patch.setattr(onnx.ort, "preload_dlls", self._preload, raising=False)
        patch.setattr(onnx.ort, "InferenceSession", self._session)
        onnx_cuda.prepare.cache_clear()

    def _preload(self) -> None:
        self.preloads += 1
        print("Failed to load libx.so.13: libx.so.13: cannot open shared object file")

    def _session(self, path: str, options: Any, providers: Any, **more: Any) -> Any:
        self.opened.append(providers)
        assert more == {"enable_fallback": 0}
        return self._open(path, options, providers)


@pytest.fixture(name="with_cuda")
def runtime_with_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield lambda open_session: Runtime(monkeypatch, open_session)
    onnx_cuda.prepare.cache_clear()


def cpu_session(path: str, options: Any, providers: Any) -> Any:
    return REAL_SESSION(path, options, providers=[CPU])


def pretended(path: str, options: Any, providers: Any) -> Any:
    """Says that it has what was asked for; all of it runs on the CPU."""
    session = cpu_session(path, options, providers)
    session._providers = [p if isinstance(p, str) else p[0] for p in providers]
    return session


def refused(text: str) -> Any:
    def open_session(path: str, options: Any, providers: Any) -> Any:
        raise RuntimeError(text)

    return open_session


def test_a_provider_that_does_not_start_fails_the_load_and_names_what_is_missing(
    load: Any, onnx_models: Any, with_cuda: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The package has the provider, but not its libraries: ONNX Runtime chooses the CPU."""
    with_cuda(cpu_session)
    with pytest.raises(LoadError, match=f"not start {CUDA} and chose {CPU}: libx.so.13: cannot"):
        load(onnx_models.unary("Identity", ["b"]), gpu=0)
    assert capfd.readouterr().out == ""


def test_libraries_that_pip_installed_are_loaded_once_and_only_for_a_gpu(
    load: Any, onnx_models: Any, with_cuda: Any
) -> None:
    runtime = with_cuda(cpu_session)
    load(onnx_models.unary("Identity", ["b"]))
    assert runtime.preloads == 0
    for _ in range(2):
        with pytest.raises(LoadError):
            load(onnx_models.unary("Identity", ["b"]), gpu=0)
    assert runtime.preloads == 1


ARENA = (
    "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /onnxruntime_src/core/"
    "bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) "
)
CALL = (
    "/onnxruntime_src/core/cuda_call.cc:154 std::conditional_t<THRW, void, onnxruntime::common::"
    "Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, SUCCTYPE, const char*, "
    "const char*, int) [with ERRTYPE = cublasStatus_t; bool THRW = true; SUCCTYPE = cublasStatus_t;"
    " std::conditional_t<THRW, void, common::Status> = void] /onnxruntime_src/core/cuda_call.cc:146"
    " std::conditional_t<THRW, void, onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE) "
)
WHERE = " ; GPU=0 ; hostname=secret ; file=/onnxruntime_src/x.cc ; line=82 ; expr=f(); \n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            ARENA + "Failed to allocate memory for requested buffer of size 2147483648\n",
            "GPU 3 has no memory left for the model: "
            "Failed to allocate memory for requested buffer of size 2147483648",
        ),
        (
            CALL + "CUBLAS failure 3: the resource allocation failed" + WHERE,
            "GPU 3 has no memory left for the model: CUBLAS failure 3: "
            "the resource allocation failed",
        ),
        (
            CALL + "CUDA failure 100: no CUDA-capable device is detected" + WHERE,
            "GPU 3 cannot be used: CUDA failure 100: no CUDA-capable device is detected",
        ),
        ("f() Invalid device ID: 3, must be between 0 and 0 (inclusive).\n",
         "GPU 3 cannot be used: Invalid device ID: 3, must be between 0 and 0 (inclusive)."),
        ("Protobuf parsing failed.", "RuntimeError: Protobuf parsing failed."),
    ],
)  # fmt: skip
def test_what_a_gpu_refuses_is_told_in_short_and_not_tried_on_the_cpu(
    text: str, shown: str, load: Any, onnx_models: Any, with_cuda: Any
) -> None:
    runtime = with_cuda(refused(text))
    with pytest.raises(LoadError) as caught:
        load(onnx_models.unary("Identity", ["b"]), gpu=3)
    assert str(caught.value) == shown
    assert len(runtime.opened) == 1


def test_a_model_that_a_gpu_cannot_run_at_all_is_refused_where_one_was_asked_for(
    tmp_path: Path, onnx_models: Any, with_cuda: Any
) -> None:
    """ONNX Runtime would call such a session one on the GPU, and run all of it on the CPU."""
    with_cuda(pretended)
    (tmp_path / "model.onnx").write_bytes(onnx_models.unary("Neg", ["b"]))
    config = ModelConfig(instance_group=[{"kind": ModelInstanceGroup.KIND_GPU}])
    with pytest.raises(LoadError, match="none of its operators runs on one: Neg"):
        onnx.load(LoadSpec("m", "1", tmp_path, "model.onnx", config, 1, 1, 0))


def test_and_runs_on_the_cpu_where_it_only_followed_the_executor(
    load: Any, onnx_models: Any, with_cuda: Any
) -> None:
    with_cuda(pretended)
    backend = load(onnx_models.unary("Neg", ["b"]), gpu=0)
    assert backend.fallback.endswith("runs on one: Neg")
    assert backend.never_waits
    assert backend.run({"x": np.ones(1, np.float32)}, {})["y"].tolist() == [-1.0]


def test_a_gpu_gets_its_number_its_limit_and_full_precision(
    tmp_path: Path, onnx_models: Any, with_cuda: Any
) -> None:
    runtime = with_cuda(cpu_session)
    (tmp_path / "model.onnx").write_bytes(onnx_models.unary("Identity", ["b"]))
    config = ModelConfig()
    specs = [LoadSpec("m", "1", tmp_path, "model.onnx", config, 1, 1, 3, 1 << 20)]
    faster = ModelConfig()
    faster.parameters["tf32"].string_value = "true"
    specs.append(LoadSpec("m", "1", tmp_path, "model.onnx", faster, 1, 1, 3))
    for spec in specs:
        with pytest.raises(LoadError):
            onnx.load(spec)
    (first, *_), (second, *_) = runtime.opened
    known = {"device_id": "3", "cudnn_conv_algo_search": "HEURISTIC"}
    assert first == (CUDA, {**known, "use_tf32": "0", "gpu_mem_limit": "1048576"})
    assert second == (CUDA, {**known, "use_tf32": "1"})


def test_a_configured_fallback_runs_on_the_cpu_and_says_so(load: Any, onnx_models: Any) -> None:
    backend = load(onnx_models.unary("Identity", ["b"]), gpu=0, cpu_fallback="true")
    assert "CUDAExecutionProvider" in backend.fallback
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(backend.run({"x": x}, {})["y"], x)


def test_nothing_falls_back_when_nothing_was_asked(load: Any, onnx_models: Any) -> None:
    assert load(onnx_models.unary("Identity", ["b"])).fallback == ""


def test_a_broken_file_fails_with_its_cause_and_its_name_in_the_repository(
    load: Any, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=r"from m/1/model.onnx failed:Protobuf parsing") as caught:
        load(b"not a model")
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("location", ["../secret", "{root}/secret", "link"])
def test_weights_outside_the_models_folder_are_not_read(
    location: str, tmp_path: Path, onnx_models: Any
) -> None:
    (tmp_path / "secret").write_bytes(np.arange(2, dtype=np.float32).tobytes())
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location.format(root=tmp_path))
    model = onnx_models.graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ["b", 2])],
        [("y", TensorProto.FLOAT, ["b", 2])],
        [weights],
    )
    (folder / "model.onnx").write_bytes(model)
    with pytest.raises(LoadError, match="External data path") as caught:
        onnx.load(LoadSpec("m", "1", folder, "model.onnx", ModelConfig(), 1, 1, None))
    assert str(tmp_path) not in str(caught.value)


def test_types_that_the_protocol_lacks_are_refused(load: Any, onnx_models: Any) -> None:
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    info = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b"])], [info]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(LoadError, match="expected a tensor"):
        load(model.SerializeToString())


def test_threads_come_from_the_spec_and_the_configuration_wins(load: Any, onnx_models: Any) -> None:
    model = onnx_models.unary("Identity", ["b"])
    assert load(model)._session.get_session_options().intra_op_num_threads == 1
    chosen = load(model, intra_op_thread_count="3")._session.get_session_options()
    assert chosen.intra_op_num_threads == 3
    with pytest.raises(LoadError, match="expected a number of threads"):
        load(model, intra_op_thread_count="many")


def test_only_configured_outputs_are_computed(tmp_path: Path, onnx_models: Any) -> None:
    model = onnx_models.graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
        [("x", TensorProto.FLOAT, ["b"])],
        [("y", TensorProto.FLOAT, ["b"]), ("z", TensorProto.FLOAT, ["b"])],
    )
    (tmp_path / "model.onnx").write_bytes(model)
    config = ModelConfig()
    config.output.add(name="z")
    backend = onnx.load(LoadSpec("m", "1", tmp_path, "model.onnx", config, 1, 1, None))
    assert list(backend.run({"x": np.ones(1, np.float32)}, {})) == ["z"]


def test_bytes_and_bfloat16_in_one_model_are_refused(load: Any, onnx_models: Any) -> None:
    model = onnx_models.graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["t"])],
        [("x", TensorProto.BFLOAT16, ["b"]), ("s", TensorProto.STRING, ["b"])],
        [("y", TensorProto.BFLOAT16, ["b"]), ("t", TensorProto.STRING, ["b"])],
    )
    with pytest.raises(LoadError, match=f"BF16 and {BYTES}"):
        load(model)


def test_no_telemetry_is_collected() -> None:
    """Where it is on, ONNX Runtime complains on stderr that it cannot keep its device id."""
    code = "import sits_executor.backends.onnx, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"HOME": "/proc/nowhere", "PATH": os.environ["PATH"]},
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


class DeadSession:
    """Of a GPU: what runs on it raises."""

    def __init__(self, text: str, provider: str) -> None:
        self._text, self._provider = text, provider

    def get_providers(self) -> list[str]:
        return [self._provider]

    def run(self, outputs: Any, feeds: Any) -> Any:
        raise RuntimeError(self._text)


@pytest.mark.parametrize(
    ("text", "provider", "kind"),
    [
        ("CUDA failure 700: an illegal memory access was encountered", "CUDA", DeviceLost),
        (
            "CUDA failure 717: operation not supported on global/shared address space ; GPU=0",
            "CUDA",
            DeviceLost,
        ),
        ("CUDA failure 2: out of memory", "CUDA", OutOfMemory),
        ("Failed to allocate memory for requested buffer of size 8", "CUDA", OutOfMemory),
        ("Available memory of 0 is smaller than requested bytes of 8", "CUDA", OutOfMemory),
        ("Tile repeat value must be non-negative: the memory", "CUDA", RuntimeError),
        ("an illegal memory access was encountered", "CPU", RuntimeError),
        ("Failed to allocate memory for requested buffer of size 8", "CPU", RuntimeError),
    ],
)
def test_a_lost_gpu_is_told_from_a_run_that_failed(
    text: str, provider: str, kind: type[Exception]
) -> None:
    session: Any = DeadSession(text, f"{provider}ExecutionProvider")
    backend = onnx.OnnxBackend(session, Signature((), ()), ["y"], "")
    with pytest.raises(Exception, match=r"illegal|memory|address") as caught:
        backend.run({}, {})
    assert type(caught.value) is kind
