"""The pieces all networks share.

Nothing here works in place: a tensor of the carry may still be needed unchanged, as a skip or by the other side.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfl.config.names import Norm
from asfl.models.cuttable import Carry


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
            return [conv, BatchNorm2d(out_channels)]
        case "group":
            return [conv, nn.GroupNorm(math.gcd(32, out_channels), out_channels)]
        case "none":
            return [conv]


class BatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose running statistics forget at once what they started with.

    After t updates a running statistic still holds the share ω = 0.9^t of its start (momentum 0.1), so without bias it
    is (statistic − ω·start) / (1 − ω). Here statistics start at 0, and `running_weight` = 1 − ω is one more of them: a
    running mean of ones, which is copied and averaged like the others. So statistic / weight is that formula, also for
    averages over holders with different ω, and there is no difference to round: a variance can't become negative.
    """

    running_weight: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        assert self.running_var is not None
        self.running_var.zero_()
        self.register_buffer("running_weight", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            count_update(self.running_weight, self.momentum)
            return super().forward(x)
        return F.batch_norm(x, *self.unbiased(), self.weight, self.bias, eps=self.eps)

    def unbiased(self) -> tuple[Tensor, Tensor]:
        """Mean and variance as they are used: 0 and 1 as long as no mini-batch has been seen."""
        assert self.running_mean is not None
        assert self.running_var is not None
        seen = self.running_weight > 0
        weight = torch.where(seen, self.running_weight, 1)
        return self.running_mean / weight, torch.where(seen, self.running_var / weight, 1)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Statistics that come without a weight are those of an ordinary batch norm, used as they are."""
        if f"{prefix}running_mean" in state_dict:
            state_dict.setdefault(f"{prefix}running_weight", torch.ones(()))
        super()._load_from_state_dict(state_dict, prefix, *args)


def count_update(running_weight: Tensor, momentum: float | None) -> None:
    """ω ← (1 − momentum) ω, of `running_weight` = 1 − ω.

    Through `data`, unseen by autograd: weights and the statistics it watches may be views of the same vector.
    """
    running_weight.data.mul_(1 - (momentum or 0.0)).add_(momentum or 0.0)


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
