"""What a round is charged, once it has been trained: by the cost equations, or (`asfl.field`) by clocks and meters."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

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
    """Charges rounds. One that measures starts its clock when training begins, and remembers what it has learnt."""

    def training_begins(self) -> None:
        """What follows takes the time that is charged."""

    def charge(self, round_: Round, decision: Decision, exchange: ExchangeRules, arrived: Bools) -> Charge:
        """The bill of the round that was just trained."""

    def facts(self) -> Facts | None:
        """What was learnt of the clients so far, for the record of a round."""

    def arrays(self) -> dict[str, Floats]:
        """What has to survive between two rounds; `restore` takes it back."""

    def restore(self, arrays: dict[str, Floats]) -> None: ...


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

    def arrays(self) -> dict[str, Floats]:
        return {}

    def restore(self, arrays: dict[str, Floats]) -> None:
        pass


def draw_arrivals(round_: Round, decision: Decision, seed: int) -> Bools:
    """[N] whose packet survives the channel. One uniform number per client and round, the same for every scheme.

    On a real network nothing is drawn: all are expected, and the server sees which clients don't answer.
    """
    if round_.allocation is not None:
        return decision.scheduled
    luck = random_stream(seed, "arrivals", round_.index).random(round_.num_clients)
    lost = round_.packet_error_rate(decision.rb_count, decision.tx_power_w)
    return np.asarray(decision.scheduled & (luck >= lost))
