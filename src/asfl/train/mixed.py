"""A step of the server with every mini-batch that arrives, each mixed from those of all clients.

When A mini-batches of b samples have arrived, the server has A · b activations and their labels. One step with their
mean gradient is one step with a very large batch. Instead it deals them out again: mini-batch j has the samples j, j +
A, j + 2A … of every client, so it is about as large as one client's and has the labels of all; the server makes a step
with each. (Where that would leave a mini-batch with one sample of a client, there are fewer.) It computes as much as
before, nothing more crosses, and every client still gets the gradient of each of its samples: with the server as it was
when the sample's turn came.

So the server learns as if all data were in one place, but for the layers before the cut, which make one step a round.
(Servers that train on the activations of all clients: Huang et al., "When MiniBatch SGD Meets SplitFed Learning",
arXiv:2308.11953; Wang et al., "CycleSL", arXiv:2511.18611.) These steps are √A₀ times as long, with A₀ clients that can
be served: the square-root rule for Adam with as many times the samples (Malladi et al., "On the SDEs and Scaling Rules
for Adaptive Gradient Algorithms").

Batch norm sees a mixed mini-batch as one, so its statistics are those of all clients.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config import Config
from asfl.costs.modelled import ExchangeRules
from asfl.train.combine import Floats
from asfl.train.layout import Layout, ModelVectors
from asfl.train.noise import GradientNorms, GradientParts
from asfl.train.optimizers import OptimizerState, Rule, step_units

Ints = NDArray[np.int64]


def client_learning_rate(config: Config, exchange: ExchangeRules) -> float:
    """η of client sides."""
    rate = config.training.learning_rate
    if not exchange.mixes:
        return rate
    return rate * math.sqrt(min(config.scenario.clients, config.radio.num_rbs))


class ServerSteps:
    """The server's side of a mixed round: steps that can be taken back."""

    def __init__(
        self,
        layout: Layout,
        rule: Rule,
        server: ModelVectors,
        optimizer: OptimizerState,
        gradient: Tensor,
        cuts: Ints,
        weights: Floats,
    ) -> None:
        """`gradient` is where the server's pass leaves one; `cuts` and `weights` [A] are of those who are asked."""
        self.server, self.weights = server, weights
        self._layout, self._rule, self._optimizer, self._gradient, self._cuts = layout, rule, optimizer, gradient, cuts
        self._before, self._optimizer_before = server.clone(), optimizer.clone()
        watched = slice(int(layout.parameter_edges[int(cuts.max())]), None)
        self._watched, self._sum = gradient[watched], gradient[watched].clone().zero_()
        self._noise = GradientParts(self._sum)

    @property
    def parameters_before(self) -> Tensor:
        return self._before.parameters

    def step(self, passed: list[int]) -> None:
        """With the gradient's mean over those who passed, layer by layer over those whose layer the server holds."""
        layout, cuts = self._layout, self._cuts[passed]
        lowest = int(cuts.min())
        layout.divide_(self._gradient, layout.on_server(cuts, self.weights[passed]), lowest)
        self._sum.add_(self._watched)
        self._noise.add(1)
        weights, units = self.server.parameters, layout.num_units
        with torch.no_grad():
            step_units(self._rule, layout, weights, self._gradient, self._optimizer, lowest, units)
        self._gradient[layout.parameter_edges[lowest] :].zero_()

    def take_back(self) -> None:
        """Everything is as it was before the first step."""
        self.server.copy_(self._before)
        self._optimizer.moments.copy_(self._optimizer_before.moments)
        self._optimizer.steps[:] = self._optimizer_before.steps
        self._gradient.zero_()
        self._noise = GradientParts(self._sum.zero_())

    def norms(self) -> GradientNorms | None:
        """Of the steps' gradients; None if there was only one."""
        return self._noise.norms()
