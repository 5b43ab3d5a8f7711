"""What being over budget costs: convex, nondecreasing functions of a delay or of energies.

Both forms of the problem differ only here. `drift`: half the growth of a squared queue, (33). `per_round_budgets`: a
weight so large on the normalised excess that violation comes before everything else, which makes an infeasible round
end in its least violation instead of an error.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Numbers = tuple[bool, float, float, float]


@runtime_checkable
class Penalty(Protocol):
    """Convex and nondecreasing; arrays broadcast over clients where the parameters do."""

    def value(self, amount: ArrayLike) -> Floats: ...


@runtime_checkable
class DelayPenalty(Penalty, Protocol):
    """A penalty of one number. The search calls these thousands of times, so they are plain Python."""

    def at(self, amount: float) -> float: ...

    def slope(self, amount: float) -> float:
        """Derivative from the right."""
        ...

    def support(self, low: float, price: float) -> float:
        """min over x ≥ low of value(x) − price · (x − low): the best linear bound from below."""
        ...

    @property
    def numbers(self) -> Numbers:
        """Whether it is a drift, and its three numbers: the same penalty for `asfl.optimize.compiled`."""
        ...


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

    def at(self, amount: float) -> float:
        following = max(float(self._offset) + self._gain * amount, 0.0)
        return 0.5 * following * following - float(self._before)

    def slope(self, amount: float) -> float:
        return max(float(self._offset) + self._gain * amount, 0.0) * self._gain

    def support(self, low: float, price: float) -> float:
        if self._gain == 0:
            return self.at(low)
        amount = max(low, (price / self._gain - float(self._offset)) / self._gain)
        return self.at(amount) - price * (amount - low)

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

    def at(self, amount: float) -> float:
        return max(amount - self.budget, 0.0) * float(self.weight) / self.scale

    def slope(self, amount: float) -> float:
        return float(self.weight) / self.scale if amount >= self.budget else 0.0

    def support(self, low: float, price: float) -> float:
        amount = max(low, self.budget)
        return self.at(amount) - price * (amount - low)

    @property
    def numbers(self) -> Numbers:
        return False, float(self.weight), float(self.budget), float(self.scale)


def budget_scale(budget: float, *, normalised: bool) -> float:
    """What an excess is divided by: the budget, so that weights mean the same for every model; 1 for a budget of 0."""
    return budget if normalised and budget > 0 else 1.0
