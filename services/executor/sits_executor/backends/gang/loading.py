"""Loads a model whose configuration asks for a gang."""

from typing import Final

from sits_executor.backends.base import Backend, LoadError, LoadSpec
from sits_executor.backends.gang.backend import GangBackend
from sits_executor.backends.gang.member import Job
from sits_executor.backends.gang.splits import split_of

SIZES: Final = ("2", "4", "8")


def load(spec: LoadSpec) -> Backend:
    """`gang_size` members: GPUs that `spec.gang` chooses, or processes on the CPU."""
    size = _size(spec)
    split_of(spec.parameter("module"))
    return GangBackend(
        Job(
            model=spec.model,
            directory=str(spec.directory),
            filename=spec.filename,
            config=spec.config.SerializeToString(),
            devices=() if spec.gpu is None else tuple(spec.gang(size)),
            size=size,
            threads=max(1, spec.threads // size),
            meeting="",
        )
    )


def _size(spec: LoadSpec) -> int:
    text = spec.parameter("gang_size")
    if text not in SIZES:
        raise LoadError(f"parameter 'gang_size' is '{text}', expected one of {', '.join(SIZES)}")
    return int(text)
