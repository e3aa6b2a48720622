"""A multi-layer perceptron: the smallest model whose cost is launching its kernels."""

from collections.abc import Mapping

from torch import Tensor, nn

from sits_executor.backends.pytorch.options import known_only, whole


class Perceptron(nn.Module):
    """`x` [rows, width] → [rows, width], in `layers` of a linear map and a rectifier."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def build(options: Mapping[str, str]) -> nn.Module:
    known_only(options, "layers", "width")
    return Perceptron(whole(options, "layers", 20), whole(options, "width", 256))
