"""Virtual queues (paper §IV-A), and what being over budget costs a round: convex, nondecreasing functions.

The two forms of the problem differ only in these penalties. `drift`: half the growth of a squared queue, (33).
`per_round_budgets`: a weight so large on the normalised excess that violation comes before everything else, which makes
an infeasible round end in its least violation instead of an error.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.fields import NonNegative
from asfl.config.shapes import Each, Float, Floats

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
        following = np.maximum(self._offset + self._gain * np.asarray(amount), 0.0)
        with np.errstate(over="ignore"):  # on a link that is nearly dead: infinitely bad
            return np.asarray(0.5 * following * following - self._before)

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
