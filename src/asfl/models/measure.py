"""Where a profile's numbers come from: every unit run once, forward and backward, without any data."""

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from asfl.config.errors import AsflError
from asfl.config.names import ModelSpec
from asfl.config.units import BITS_PER_VALUE
from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
from asfl.models.build import build_model
from asfl.models.cuttable import Carry
from asfl.models.profile import ModelProfile

_BATCH = 2
"""Batch norm can't train on a single value per channel; every count is proportional to the batch."""


def measure_profile(spec: ModelSpec) -> ModelProfile:
    """ψ, q, v^FP and v^BP of every unit (section II of the paper), for one sample; all are whole numbers.

    - `param_bits`: the unit's parameters; `statistic_bits`: its running statistics, which are none.
    - `activation_bits`: the whole carry behind the unit, a skip tensor included.
    - `forward_flops`: 2·MAC of its convolutions and matrix products, all that PyTorch's counter counts; norm,
      activation, pooling, bias and the addition of the skip are left out.
    - `backward_flops`: the same for the gradients of the parameters and of the unit's input. The first unit's
      input is the image, which needs no gradient: its backward pass costs 1×, all others 2× the forward pass.
    - groups: as `asfl.train.quantise` makes them.
    """
    with torch.device("meta"):
        model = build_model(spec)
        carry: Carry = (torch.empty(_BATCH, *INPUT_SHAPE[spec.dataset]),)

    rows: list[tuple[int, ...]] = []
    for index, unit in enumerate(model.units):
        # Cut off from the unit before it: the gradient flows into this unit's input, and no further.
        carry = tuple(tensor.detach().requires_grad_(index > 0) for tensor in carry)
        with FlopCounterMode(display=False) as forward:
            carry = unit(carry)
        with FlopCounterMode(display=False) as backward:
            torch.autograd.backward(carry, [torch.ones_like(tensor) for tensor in carry])
        rows.append(
            (
                BITS_PER_VALUE * sum(parameter.numel() for parameter in unit.parameters()),
                BITS_PER_VALUE * sum(tensor[0].numel() for tensor in carry),
                _per_sample(forward),
                _per_sample(backward),
                sum(len(parameter) if parameter.dim() > 1 else 1 for parameter in unit.parameters()),
                sum(tensor.shape[1] for tensor in carry if tensor[0, 0].numel() > 1),
                sum(tensor[0, 0].numel() == 1 for tensor in carry),
                BITS_PER_VALUE * sum(own.numel() for own in unit.buffers() if own.is_floating_point()),
            )
        )
    shapes, wanted = [tuple(tensor.shape[1:]) for tensor in carry], (NUM_CLASSES[spec.dataset],)
    if shapes != [wanted]:
        raise AsflError(f"model {spec.name}: its last unit must give one tensor {wanted} a sample, but gives {shapes}")
    param_bits, activation_bits, forward_flops, backward_flops, *beside = np.array(rows, dtype=float).T
    return ModelProfile(
        param_bits, activation_bits, forward_flops, backward_flops, spec.name, model.unit_names, *beside
    )  # fmt: skip


def _per_sample(counter: FlopCounterMode) -> int:
    total = int(counter.get_total_flops())
    assert total % _BATCH == 0, "FLOPs must be proportional to the batch"
    return total // _BATCH
