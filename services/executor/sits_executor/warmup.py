"""Runs a model once or more before it is announced, so that no client waits for first-run work."""

from collections.abc import Iterator

import numpy as np
import structlog

from sits_core import datatypes
from sits_core.datatypes import BYTES, NUMPY_TYPES, Array
from sits_core.errors import InvalidArgument
from sits_executor.backends.base import Backend, LoadError
from sits_executor.backends.stateful import state_kept
from sits_executor.contract import DATATYPES, Contract, TensorContract, fits, reshaped
from sits_executor.repository.layout import ModelFolder
from sits_executor.safe import safe_cause
from sits_protos.oip.model_config_pb2 import ModelConfig, ModelWarmup

log = structlog.get_logger()

MAX_ELEMENTS = 1 << 28
_FOLDER = "warmup"
_SEED = 0


def warm_up(backend: Backend, contract: Contract, config: ModelConfig, folder: ModelFolder) -> None:
    """As `model_warmup` says, where a failure raises `LoadError`; else zeros, where it is logged:
    zeros may be illegal data, and only the model knows."""
    with state_kept(backend):
        for sample in config.model_warmup:
            _configured(backend, contract, sample, folder)
        if not config.model_warmup:
            _default(backend, contract)


def _configured(
    backend: Backend, contract: Contract, sample: ModelWarmup, folder: ModelFolder
) -> None:
    try:
        inputs = {
            name: _sample(contract, sample, name, data, folder)
            for name, data in sample.inputs.items()
        }
        for _ in range(max(1, sample.count)):
            backend.run(inputs, {})
    except LoadError:
        raise
    except Exception as error:  # whatever the model raises
        raise LoadError(f"warm-up '{sample.name}' failed: {safe_cause(error)}") from error


def _default(backend: Backend, contract: Contract) -> None:
    for rows in _default_rows(contract):
        try:
            backend.run(_zeros(contract, rows), {})
        except Exception as error:  # noqa: BLE001 - whatever the model raises
            log.info("warmup.skipped", model=contract.model, rows=rows, cause=safe_cause(error))
            return


def _default_rows(contract: Contract) -> Iterator[int]:
    """One row, then all of them where that is the only shape that will ever come."""
    yield 1
    static = all(-1 not in tensor.dims for tensor in contract.inputs.values())
    if contract.max_rows > 1 and static:
        yield contract.max_rows


def _zeros(contract: Contract, rows: int) -> dict[str, Array]:
    lead = (rows,) if contract.batches else ()
    return {
        tensor.name: _filled(tensor.datatype, lead + _small(tensor), random=False)
        for tensor in contract.inputs.values()
        if not tensor.optional
    }


def _small(tensor: TensorContract) -> tuple[int, ...]:
    """The smallest legal shape, as the model itself sees it."""
    dims = tensor.dims if tensor.inner is None else tensor.inner
    return tuple(1 if dim == -1 else dim for dim in dims)


def _sample(
    contract: Contract, sample: ModelWarmup, name: str, data: ModelWarmup.Input, folder: ModelFolder
) -> Array:
    tensor = contract.inputs.get(name)
    if tensor is None:
        raise LoadError(f"warm-up '{sample.name}' names input '{name}', which the model has not")
    if DATATYPES.get(data.data_type) != tensor.datatype:
        raise LoadError(f"warm-up '{sample.name}' input '{name}' must be {tensor.datatype}")
    lead = (max(1, sample.batch_size),) if contract.batches else ()
    shape = lead + tuple(data.dims)
    if any(dim < 0 for dim in shape) or _elements(shape) > MAX_ELEMENTS:
        raise LoadError(f"warm-up '{sample.name}' input '{name}' has illegal dims {list(shape)}")
    if not fits(tuple(data.dims), tensor.dims):
        raise LoadError(
            f"warm-up '{sample.name}' input '{name}' has dims {list(data.dims)}, "
            f"expected {list(tensor.dims)}"
        )
    array = _data(tensor, data, shape, folder)
    if tensor.inner is None:
        return array
    return array.reshape(lead + reshaped(tuple(data.dims), tensor.dims, tensor.inner))


def _data(
    tensor: TensorContract, data: ModelWarmup.Input, shape: tuple[int, ...], folder: ModelFolder
) -> Array:
    if data.WhichOneof("input_data_type") != "input_data_file":
        return _filled(tensor.datatype, shape, random=data.random_data)
    content = folder.file(f"{_FOLDER}/{data.input_data_file}").read_bytes()
    try:
        return datatypes.decode(content, tensor.datatype, shape)
    except (ValueError, InvalidArgument):
        raise LoadError(
            f"warm-up file '{data.input_data_file}' does not hold {list(shape)} {tensor.datatype}"
        ) from None


def _filled(datatype: str, shape: tuple[int, ...], *, random: bool) -> Array:
    if datatype == BYTES:
        return np.full(shape, b"", dtype=object)
    if not random:
        return np.zeros(shape, NUMPY_TYPES[datatype])
    return np.random.default_rng(_SEED).integers(0, 2, shape).astype(NUMPY_TYPES[datatype])


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count
