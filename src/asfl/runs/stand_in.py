"""A stand-in for the learning state, where client sides that drift apart aren't trained.

Every client's update has the squared norm 1, spread over the layers by their number of parameters. A share of it is
the client's own (`divergence`), the rest is common to all. So with a of N clients arriving, the expected spread of a
layer that lies on the clients grows by divergence · (its share of the parameters) · a/N · (1 − 1/N) a round, and it is
0 again for every layer that went through the server. Weights have a constant squared norm, `weights_per_update` times
an update's. It says nothing about accuracy.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from asfl.models.profile import ModelProfile
from asfl.optimize import Learning
from asfl.optimize.problem import USUAL_ERROR, BeyondLearning, precision_errors

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StandIn:
    """The state between two rounds."""

    layer_share: Floats
    """[M] share of all parameters."""
    layer_spread: Floats
    """[M]"""
    layer_age: Floats
    """[M] rounds since a layer was last averaged, and their sum: drift and debt of `BeyondLearning`."""
    layer_debt: Floats
    num_clients: int
    divergence: float = 0.5
    weights_per_update: float = 1000.0
    noise_scale: float = 64.0
    """B in mini-batches: the most that training believes, and what it measures in nearly every round of ours."""

    @classmethod
    def fresh(cls, profile: ModelProfile, num_clients: int, divergence: float = 0.5) -> Self:
        share = profile.param_bits / max(float(profile.param_bits.sum()), 1.0)
        nothing = np.zeros(profile.num_layers)
        return cls(share, nothing, nothing, nothing, num_clients, divergence)

    def learning(self) -> Learning:
        return Learning(
            layer_spread=self.layer_spread,
            layer_norm2=self.weights_per_update * self.layer_share,
            update_norm2=np.ones(self.num_clients),
            update_scale=1.0,
            beyond=BeyondLearning(self.layer_age, self.layer_debt, self.noise_scale, precision_errors(USUAL_ERROR)),
        )

    def after(self, cut: int, arrived: NDArray[np.bool_], synced: int = 0) -> Self:
        """The state after a round at this cut with these arrivals, in which so many layers were averaged."""
        layers = np.arange(1, len(self.layer_share) + 1)
        averaged = (layers <= synced) & arrived.any()
        on_clients = (layers <= cut) & ~averaged
        share_arrived = arrived.sum() / self.num_clients
        growth = self.divergence * self.layer_share * share_arrived * (1 - 1 / self.num_clients)
        return replace(
            self,
            layer_spread=np.where(on_clients, self.layer_spread + growth, 0.0),
            layer_age=np.where(on_clients, self.layer_age + share_arrived, 0.0),
            layer_debt=np.where(on_clients, self.layer_debt + self.layer_age, 0.0),
        )
