"""SGD, momentum and Adam on flat vectors.

Every holder of a layer, be it a client or the server, has its own optimiser state for it and keeps that when the layer
moves away: state never crosses the link, so it costs nothing. When the layer comes back, its holder
goes on from the state it had; a holder that has a layer for the first time starts from nothing, as always. A client
counts its own steps of each layer, because Adam's bias correction depends on them.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Name = Literal["sgd", "momentum", "adam"]
_ALIGNMENT = 64
"""Bytes; PyTorch begins new tensors at multiples of it."""


@dataclass(frozen=True)
class Sgd:
    """One step, (2) on the server and (3) on a client: weights ← weights − update.

    Every rule changes weights [P] and moments [num_moments, P] in place; `steps` counts from 1. It returns ‖update‖².
    """

    learning_rate: float
    num_moments: int = 0

    def step(self, weights: Tensor, gradient: Tensor, moments: Tensor, steps: int) -> Tensor:
        weights.add_(gradient, alpha=-self.learning_rate)
        return _squared_norm(gradient).mul_(self.learning_rate**2)


@dataclass(frozen=True)
class Momentum:
    """v ← μ v + g, w ← w − η v (PyTorch's SGD with momentum)."""

    learning_rate: float
    momentum: float = 0.9
    num_moments: int = 1

    def step(self, weights: Tensor, gradient: Tensor, moments: Tensor, steps: int) -> Tensor:
        velocity = moments[0]
        velocity.mul_(self.momentum).add_(gradient)
        weights.add_(velocity, alpha=-self.learning_rate)
        return _squared_norm(velocity).mul_(self.learning_rate**2)


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba; defaults as everywhere."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    num_moments: int = 2

    def step(self, weights: Tensor, gradient: Tensor, moments: Tensor, steps: int) -> Tensor:
        mean, square = moments[0], moments[1]
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        size = self.learning_rate / (1 - self.beta1**steps)
        direction = square.sqrt()
        direction.div_((1 - self.beta2**steps) ** 0.5).add_(self.epsilon)
        torch.div(mean, direction, out=direction)
        weights.add_(direction, alpha=-size)
        return _squared_norm(direction).mul_(size**2)


Rule = Sgd | Momentum | Adam


def _squared_norm(vector: Tensor) -> Tensor:
    """‖vector‖², the same bits wherever in memory the vector begins: MKL's dot product rounds by that."""
    if vector.data_ptr() % _ALIGNMENT:
        vector = vector.clone()
    return torch.dot(vector, vector)


def rule_named(name: Name, learning_rate: float) -> Rule:
    rules: dict[Name, type[Sgd] | type[Momentum] | type[Adam]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}
    return rules[name](learning_rate)


@dataclass
class OptimizerState:
    """One holder's moments [num_moments, P'] of the first units, and how often it has stepped each unit [M]."""

    moments: Tensor
    steps: NDArray[np.int64]

    def clone(self) -> "OptimizerState":
        return OptimizerState(self.moments.clone(), self.steps.copy())


@torch.no_grad()
def step_units(
    rule: Rule, edges: NDArray[np.int64], weights: Tensor, gradient: Tensor, state: OptimizerState, units: range
) -> Tensor:
    """Step units that lie between these edges [M+1] once; returns ‖update‖².

    Units with the same number of steps go together.
    """
    squared_norm = weights.new_zeros(())
    first, stop = units.start, units.stop
    state.steps[first:stop] += 1
    while first < stop:
        last = first + 1
        while last < stop and state.steps[last] == state.steps[first]:
            last += 1
        a, b = int(edges[first]), int(edges[last])
        if b > a:
            squared_norm += rule.step(weights[a:b], gradient[a:b], state.moments[:, a:b], int(state.steps[first]))
        first = last
    return squared_norm
