"""Loads a PyTorch model for the device that its configuration asks for."""

from typing import Final

import torch

from sits_executor.backends.base import Backend, LoadError, LoadSpec
from sits_executor.backends.pytorch.archives import open_model
from sits_executor.backends.pytorch.device import CudaDevice, TorchDevice
from sits_executor.backends.pytorch.eager import EagerBackend
from sits_executor.backends.pytorch.graph_options import GraphOptions
from sits_executor.backends.pytorch.model import Model, named
from sits_executor.backends.pytorch.streams import StreamedBackend

_PRECISIONS: Final = {
    "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "": None,
}  # fmt: skip


def load(spec: LoadSpec) -> Backend:
    """A GPU that was asked for and is not to be had is a `LoadError`, never a quiet CPU run."""
    if spec.gpu is None:
        return EagerBackend(_open(spec, torch.device("cpu")), spec.threads)
    try:
        device = _cuda(spec.gpu, spec.gpu_memory_bytes)
    except LoadError as error:
        if spec.parameter("cpu_fallback") != "true":
            raise
        return EagerBackend(_open(spec, torch.device("cpu")), spec.threads, str(error))
    return streamed(spec, device)


def streamed(spec: LoadSpec, device: TorchDevice) -> StreamedBackend:
    options = GraphOptions.of(spec)
    return StreamedBackend(_open(spec, device.torch), device, spec.instances, options, spec.staging)


def _open(spec: LoadSpec, device: torch.device) -> Model:
    wanted = spec.parameter("precision").lower()
    if wanted not in _PRECISIONS:
        raise LoadError(f"parameter 'precision' is '{wanted}', expected fp32, fp16 or bf16")
    return named(spec.config, open_model(spec, device, _PRECISIONS[wanted]))


def _cuda(index: int, memory_bytes: int) -> CudaDevice:
    if not torch.cuda.is_available():
        why = "has no CUDA" if torch.version.cuda is None else "finds no GPU"
        raise LoadError(
            f"the model asks for a GPU, but this PyTorch ({torch.__version__}) {why}: "
            "install a CUDA build, give the process a device, or use KIND_CPU"
        )
    if index >= torch.cuda.device_count():
        raise LoadError(
            f"the model asks for GPU {index}, this process sees {torch.cuda.device_count()}"
        )
    return CudaDevice(index, memory_bytes)
