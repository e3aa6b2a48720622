"""Encoders of known size as models of a repository: weights drawn at random, half precision."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn

from sits_executor.backends.pytorch.encoder import build

VOCABULARY: Final = 1000


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer encoder: token ids INT64 [rows, tokens] in, one vector a row out."""

    layers: int
    width: int
    heads: int
    tokens: int

    @property
    def options(self) -> dict[str, str]:
        return {
            "layers": str(self.layers),
            "width": str(self.width),
            "heads": str(self.heads),
            "vocabulary": str(VOCABULARY),
            "positions": str(self.tokens),
        }

    @property
    def flop_per_row(self) -> float:
        """Of the linear layers: two for each weight and token; attention comes on top."""
        return 2.0 * self.layers * 12 * self.width**2 * self.tokens


def half(on_gpu: bool) -> torch.dtype:
    """Half precision where there is a GPU: CPUs have none worth it."""
    return torch.float16 if on_gpu else torch.float32


def module(shape: Shape, device: str) -> nn.Module:
    """Drawn on the device, which is quicker."""
    torch.manual_seed(1)
    with torch.device(device):
        return build(shape.options).to(half(device != "cpu")).eval()


def write(folder: Path, name: str, shape: Shape, device: str, max_batch: int, more: str) -> None:
    """`name` in the repository `folder`; `more` is the rest of its configuration."""
    version = folder / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    torch.save(module(shape, device).cpu().state_dict(), version / "model.pt")
    (version.parent / "config.pbtxt").write_text(config(name, shape, device, max_batch, more))


def config(name: str, shape: Shape, device: str, max_batch: int, more: str = "") -> str:
    on_gpu = device != "cpu"
    output, kind = ("TYPE_FP16", "KIND_GPU") if on_gpu else ("TYPE_FP32", "KIND_CPU")
    options = {"module": "encoder", "precision": "fp16" if on_gpu else "fp32"}
    options |= {f"module.{key}": value for key, value in shape.options.items()}
    parameters = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in options.items()
    )
    return (
        f'name: "{name}"\nbackend: "pytorch"\nmax_batch_size: {max_batch}\n'
        f'input {{ name: "input_ids" data_type: TYPE_INT64 dims: [ {shape.tokens} ] }}\n'
        f'output {{ name: "pooled" data_type: {output} dims: [ {shape.width} ] }}\n'
        f"instance_group {{ count: 1 kind: {kind} }}\n{parameters}{more}"
    )
