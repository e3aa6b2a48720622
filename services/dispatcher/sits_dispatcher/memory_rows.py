"""How many rows the free memory of an executor's GPU allows each of its models (D2)."""

import math
from collections.abc import Iterable
from typing import Final

from sits_core.datatypes import element_size
from sits_protos.oip.model_config_pb2 import DataType, ModelConfig
from sits_protos.v1.link_pb2 import ModelEntry
from sits_protos.v1.topology_pb2 import TopologySnapshot
from sits_scheduling.micro_batches import micro_batch_rows

ROW_BYTES: Final = "row_bytes"
"""Parameter of config.pbtxt: device memory that a row needs, activations included."""


def free_memory(snapshots: Iterable[TopologySnapshot]) -> dict[str, int]:
    """Bytes by device, of GPUs that tell, as of the newest topology."""
    return {
        device.id: device.memory_free_bytes
        for snapshot in snapshots
        for device in snapshot.devices
        if device.HasField("memory_free_bytes") and device.memory_total_bytes
    }


def row_limit(entry: ModelEntry, free_bytes: int) -> int:
    """The executor's own limit or that of the memory, whichever is less; 0 = neither is.

    8 to `max_batch_size` rows, in eights; what is free is divided among the instances. A model
    may run as many rows as its owner allows where memory does not forbid it: 64 is no limit.
    """
    config = ModelConfig.FromString(entry.config)
    most, need = config.max_batch_size, row_bytes(config)
    if most <= 1 or not need:
        return entry.micro_batch_rows
    rows = micro_batch_rows(free_bytes / max(1, entry.instances), need, most=most)
    limits = [limit for limit in (entry.micro_batch_rows, rows) if 0 < limit < most]
    return min(limits, default=0)


def row_bytes(config: ModelConfig) -> float:
    """What the model says it needs, else its inputs and outputs; 0 = not known.

    Weakness: inputs and outputs are the least that a row needs; models with large activations
    should say so.
    """
    said = config.parameters[ROW_BYTES].string_value if ROW_BYTES in config.parameters else ""
    if said.isdecimal():
        return float(said)
    sizes = [_bytes(tensor.data_type, tensor.dims) for tensor in config.input]
    sizes += [_bytes(tensor.data_type, tensor.dims) for tensor in config.output]
    return float(sum(sizes)) if all(sizes) else 0.0


def _bytes(data_type: DataType.ValueType, dims: Iterable[int]) -> int:
    """Of one row of a tensor; 0 = it varies."""
    name = DataType.Name(data_type).removeprefix("TYPE_")
    size = None if name in ("STRING", "INVALID") else element_size(name)
    elements = math.prod(dims)
    return size * elements if size and all(dim > 0 for dim in dims) else 0
