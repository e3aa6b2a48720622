"""ONNX Runtime: sessions sized to their share of the CPUs, or on the GPU that was asked for."""

import ctypes
import math
import os
from typing import Any, Final

import numpy as np
import structlog

# ONNX Runtime looks at it while it is imported: a serving process tells nobody what it runs.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

from sits_core.datatypes import BYTES, NUMPY_TYPES, Array
from sits_executor.backends import onnx_cuda
from sits_executor.backends.base import (
    Arrays,
    Backend,
    Dim,
    LoadError,
    LoadSpec,
    Parameters,
    Signature,
    TensorSpec,
)
from sits_executor.backends.text import bytes_of, texts

_TYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(string)": BYTES,
}
_BF16_ONNX_TYPE = 16
_CPU = "CPUExecutionProvider"
_FATAL_ONLY = 4

log = structlog.get_logger()


class OnnxBackend:
    """One session, shared by all instances: ONNX Runtime runs it from many threads."""

    def __init__(
        self, session: ort.InferenceSession, signature: Signature, outputs: list[str], fallback: str
    ) -> None:
        self._session, self._signature, self._outputs = session, signature, outputs
        self._fallback = fallback
        self._on_gpu = session.get_providers()[0] == onnx_cuda.PROVIDER
        self._types = {spec.name: spec.datatype for spec in (*signature.inputs, *signature.outputs)}
        self._has_bf16 = "BF16" in self._types.values()

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def fallback(self) -> str:
        return self._fallback

    @property
    def never_waits(self) -> bool:
        return not self._on_gpu

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        feeds = {name: self._feed(name, array) for name, array in inputs.items()}
        try:
            return self._run(feeds)
        except Exception as error:
            if self._on_gpu and (meant := onnx_cuda.translated(error)) is not error:
                raise meant from error
            raise

    def close(self) -> None:
        del self._session

    def _run(self, feeds: dict[str, Array]) -> Arrays:
        if self._has_bf16:
            return self._run_values(feeds)
        results = self._session.run(self._outputs, feeds)
        return {
            name: self._result(name, array)
            for name, array in zip(self._outputs, results, strict=True)
        }

    def _feed(self, name: str, array: Array) -> Array:
        return texts(array) if self._types[name] == BYTES else array

    def _result(self, name: str, array: Array) -> Array:
        return bytes_of(array) if self._types[name] == BYTES else array

    def _run_values(self, feeds: dict[str, Array]) -> Arrays:
        """NumPy has no bfloat16, so these models take and give ONNX Runtime's own values."""
        values = {name: _to_value(array) for name, array in feeds.items()}
        results = self._session.run_with_ort_values(self._outputs, values)
        return {
            name: self._result(name, _from_value(value))
            for name, value in zip(self._outputs, results, strict=True)
        }


def load(spec: LoadSpec) -> Backend:
    """Open `spec.filename`. A GPU that was asked for and is not to be had is a `LoadError`."""
    fallback = ""
    try:
        session = _session(spec, spec.gpu)
    except LoadError as error:
        if not _may_fall_back(spec, error):
            raise
        fallback = str(error)
        session = _session(spec, None)
    signature = Signature(_specs(session.get_inputs()), _specs(session.get_outputs()))
    _refuse_mixture(signature)
    known = [output.name for output in signature.outputs]
    wanted = [output.name for output in spec.config.output if output.name in known]
    return OnnxBackend(session, signature, wanted or known, fallback)


def _may_fall_back(spec: LoadSpec, error: LoadError) -> bool:
    """When the configuration says so, or never asked for a GPU that the model has no use for."""
    if spec.gpu is None:
        return False
    useless = isinstance(error, onnx_cuda.NothingRunsThere) and not onnx_cuda.is_asked_for(spec)
    return useless or spec.parameter("cpu_fallback") == "true"


def _session(spec: LoadSpec, gpu: int | None) -> ort.InferenceSession:
    return _opened(spec, [_CPU]) if gpu is None else _on_gpu(spec, gpu)


def _on_gpu(spec: LoadSpec, gpu: int) -> ort.InferenceSession:
    onnx_cuda.require(ort)
    onnx_cuda.prepare(ort)
    try:
        session = _opened(spec, [(onnx_cuda.PROVIDER, onnx_cuda.options(spec, gpu)), _CPU])
    except _NotOpened as error:
        raise onnx_cuda.not_opened(spec, error.cause, gpu) from error.cause
    if session.get_providers()[0] != onnx_cuda.PROVIDER:
        raise onnx_cuda.not_started(ort, session.get_providers())
    if left := onnx_cuda.refuse_idle(session):
        log.info("model.partly_on_cpu", model=spec.model, operators=left)
    return session


class _NotOpened(LoadError):
    """`cause`: what ONNX Runtime raised."""

    def __init__(self, spec: LoadSpec, cause: Exception) -> None:
        super().__init__(spec.cause(cause))
        self.cause = cause


def _opened(spec: LoadSpec, providers: list[Any]) -> ort.InferenceSession:
    """Without fallback: else what a GPU cannot do is quietly tried again on the CPU, here and in
    every run."""
    path = str(spec.directory / spec.filename)
    try:
        return ort.InferenceSession(path, _options(spec), providers=providers, enable_fallback=0)
    except Exception as error:  # whatever the model file makes the runtime raise
        raise _NotOpened(spec, error) from error


def _options(spec: LoadSpec) -> ort.SessionOptions:
    options = ort.SessionOptions()
    # Errors come as exceptions, which we log ourselves.
    options.log_severity_level = _FATAL_ONLY
    options.intra_op_num_threads = _count(spec, "intra_op_thread_count", spec.threads)
    options.inter_op_num_threads = _count(spec, "inter_op_thread_count", 1)
    # Spinning would take the CPU from the threads that serve the other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if spec.gpu is not None:
        options.add_session_config_entry(onnx_cuda.RECORD, "1")
    return options


def _count(spec: LoadSpec, key: str, default: int) -> int:
    """A thread count of the configuration; 0 or absent = `default`."""
    text = spec.parameter(key, "0")
    if not text.isdecimal():
        raise LoadError(f"parameter '{key}' is '{text}', expected a number of threads")
    return int(text) or default


def _refuse_mixture(signature: Signature) -> None:
    types = {spec.datatype for spec in (*signature.inputs, *signature.outputs)}
    if {"BF16", BYTES} <= types:
        raise LoadError("BF16 and BYTES tensors in one model: ONNX Runtime for Python cannot")


def _specs(nodes: list[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(n.name, _datatype(n.name, n.type), _shape(n.shape)) for n in nodes)


def _datatype(name: str, onnx_type: str) -> str:
    try:
        return _TYPES[onnx_type]
    except KeyError:
        raise LoadError(f"'{name}' has type {onnx_type}, expected a tensor") from None


def _shape(dims: list[Dim]) -> tuple[Dim, ...] | None:
    """ONNX Runtime shows a scalar and a tensor of unknown rank alike: as no dimensions."""
    return tuple(dims) or None


def _to_value(array: Array) -> ort.OrtValue:
    if array.dtype == NUMPY_TYPES["BF16"]:
        raw = np.ascontiguousarray(array).view(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, _BF16_ONNX_TYPE)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _from_value(value: ort.OrtValue) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        result: Array = value.numpy()
        return result
    shape = value.shape()
    size = 2 * math.prod(shape)
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(raw, NUMPY_TYPES["BF16"]).reshape(shape)
