"""The pieces all networks share.

Nothing here works in place: a tensor of the carry may still be needed unchanged, as a skip or by the other side.
"""

import math

from torch import Tensor, nn

from asfl.models.cuttable import Carry
from asfl.profile import Norm


def scaled(channels: int, width: float) -> int:
    """`channels` times the width multiplier, rounded (half up), at least 1."""
    return max(1, math.floor(channels * width + 0.5))


def conv_norm(in_channels: int, out_channels: int, norm: Norm, *, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size (apart from its stride), and its norm layer if there is one.

    A norm layer brings its own shift per channel, so only a convolution without a norm has a bias.
    """
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=norm == "none")
    # Keeps the scale of the gradients through any number of ReLUs; a deep net without a norm needs that to start.
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    match norm:
        case "batch":
            return [conv, nn.BatchNorm2d(out_channels)]
        case "group":
            return [conv, nn.GroupNorm(math.gcd(32, out_channels), out_channels)]
        case "none":
            return [conv]


class Unit(nn.Module):
    """Layers that run in order on the main tensor; each subclass says what happens to the carry around them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.main = nn.Sequential(*layers)


class Plain(Unit):
    """One tensor in, one tensor out."""

    def forward(self, carry: Carry) -> Carry:
        (x,) = carry
        return (self.main(x),)


class GlobalAveragePool(nn.Module):
    """[batch, channels, height, width] -> [batch, channels]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))
