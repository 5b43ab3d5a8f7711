"""A model as an ordered chain of units, and the two sides of a cut as views of it.

Section II of the paper splits a model of M layers behind layer `cut`: the client holds the first `cut` of
them, the server the rest, and both hold at least one. Here the "layers" are units: whatever lies between two
allowed cuts.
"""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from asfl.config.errors import AsflError, MissingExtraError
from asfl.config.names import Norm, Precision

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
except ModuleNotFoundError as error:
    raise MissingExtraError("building models", "train") from error

Carry = tuple[Tensor, ...]
"""What crosses a cut: one tensor, or (main, skip) inside a residual block."""


class _Returned(torch.autograd.Function):
    """A scalar whose gradient is what came back across the cut."""

    @staticmethod
    def forward(ctx: Any, *carry_and_gradients: Tensor) -> Tensor:
        ctx.save_for_backward(*carry_and_gradients[len(carry_and_gradients) // 2 :])
        return carry_and_gradients[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return *ctx.saved_tensors, *[None] * len(ctx.saved_tensors)


def go_backward(carry: Carry, gradients: Carry) -> None:
    """`torch.autograd.backward(carry, gradients)`, which compares shapes by a module that imports SymPy: 40 MB more."""
    torch.autograd.backward(_Returned.apply(*carry, *gradients))  # type: ignore[no-untyped-call]


class CuttableModel(nn.Module):
    """M named units, each mapping Carry -> Carry. The first gets (images,), the last gives (logits,)."""

    precision: Precision = "float32"
    """What layers multiply in; weights, gradients and what crosses are of the same type either way."""

    def __init__(self, units: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.unit_names = tuple(units)
        self.units = nn.ModuleList(units.values())

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.run((x,), 0, len(self.units))
        return logits

    def run(self, carry: Carry, start: int, stop: int) -> Carry:
        """Through units start … stop−1, counted from 0."""
        given = carry[0]
        mixed = self.precision == "bfloat16"
        with torch.autocast(given.device.type, torch.bfloat16) if mixed else nullcontext():
            for unit in self.units[start:stop]:
                carry = unit(carry)
        return tuple(tensor.to(given.dtype) for tensor in carry) if mixed else carry

    def client_part(self, cut: int) -> "Part":
        """Units 1 … cut: a tuple of images -> what crosses."""
        return self._part(cut, 0, cut)

    def server_part(self, cut: int) -> "Part":
        """Units cut+1 … M: what crosses -> a tuple of logits."""
        return self._part(cut, cut, len(self.units))

    def _part(self, cut: int, start: int, stop: int) -> "Part":
        if not 1 <= cut < len(self.units):
            raise AsflError(f"cut = {cut}: a model of {len(self.units)} units can be cut at 1 … {len(self.units) - 1}")
        # Keyed by the position in the whole model, so a part's state_dict uses the whole model's names.
        return Part(nn.ModuleDict({str(index): self.units[index] for index in range(start, stop)}))


class Part(nn.Module):
    """One side of a cut: carry -> carry. Shares its units with the model, copies nothing."""

    def __init__(self, units: nn.ModuleDict) -> None:
        super().__init__()
        self.units = units

    def forward(self, carry: Carry) -> Carry:
        for unit in self.units.values():
            carry = unit(carry)
        return carry


# ---------------------------------------------------------------------- the pieces all networks share
# Nothing here works in place: a tensor of the carry may still be needed unchanged, as a skip or by the other side.
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
