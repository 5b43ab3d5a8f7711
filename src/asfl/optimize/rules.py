"""By which rules a round is decided (the configuration's, with a number for every "auto"), virtual queues (§IV-A),
and what being over budget costs a round: convex, nondecreasing functions.

The two forms of the problem differ only in these penalties. `drift`: half the growth of a squared queue, (33).
`per_round_budgets`: a weight so large on the normalised excess that violation comes before everything else, which makes
an infeasible round end in its least violation instead of an error.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from asfl.config.errors import AsflError
from asfl.config.fields import Index, NonNegative, Share, explain
from asfl.config.shapes import Each, Float, Floats
from asfl.config.tree import DecisionRules
from asfl.costs.world import Budgets

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
        try:
            return cls(**rules.model_dump() | found)
        except ValidationError as error:  # budgets that are found may be numbers that no configuration could have
            raise AsflError(explain(error, cls)) from None


# ---------------------------------------------------------------------- queues and penalties
QueueRule = Literal["printed", "standard"]
Numbers = tuple[bool, float, float, float]
"""A delay penalty for compiled code: whether it is a drift, and its three numbers."""


@dataclass(frozen=True, eq=False)
class Queues:
    """Backlogs at the start of a round, all ≥ 0: how far rounds have been over budget so far."""

    delay: NonNegative
    """Q_0."""
    energy: Annotated[Float[Floats, "clients"], Each(NonNegative)]
    """Q_n."""
    participation: Annotated[Float[Floats, "clients"], Each(NonNegative)]
    """Not in the paper: rounds each client has been owed."""

    @classmethod
    def empty(cls, num_clients: int) -> "Queues":
        return cls(0.0, np.zeros(num_clients), np.zeros(num_clients))


def next_queues(
    queues: Queues,
    delay_excess: float,
    energy_excess: Floats,
    scheduled: NDArray[np.bool_],
    *,
    rule: QueueRule,
    memory: float,
    participation_floor: float,
) -> Queues:
    """Backlogs after a round.

    `printed` (32): Q ← max(μQ + (1−μ)g, 0), which forgets, so that a bounded queue only bounds the *weighted recent*
    excess. `standard`: Q ← max(Q + g, 0), whose mean rate stability implies the long-run budget. Participation always
    follows the standard rule, since every missed round counts: Z ← max(Z + floor − served, 0).
    """
    keep, add = queue_weights(rule, memory)
    return Queues(
        delay=max(keep * queues.delay + add * delay_excess, 0.0),
        energy=np.maximum(keep * queues.energy + add * energy_excess, 0.0),
        participation=np.maximum(queues.participation + participation_floor - scheduled, 0.0),
    )


def queue_weights(rule: QueueRule, memory: float) -> tuple[float, float]:
    """How much of the old backlog stays and how much of the new excess is added."""
    return (memory, 1.0 - memory) if rule == "printed" else (1.0, 1.0)


def budget_scale(budget: float, *, normalised: bool) -> float:
    """What an excess is divided by: the budget, so that weights mean the same for every model; 1 for a budget of 0."""
    return budget if normalised and budget > 0 else 1.0


class QueueDrift:
    """½(Q⁺² − Q²) with Q⁺ = max(keep·Q + add·(x − budget)/scale, 0); Q may be one number or one per client."""

    def __init__(self, backlog: float | Floats, keep: float, add: float, budget: float, scale: float) -> None:
        self._gain = add / scale
        self._offset = keep * backlog - self._gain * budget  # Q⁺ = max(offset + gain · x, 0)
        self._before = 0.5 * backlog * backlog

    def value(self, amount: ArrayLike) -> Floats:
        following = np.asarray(self._gain * np.asarray(amount) + self._offset)
        np.maximum(following, 0.0, out=following)
        with np.errstate(over="ignore"):  # on a link that is nearly dead: infinitely bad
            following *= following
        following *= 0.5
        following -= self._before
        return following

    @property
    def numbers(self) -> Numbers:
        return True, float(self._gain), float(self._offset), float(self._before)


@dataclass(frozen=True, eq=False)
class HardBudget:
    """weight · max(0, (x − budget)/scale); with a budget of 0 a price per second or joule."""

    weight: float | Floats
    """One number, or one per client."""
    budget: float
    scale: float

    def value(self, amount: ArrayLike) -> Floats:
        return np.asarray(np.maximum(np.asarray(amount) - self.budget, 0.0) * (self.weight / self.scale))

    @property
    def numbers(self) -> Numbers:
        return False, float(self.weight), float(self.budget), float(self.scale)


Penalty = QueueDrift | HardBudget
"""Of a delay, or of each client's energy."""
