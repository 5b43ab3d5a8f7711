"""By which rules a round is decided: the configuration's, with a number for every "auto"."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from asfl.config.errors import AsflError
from asfl.config.fields import Index, NonNegative, Share
from asfl.config.tree import DecisionRules
from asfl.costs.budgets import Budgets

FAIR_SHARE = 0.8
"""Of the average client's rounds, where it is decided how many take part: with less, the nearest clients' data rule."""


@dataclass(frozen=True)
class Switches:
    """Which decisions beyond the paper are made; all off is ASFL as published."""

    sync: bool = False
    """Whether, and how deep, client sides are averaged at the end of a round."""
    quant: bool = False
    """How many bits activations, gradients and layers cross with."""
    rate: bool = False
    """How many take part, by progress per second and joule instead of budgets per round."""
    mix: bool = False
    """The server makes a step with every mini-batch that arrives, each mixed from those of all clients; so a layer that
    lies with the server learns more in a round than one that lies with clients, and the cut is decided by that too."""

    @property
    def any(self) -> bool:
        return self.sync or self.quant or self.rate or self.mix


PUBLISHED = Switches()


class Rules(DecisionRules):
    """How a round is decided: the configuration's rules, with a number for every "auto" that a decision reads."""

    delay_budget_s: NonNegative
    energy_budget_j: NonNegative
    min_participants: Index
    participation_floor: Share
    relative_floor: bool = False
    """Whether the floor is a share of what the average client gets, instead of all rounds."""

    @classmethod
    def of(
        cls,
        rules: DecisionRules,
        num_clients: int,
        num_rbs: int,
        budgets: Budgets,
        switches: Switches = PUBLISHED,
        *,
        batteries: bool = False,
    ) -> Self:
        """Where "auto" is configured: half of the clients that can be served, and half of a fair share of the rounds
        for each.

        With whole blocks and N > K some clients sit out, and scheduling no client would be the cheapest round of all;
        the paper has neither number and needs both. If all who can be served had to be, N ≥ K would leave every client
        exactly one block, and nothing to allocate. Where it is decided how many take part, at least two do: from one
        alone the noise of gradients can't be measured. (A mix of two isn't one yet: there, as usual, half of those who
        can be served.) And each client gets `FAIR_SHARE` of what the average client does; but where batteries have a
        price, that says how often each client takes part.
        """
        most, floor = min(num_clients, num_rbs), rules.participation_floor
        usual = min(2, most) if switches.rate and not switches.mix else (most + 1) // 2
        least = usual if rules.min_participants == "auto" else rules.min_participants
        if least > most:
            raise AsflError(
                f"rules.min_participants = {least} is more than can be served: {num_clients} clients, {num_rbs} "
                "resource blocks"
            )
        relative = floor == "auto" and switches.rate
        if floor == "auto":
            floor = (0.0 if batteries else FAIR_SHARE) if relative else 0.5 * min(1.0, num_rbs / num_clients)
        found = {
            "delay_budget_s": budgets.delay_s,
            "energy_budget_j": budgets.energy_j,
            "outage_s": budgets.outage_s if np.isfinite(budgets.outage_s) else "off",
            "min_participants": least,
            "participation_floor": floor,
            "relative_floor": relative,
        }
        return cls(**rules.model_dump() | found)
