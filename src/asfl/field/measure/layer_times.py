"""How long each layer of a network takes on this machine, forward and backward.

FLOPs say little about time where layers are small or memory is slow. What a client measures once tells the server how
its time is shared among the layers; how fast the client is now, the server sees in every round.
"""

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.models.cuttable import Carry, CuttableModel, go_backward

PASSES = 4
"""The first is slow; of the others the fastest counts, layer by layer."""


def layer_seconds(model: CuttableModel, images: Tensor) -> NDArray[np.float64]:
    """[2, M] seconds of a mini-batch in each layer: forward, backward."""
    return np.asarray(np.min([_one_pass(model, images) for _ in range(PASSES)][1:], axis=0))


def _one_pass(model: CuttableModel, images: Tensor) -> NDArray[np.float64]:
    """Layer by layer: each begins from a copy of what the one before gave, as behind a cut, and goes back at once.

    So never more than one layer's activations and gradients are there. Which gradients go back doesn't matter.
    """
    carry: Carry = (images,)
    taken: list[tuple[float, float]] = []
    for unit in model.units:
        carry = tuple(tensor.detach().requires_grad_(bool(taken)) for tensor in carry)
        began = time.perf_counter()
        out = unit(carry)
        between = time.perf_counter()
        go_backward(out, tuple(torch.ones_like(tensor) for tensor in out))
        taken.append((between - began, time.perf_counter() - between))
        unit.zero_grad()
        carry = out
    return np.array(taken).T
