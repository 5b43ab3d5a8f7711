"""What Theorem 1 speaks of, measured where the average model is: its gradient, and the constants that are assumed.

The server takes two parts of a mini-batch of each client from its own copy of the data, as for an evaluation: nothing
crosses, and training notices nothing. The parts are drawn apart, so products of their gradients g and g' are unbiased:
E⟨ḡ, ḡ'⟩ = ‖∇F(w̄)‖² and E‖g − g'‖² = 2σ² of a part. L is taken along each client's own gradient, a step of a
thousandth of the model's length away; it is a largest difference that was seen, so no more than a lower estimate.

An optimiser that remembers makes steps −D m: momentum with D = η/(1−μ), Adam with D = η/(√v̂ + ε) for each number and
m the mean of past gradients. For these the round's largest and smallest D, ‖m‖²_D, ‖D m‖² and how far m is from ∇F
are measured, too, in the norm ‖x‖²_D = Σ D x² (`asfl.results.theory.preconditioned_gradient_bound` says what for).
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asfl.models.cuttable import CuttableModel
from asfl.train.batches import Batches
from asfl.train.layout import Layout, ModelVectors, Replica
from asfl.train.optimizers import Adam, Momentum, OptimizerState, Rule
from asfl.train.state import TrainingState

Bools = NDArray[np.bool_]
STEP = 1e-3
"""Of the model's length: how far away the gradient is taken again."""


def is_due(round_number: int, evaluate_every: int) -> bool:
    """At the 1st, 4th, 9th, 16th … evaluation: often while much changes, and cheap in the long run."""
    evaluations, rest = divmod(round_number, evaluate_every)
    return rest == 0 and math.isqrt(evaluations) ** 2 == evaluations


class Gradients:
    """Measures with a replica of the network."""

    def __init__(self, model: CuttableModel, layout: Layout, batches: Batches, rule: Rule) -> None:
        self._model, self._layout, self._batches, self._rule = model, layout, batches, rule

    def measure(self, state: TrainingState, arrived: Bools, index: int) -> dict[str, float]:
        """After a round in which these clients arrived; what isn't a finite number is left out."""
        average, weights = state.average_model().clone(), state.weights
        p = average.parameters
        replica = Replica(self._model, self._layout, p.device, p.dtype)
        means, losses = [torch.zeros_like(p), torch.zeros_like(p)], 0.0
        noise2 = norm2 = smoothness = 0.0
        away = STEP * float(p.norm())
        for client, weight in enumerate(weights):
            share = float(weight) / len(weights)
            parts = self._batches.for_gradients(index, client)
            gradients = []
            for part, mean in zip(parts, means, strict=True):
                loss, gradient = self._gradient(replica, average, part)
                gradients.append(gradient)
                mean.add_(gradient, alpha=share)
                losses += share * loss / 2
            whole = self._batches.batch_size / len(parts[0][1])  # how many parts make a mini-batch
            noise2 = max(noise2, float((gradients[0] - gradients[1]).square().sum()) / 2 / whole)
            norm2 = max(norm2, float((gradients[0] + gradients[1]).square().sum()) / 4)
            length = float(gradients[0].norm())
            if length > 0 and away > 0:
                there = ModelVectors(p - gradients[0] * (away / length), average.statistics)
                _, gradient = self._gradient(replica, there, parts[0])
                smoothness = max(smoothness, float((gradient - gradients[0]).norm()) / away)
        found = {
            "norm2": float(means[0] @ means[1]), "loss": losses, "noise2": noise2, "client_norm2": norm2,
            "smoothness": smoothness, **self._steps(state, arrived, means),
        }  # fmt: skip
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _gradient(self, replica: Replica, at: ModelVectors, part: tuple[Tensor, Tensor]) -> tuple[float, Tensor]:
        """Loss and gradient of the whole network, in training mode; its running statistics stay as they are."""
        gradient = torch.zeros_like(at.parameters)
        replica.bind(ModelVectors(at.parameters, at.statistics.clone()), gradient, 0, self._layout.num_units)
        (logits,) = replica.run((part[0],), 0, self._layout.num_units)
        loss = F.cross_entropy(logits, part[1])
        torch.autograd.backward(loss)
        return float(loss.detach()), gradient

    def _steps(self, state: TrainingState, arrived: Bools, means: list[Tensor]) -> dict[str, float]:
        """Of the round's steps −D m; nothing of an optimiser without memory, or if no client arrived."""
        if self._rule.num_moments == 0 or not arrived.any():
            return {}
        ranges = [
            (float(rates.min()), float(rates.max()))
            for _, _, m, d in self._blocks(state, arrived)
            if len(rates := d[m != 0])
        ]
        if not ranges:
            return {}
        least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
        misaligned = moved = length2 = 0.0
        for share, here, m, d in self._blocks(state, arrived):
            # What doesn't move may have any rate.
            d = torch.where(m != 0, d, least).double()
            first, second = (mean[here].double() - m for mean in means)
            misaligned += share * float((d * first * second).sum())
            moved += share * float((d * m.double().square()).sum())
            length2 += share * float((d * m).square().sum())
        found = {"smallest_rate": least, "largest_rate": most}
        return {**found, "misaligned": misaligned, "moved": moved, "length2": length2}

    def _blocks(self, state: TrainingState, arrived: Bools) -> Iterator[tuple[float, slice, Tensor, Tensor]]:
        """m and D of each layer and holder: the server's, and those of the clients that arrived, by their share."""
        holders: list[tuple[float, OptimizerState, range]] = [
            (1.0, state.server_optimizer, range(state.cut, self._layout.num_units))
        ]
        for client in np.flatnonzero(arrived).tolist():
            share = float(state.weights[client]) / state.num_clients
            holders.append((share, state.client_optimizer(client), range(state.cut)))
        for share, memory, units in holders:
            for unit in units:
                here = slice(*map(int, self._layout.parameter_edges[unit : unit + 2]))
                if memory.steps[unit] and here.stop > here.start:
                    yield share, here, *direction_and_rate(self._rule, memory.moments[:, here], int(memory.steps[unit]))


def direction_and_rate(rule: Rule, moments: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """m and D of the latest step −D m of a rule that remembers."""
    if isinstance(rule, Adam):
        size = (moments[1] / (1 - rule.beta2**steps)).sqrt().add_(rule.epsilon)
        return moments[0] / (1 - rule.beta1**steps), rule.learning_rate / size
    assert isinstance(rule, Momentum)
    rate = rule.learning_rate / (1 - rule.momentum)
    return moments[0] * (1 - rule.momentum), torch.full_like(moments[0], rate)
