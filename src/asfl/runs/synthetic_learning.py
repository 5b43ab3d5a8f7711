"""A stand-in for the learning state, where client sides that drift apart aren't trained.

Every client's update has the same squared norm, spread over the layers by their number of parameters. Client sides
drift apart by a power law: after t rounds, with a of N clients arriving in each, the spread of a layer that lies on the
clients is, in updates,

    divergence · (its share of the parameters) · (1 − 1/N) · (a t / N)^exponent,

and it is 0 again for every layer that went through the server. The constants are fitted to recorded training, and how
far played rounds are from trained ones is measured with seeds that weren't fitted to:
`python -m studies.synthetic_learning` writes both into the file beside this one. It says nothing about accuracy.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asfl.models.profile import ModelProfile
from asfl.optimize import Learning
from asfl.optimize.problem import USUAL_ERROR, DriftAndNoise, precision_errors

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """How updates are made up."""

    divergence: float
    exponent: float
    lost_update: float = 1.0
    """What a lost update counts, in mean updates since the first round: those of warm-up were larger."""


@dataclass(frozen=True)
class HeldOut:
    """How far played rounds were from trained ones, on seeds that the constants weren't fitted to: means over runs."""

    runs: int
    delay: float
    """|played / trained − 1| of the mean over rounds; so is the energy."""
    energy: float
    cut: float | None
    """|played − trained| of the mean cut; None without one."""


@dataclass(frozen=True, eq=False)
class SyntheticLearning:
    """The state between two rounds."""

    layer_share: Floats = field(metadata={"fixed": True})
    """[M] share of all parameters."""
    layer_spread: Floats
    """[M]"""
    layer_age: Floats
    """[M] rounds since a layer was last averaged, and their sum: drift and debt of `DriftAndNoise`."""
    layer_debt: Floats
    num_clients: int = field(metadata={"fixed": True})
    drift: Drift = field(metadata={"fixed": True})
    weights_per_update: float = field(default=1000.0, metadata={"fixed": True})
    """An assumption, which only the printed objective reads."""
    noise_scale: float = field(default=64.0, metadata={"fixed": True})
    """B in mini-batches: the most that training believes, and what it measures in nearly every round of ours."""

    @classmethod
    def fresh(cls, profile: ModelProfile, num_clients: int, drift: Drift | None = None) -> Self:
        """`drift`: as fitted, unless another one is given."""
        share = profile.param_bits / max(float(profile.param_bits.sum()), 1.0)
        nothing = np.zeros(profile.num_layers)
        return cls(share, nothing, nothing, nothing, num_clients, drift or fitted())

    def learning(self) -> Learning:
        return Learning(
            layer_spread=self.layer_spread,
            layer_norm2=self.weights_per_update * self.layer_share,
            update_norm2=np.full(self.num_clients, self.drift.lost_update),
            update_scale=1.0,
            beyond=DriftAndNoise(self.layer_age, self.layer_debt, self.noise_scale, precision_errors(USUAL_ERROR)),
        )

    def after(self, cut: int, arrived: NDArray[np.bool_], synced: int = 0) -> Self:
        """The state after a round at this cut with these arrivals, in which so many layers were averaged."""
        layers = np.arange(1, len(self.layer_share) + 1)
        averaged = (layers <= synced) & arrived.any()
        on_clients = (layers <= cut) & ~averaged
        share_arrived = arrived.sum() / self.num_clients
        growth = self.drift.divergence * self.layer_share * share_arrived * (1 - 1 / self.num_clients)
        # The slope of the power law in the middle of this round.
        growth *= self.drift.exponent * (self.layer_age + share_arrived / 2) ** (self.drift.exponent - 1)
        return replace(
            self,
            layer_spread=np.where(on_clients, self.layer_spread + growth, 0.0),
            layer_age=np.where(on_clients, self.layer_age + share_arrived, 0.0),
            layer_debt=np.where(on_clients, self.layer_debt + self.layer_age, 0.0),
        )


FITTED = "synthetic_learning.json"


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(resources.files("asfl.runs").joinpath(FITTED).read_text("utf-8"))
    return table


def fitted() -> Drift:
    return Drift(**_table()["drift"])


def held_out() -> dict[str, HeldOut]:
    """By scheme; what was never trained has none."""
    return {scheme: HeldOut(**error) for scheme, error in _table()["held_out"].items()}


def held_out_as_json(schemes: Iterable[str]) -> dict[str, dict[str, float | None] | None]:
    known = held_out()
    return {name: asdict(known[name]) if name in known else None for name in schemes}


def held_out_in_words(schemes: Iterable[str]) -> str:
    """What is known of the error of played rounds, and of which schemes nothing is."""
    known, names = held_out(), list(dict.fromkeys(schemes))
    told = [
        f"{name} {100 * known[name].delay:.0f} % of delay, {100 * known[name].energy:.0f} % of energy"
        + ("" if known[name].cut is None else f", mean cut off by {known[name].cut:.1f}")
        for name in names
        if name in known
    ]
    never = ", ".join(name for name in names if name not in known)
    parts = [f"Nothing is trained. Held-out error: {'; '.join(told) or 'unknown'}."]
    return " ".join([*parts, f"Never compared with training: {never}."] if never else parts)
