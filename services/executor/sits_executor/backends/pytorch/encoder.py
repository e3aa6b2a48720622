"""A transformer encoder of BERT's shape: token ids in, one pooled vector a row out."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from sits_executor.backends.pytorch.options import known_only, whole


class Encoder(nn.Module):
    """`input_ids` [rows, tokens] INT64 → [rows, width]. Pre-norm layers, mean pooling, tanh."""

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, positions: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.pool = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.pool(self.norm(x).mean(1)))


class Layer(nn.Module):
    """Self-attention, then two linear layers four times as wide."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        shape = (rows, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, 2))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def build(options: Mapping[str, str]) -> nn.Module:
    """Defaults are BERT base."""
    known_only(options, "layers", "width", "heads", "vocabulary", "positions")
    width, heads = whole(options, "width", 768), whole(options, "heads", 12)
    if width % heads:
        raise ValueError(f"option 'module.width' is {width}, expected a multiple of {heads} heads")
    return Encoder(
        whole(options, "layers", 12),
        width,
        heads,
        whole(options, "vocabulary", 30_522),
        whole(options, "positions", 512),
    )
