"""Opens what a version folder holds: a TorchScript file, an exported program, or weights."""

import inspect
import io
import warnings
from pathlib import Path
from typing import NamedTuple

import torch

from sits_executor.backends.base import LoadError, LoadSpec
from sits_executor.backends.pytorch import modules
from sits_executor.backends.pytorch.archive_check import refuse_code

_OPTION = "module."


class Opened(NamedTuple):
    """A module on its device, and the arguments of its `forward`."""

    module: torch.nn.Module
    arguments: tuple[str, ...]


def open_model(spec: LoadSpec, device: torch.device, dtype: torch.dtype | None) -> Opened:
    """`dtype` None = as stored. Raises `LoadError`."""
    path = spec.directory / spec.filename
    try:
        if name := spec.parameter("module"):
            opened = _registered(name, spec, path)
        elif path.suffix == ".pt2":
            return _exported(path, device, dtype)
        elif path.suffix == ".safetensors":
            raise LoadError("a file of weights needs the parameter 'module', which names its code")
        else:
            opened = _scripted(path)
        opened.module.to(device, dtype).train(False)
    except (LoadError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the file makes PyTorch raise
        raise LoadError(spec.cause(error)) from error
    return opened


def _registered(name: str, spec: LoadSpec, path: Path) -> Opened:
    options = {
        key.removeprefix(_OPTION): spec.parameter(key)
        for key in spec.config.parameters
        if key.startswith(_OPTION)
    }
    try:
        module = modules.build(name, options)
    except ValueError as error:
        raise LoadError(f"module '{name}': {error}") from None
    module.load_state_dict(_weights(path), strict=True)
    return Opened(module, tuple(inspect.signature(module.forward).parameters))


def _weights(path: Path) -> dict[str, torch.Tensor]:
    """Plain tensors only: neither way runs code."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _scripted(path: Path) -> Opened:
    """TorchScript has a reader of its own, which makes nothing but its own types. A pickled
    module is no such file, and refused there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.load(str(path), map_location="cpu")
    arguments = tuple(argument.name for argument in module.forward.schema.arguments[1:])
    return Opened(module, arguments)


def _exported(path: Path, device: torch.device, dtype: torch.dtype | None) -> Opened:
    if dtype is not None:
        raise LoadError("parameter 'precision': an exported program keeps its own")
    data = path.read_bytes()
    refuse_code(data)
    program = torch.export.load(io.BytesIO(data))
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    arguments = tuple(str(name) for name in program.graph_signature.user_inputs)
    return Opened(program.module(check_guards=False), arguments)
