"""How a registered module is divided among the members of a gang.

Each member holds a part of every layer; two sums over the gang a layer put the parts together
(Shoeybi et al. 2019, "Megatron-LM"). Weakness: a sum waits for the slowest link of the gang, so
that narrow layers gain nothing; what is not in a layer (embeddings, norms) is computed by all.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sits_executor.backends.base import LoadError
from sits_executor.backends.pytorch.encoder import Encoder, Layer

GROUP: Final = "sits_executor.gang_splits"

Sum = Callable[[Tensor], Tensor]
"""Adds up what all members hold, in place."""


class Share(NamedTuple):
    """Which part of how many."""

    rank: int
    size: int

    def of(self, tensor: Tensor, dim: int) -> Tensor:
        """This member's equal part along `dim`. Raises `LoadError` when it cannot be divided."""
        if tensor.shape[dim] % self.size:
            raise LoadError(
                f"a dimension of {tensor.shape[dim]} cannot be divided among {self.size} GPUs"
            )
        return tensor.chunk(self.size, dim)[self.rank].clone()


Split = Callable[[nn.Module, Share, Sum], nn.Module]
"""From the whole module, with its weights, to one member's part; it gives the whole result."""


class SplitLayer(nn.Module):
    """A share of the attention heads and of the wide linear layers."""

    def __init__(self, whole: Layer, share: Share, add_up: Sum) -> None:
        super().__init__()
        if whole.heads % share.size:
            raise LoadError(f"{whole.heads} heads cannot be divided among {share.size} GPUs")
        self.heads, self._sum = whole.heads // share.size, add_up
        self.first, self.second = whole.first, whole.second
        self.qkv = _linear(
            torch.cat([share.of(part, 0) for part in whole.qkv.weight.chunk(3)]),
            torch.cat([share.of(part, 0) for part in whole.qkv.bias.chunk(3)]),
        )
        self.up = _linear(share.of(whole.up.weight, 0), share.of(whole.up.bias, 0))
        # The biases of what is summed are added once, after the sum.
        self.out, self.down = (
            _linear(share.of(each.weight, 1), each.bias) for each in (whole.out, whole.down)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        shape = (rows, tokens, self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, 2))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self._summed(self.out, mixed.transpose(1, 2).reshape(rows, tokens, -1))
        return x + self._summed(self.down, functional.gelu(self.up(self.second(x))))

    def _summed(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return self._sum(functional.linear(x, layer.weight)) + layer.bias


def split_encoder(whole: nn.Module, share: Share, add_up: Sum) -> nn.Module:
    """In place: the layers of `whole` become this member's."""
    if not isinstance(whole, Encoder):
        raise TypeError(f"{type(whole).__name__} is no encoder")
    layers = [layer for layer in whole.layers if isinstance(layer, Layer)]
    whole.layers = nn.ModuleList(SplitLayer(layer, share, add_up) for layer in layers)
    return whole


OWN: Final[Mapping[str, Split]] = {"encoder": split_encoder}


def split_of(module: str) -> Split:
    """Of a registered module, by its name. Raises `LoadError` for one that has none."""
    if module in OWN:
        return OWN[module]
    found = entry_points(group=GROUP, name=module)
    if not found:
        known = ", ".join([*OWN, *sorted(entry_points(group=GROUP).names)])
        raise LoadError(f"module '{module}' cannot be divided among GPUs, expected one of {known}")
    registered: Split = next(iter(found)).load()
    return registered


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta", dtype=weight.dtype)
    layer.weight, layer.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    return layer
