"""Which backend opens a model: a literal table of names."""

from typing import Final, NamedTuple

from sits_executor.backends import builtin, onnx
from sits_executor.backends.base import Factory, LoadError
from sits_executor.backends.lazy import lazily
from sits_protos.oip.model_config_pb2 import ModelConfig


class Choice(NamedTuple):
    """`filename` empty = the backend reads no file; else it or the first of `or_filenames` that
    is there. `opens` are suffixes that may hold pickled objects, which it reads without."""

    backend: str
    platform: str
    filename: str
    load: Factory
    or_filenames: tuple[str, ...] = ()
    opens: frozenset[str] = frozenset()


BACKENDS: Final = {
    "onnxruntime": Choice("onnxruntime", "onnxruntime_onnx", "model.onnx", onnx.load),
    "pytorch": Choice(
        "pytorch",
        "pytorch_libtorch",
        "model.pt",
        lazily("pytorch.loading", "torch"),
        ("model.pt2", "model.safetensors"),
        frozenset({".pt", ".pt2"}),
    ),
    "gang": Choice(
        "gang",
        "gang",
        "model.pt",
        lazily("gang.loading", "torch"),
        ("model.safetensors",),
        frozenset({".pt"}),
    ),
    "builtin": Choice("builtin", "builtin", "", builtin.load),
}
_PLATFORMS: Final = {choice.platform: name for name, choice in BACKENDS.items()}


def choose(config: ModelConfig) -> Choice:
    """By `backend`, else by `platform`; a configuration with neither means ONNX."""
    if config.platform and config.platform not in _PLATFORMS:
        raise LoadError(
            f"platform '{config.platform}' is unknown, expected one of {', '.join(_PLATFORMS)}"
        )
    name = config.backend or _PLATFORMS.get(config.platform, "onnxruntime")
    if name not in BACKENDS:
        raise LoadError(f"backend '{name}' is unknown, expected one of {', '.join(BACKENDS)}")
    return BACKENDS[name]
