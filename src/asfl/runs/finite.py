"""Nothing is saved that no run could go on from, and no model that says nothing."""

from collections.abc import Mapping

import torch
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.runs.watching import DIVERGED

_MAY_BE_ANYTHING = ("signals.", "accountant.", "fleet.", "radio.time_left_s", "radio.battery_left_j")
"""What isn't known yet, or has no limit."""


def check_finite(tensors: Mapping[str, Tensor], rounds: int) -> None:
    """Refuse a state, or a model, after so many rounds."""
    for name, tensor in tensors.items():
        if name.startswith(_MAY_BE_ANYTHING) or not tensor.is_floating_point():
            continue
        if not torch.isfinite(tensor).all():
            raise AsflError(
                f"after round {rounds}: {DIVERGED}, {name} has numbers that are not finite; it is not saved, and the "
                "checkpoint before is whole"
            )
