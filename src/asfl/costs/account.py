"""What a round is charged, once it has been trained: by the cost equations, or (`asfl.field`) by clocks and meters. And
what is left then of a total time and of the clients' batteries (`RemainingBudget`).

Total budgets are the same for every scheme. A client whose battery gives out in a round has lost its packet, is charged
what it had, and takes part no more. The round in which the time runs out ends there: it takes what was left, and no
packet counts. A run is over when its time is, or when every battery is empty.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.randomness import random_stream
from asfl.costs.decision import Decision
from asfl.costs.modelled import ExchangeRules, RoundCost, round_cost
from asfl.costs.round import Round

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Facts = dict[str, list[float | None]]


class Charge(Protocol):
    """The bill of a round: a `RoundCost`, or what was measured."""

    @property
    def delay_s(self) -> Floats | float: ...
    @property
    def resplit_delay_s(self) -> Floats | float: ...
    @property
    def uplink_stage_delay_s(self) -> Floats | float: ...
    @property
    def server_stage_delay_s(self) -> Floats | float: ...
    @property
    def energy_j(self) -> Floats: ...
    @property
    def resplit_energy_j(self) -> Floats: ...
    @property
    def packet_error_rate(self) -> Floats: ...


class Accountant(Protocol):
    """Charges rounds. One that measures starts its clock when training begins."""

    def training_begins(self) -> None:
        """What follows takes the time that is charged."""

    def charge(self, round_: Round, decision: Decision, exchange: ExchangeRules, arrived: Bools) -> Charge:
        """The bill of the round that was just trained."""

    def facts(self) -> Facts | None:
        """What was learnt of the clients so far, for the record of a round."""


@dataclass(frozen=True)
class ModelledAccountant:
    """Charges what the equations say: for what happened or, as in the paper, its expectation."""

    basis: Literal["realised", "expected"] = "realised"

    def training_begins(self) -> None:
        pass

    def charge(self, round_: Round, decision: Decision, exchange: ExchangeRules, arrived: Bools) -> RoundCost:
        return round_cost(round_, decision, None if self.basis == "expected" else arrived, exchange)

    def facts(self) -> Facts | None:
        return None


def draw_arrivals(round_: Round, decision: Decision, seed: int) -> Bools:
    """[N] whose packet survives the channel. One uniform number per client and round, the same for every scheme.

    On a real network nothing is drawn: all are expected, and the server sees which clients don't answer.
    """
    if round_.allocation is not None:
        return decision.scheduled
    luck = random_stream(seed, "arrivals", round_.index).random(round_.num_clients)
    lost = round_.packet_error_rate(decision.rb_count, decision.tx_power_w)
    return np.asarray(decision.scheduled & (luck >= lost))


# ---------------------------------------------------------------------- total budgets

NOTHING = 1e-9
"""Less than this share of a budget is rounding, and nothing is left."""


@dataclass(frozen=True, eq=False)
class RemainingBudget:
    """What all rounds together may take, and what is left of it. Infinite: no limit."""

    time_s: float = field(metadata={"fixed": True})
    battery_j: Floats = field(metadata={"fixed": True})
    """[N]"""
    time_left_s: float
    battery_left_j: Floats
    """[N]"""
    rounds: int = field(metadata={"fixed": True})
    """How many there may be at most."""

    @classmethod
    def of(cls, config: Config) -> "RemainingBudget | None":
        """When a run begins; None without a total budget."""
        time_s, battery_j = config.budget.total_delay_s, config.budget.battery_j
        if time_s == "off" and battery_j == "off":
            return None
        time = np.inf if time_s == "off" else time_s
        batteries = np.broadcast_to(np.inf if battery_j == "off" else battery_j, config.scenario.clients).astype(float)
        return cls(time, batteries, time, batteries, config.training.rounds)

    @property
    def empty(self) -> Bools:
        """[N] who can't take part any more."""
        return self.battery_left_j <= 0

    @property
    def used_up(self) -> bool:
        """Whether there can't be another round."""
        return self.time_left_s <= 0 or bool(self.empty.all())

    def reachable(self, round_: Round) -> Round:
        """The round as it is with some batteries empty: nothing is heard of these clients."""
        return replace(round_, channel_gain=np.where(self.empty, 0.0, round_.channel_gain))

    def without_empty(self, decision: Decision) -> Decision:
        """No blocks for empty clients, whatever scheme decided."""
        return replace(decision, rb_count=np.where(self.empty, 0.0, decision.rb_count))

    def outlast(self, cost: RoundCost) -> Bools:
        """[N] who has both battery and time until the end of a round with this cost."""
        return np.asarray((cost.energy_j <= self.battery_left_j) & (cost.delay_s <= self.time_left_s))

    def cut_off(self, cost: RoundCost) -> RoundCost:
        """What a round costs until batteries and time run out, stage by stage."""
        delays = ("resplit_delay_s", "uplink_stage_delay_s", "server_stage_delay_s")
        energies = (
            "resplit_energy_j",
            "client_forward_energy_j",
            "uplink_energy_j",
            "client_backward_energy_j",
            "model_up_energy_j",
        )
        until = _until(cost, delays, np.asarray(self.time_left_s)) | _until(cost, energies, self.battery_left_j)
        return replace(cost, **until)

    def after(self, charge: Charge) -> "RemainingBudget":
        """After a round that was charged this."""
        time_left_s = self.time_left_s - float(charge.delay_s)
        left_j = self.battery_left_j - charge.energy_j
        return replace(
            self,
            time_left_s=time_left_s if time_left_s > NOTHING * self.time_s or self.time_s == np.inf else 0.0,
            battery_left_j=np.where((left_j > NOTHING * self.battery_j) | (self.battery_j == np.inf), left_j, 0.0),
        )

    def record(self) -> dict[str, Any]:
        """For the record of a round: what is left of that which is limited."""
        limited = np.isfinite(self.battery_j).all()
        return {
            "time_left_s": self.time_left_s if np.isfinite(self.time_s) else None,
            "battery_left_j": self.battery_left_j.tolist() if limited else None,
        }


def _until(cost: RoundCost, parts: tuple[str, ...], left: Floats) -> dict[str, Any]:
    """Parts of a cost, one after the other, until nothing is left."""
    taken = {}
    for name in parts:
        taken[name] = np.minimum(getattr(cost, name), left)
        left = np.where(np.isfinite(left), left - taken[name], left)
    return taken
