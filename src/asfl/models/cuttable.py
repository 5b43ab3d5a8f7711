"""A model as an ordered chain of units, and the two sides of a cut as views of it.

Section II of the paper splits a model of M layers behind layer `cut`: the client holds the first `cut` of
them, the server the rest, and both hold at least one. Here the "layers" are units: whatever lies between two
allowed cuts.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from asfl.config.errors import AsflError, MissingExtraError
from asfl.config.names import Precision

try:
    import torch
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
        if self.precision == "float32":
            return _run(self.units[start:stop], carry)
        with torch.autocast(carry[0].device.type, torch.bfloat16):
            result = _run(self.units[start:stop], carry)
        return tuple(tensor.to(carry[0].dtype) for tensor in result)

    def client_part(self, cut: int) -> "ClientPart":
        """Units 1 … cut."""
        return ClientPart(self._slice(cut, 0, cut))

    def server_part(self, cut: int) -> "ServerPart":
        """Units cut+1 … M."""
        return ServerPart(self._slice(cut, cut, len(self.units)))

    def _slice(self, cut: int, start: int, stop: int) -> nn.ModuleDict:
        if not 1 <= cut < len(self.units):
            raise AsflError(f"cut = {cut}: a model of {len(self.units)} units can be cut at 1 … {len(self.units) - 1}")
        # Keyed by the position in the whole model, so a part's state_dict uses the whole model's names.
        return nn.ModuleDict({str(index): self.units[index] for index in range(start, stop)})


class ClientPart(nn.Module):
    """The client's side of a cut: images -> carry. Shares its units with the model, copies nothing."""

    def __init__(self, units: nn.ModuleDict) -> None:
        super().__init__()
        self.units = units

    def forward(self, x: Tensor) -> Carry:
        return _run(self.units.values(), (x,))


class ServerPart(nn.Module):
    """The server's side of a cut: carry -> logits. Shares its units with the model, copies nothing."""

    def __init__(self, units: nn.ModuleDict) -> None:
        super().__init__()
        self.units = units

    def forward(self, carry: Carry) -> Tensor:
        (logits,) = _run(self.units.values(), carry)
        return logits


def _run(units: Iterable[nn.Module], carry: Carry) -> Carry:
    for unit in units:
        carry = unit(carry)
    return carry
