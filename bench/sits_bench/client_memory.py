"""Shared memory of the client: regions that a request names instead of bringing bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

from sits_bench.messages import Array, Inference, Region
from sits_bench.system import Running

SHM = Path("/dev/shm")  # noqa: S108 - this is where shared memory lives


@contextmanager
def regions(array: Array, prefix: str) -> Iterator[tuple[Region, Region]]:
    """A region that holds `array`, and one as large for the answer; gone when left."""
    made = Region(f"{prefix}-in", array.nbytes), Region(f"{prefix}-out", array.nbytes)
    try:
        (SHM / made[0].name).write_bytes(array.tobytes())
        (SHM / made[1].name).write_bytes(bytes(array.nbytes))
        yield made
    finally:
        for region in made:
            (SHM / region.name).unlink(missing_ok=True)


def register(running: Running, both: tuple[Region, Region]) -> None:
    with triton.InferenceServerClient(running.target) as client:
        for name, size_bytes in both:
            client.register_system_shared_memory(name, f"/{name}", size_bytes)


def by_reference(inference: Inference, both: tuple[Region, Region]) -> Inference:
    """The same inference with its INPUT and OUTPUT in shared memory."""
    source, target = both
    return Inference(
        inference.model,
        inference.inputs,
        input_regions={"INPUT": source},
        output_regions={"OUTPUT": target},
    )


def answer(region: Region, like: Array) -> Array:
    """What lies in a region now."""
    data = (SHM / region.name).read_bytes()
    return np.frombuffer(data, like.dtype).reshape(like.shape)
