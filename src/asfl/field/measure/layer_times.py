"""How long each layer of a network takes on this machine, forward and backward.

FLOPs say little about time where layers are small or memory is slow. What a client measures once tells the server how
its time is shared among the layers; how fast the client is now, the server sees in every round.
"""

import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asfl.models.cuttable import Carry, CuttableModel, go_backward

PASSES = 4
"""The first is slow; of the others the fastest counts, layer by layer."""


def layer_seconds(model: CuttableModel, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """[2, M] seconds of a mini-batch in each layer: forward, backward."""
    return np.asarray(np.min([_one_pass(model, images, labels) for _ in range(PASSES)][1:], axis=0))


def _one_pass(model: CuttableModel, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Layer by layer: each begins from a copy of what the one before gave, as behind a cut."""
    inputs: list[Carry] = []
    outputs: list[Carry] = []
    carry: Carry = (images,)
    moments = [time.perf_counter()]
    for unit in model.units:
        carry = tuple(tensor.detach().requires_grad_(bool(inputs)) for tensor in carry)
        inputs.append(carry)
        carry = unit(carry)
        outputs.append(carry)
        moments.append(time.perf_counter())
    forward = [b - a for a, b in pairwise(moments)]

    backward: list[float] = []
    gradients: Carry = torch.autograd.grad(F.cross_entropy(carry[0], labels), carry[0])
    for given, out in zip(reversed(inputs), reversed(outputs), strict=True):
        began = time.perf_counter()
        go_backward(out, gradients)
        gradients = tuple(tensor.grad for tensor in given if tensor.grad is not None)
        backward.append(time.perf_counter() - began)
    return np.array([forward, backward[::-1]])
