"""What being over budget costs: convex, nondecreasing functions of a delay or of energies.

Both forms of the problem differ only here. `drift`: half the growth of a squared queue, (33). `per_round_budgets`: a
weight so large on the normalised excess that violation comes before everything else, which makes an infeasible round
end in its least violation instead of an error.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Penalty(Protocol):
    """Convex and nondecreasing; arrays broadcast over clients where the parameters do."""

    def value(self, amount: ArrayLike) -> Floats: ...

    def slope(self, amount: float) -> float:
        """Derivative from the right (scalar penalties only)."""
        ...

    def support(self, low: float, price: float) -> float:
        """min over x ≥ low of value(x) − price · (x − low): the best linear bound from below (scalar only)."""
        ...

    def kink(self) -> Floats:
        """Below this amount the penalty is flat."""
        ...


@dataclass(frozen=True, eq=False)
class QueueDrift:
    """½(Q⁺² − Q²) with Q⁺ = max(keep·Q + add·(x − budget)/scale, 0)."""

    backlog: Floats
    keep: float
    add: float
    budget: float
    scale: float

    def value(self, amount: ArrayLike) -> Floats:
        following = np.maximum(self.keep * self.backlog + self._gain * (np.asarray(amount) - self.budget), 0.0)
        return np.asarray(0.5 * (following * following - self.backlog * self.backlog))

    def slope(self, amount: float) -> float:
        return float(max(self.keep * self.backlog + self._gain * (amount - self.budget), 0.0) * self._gain)

    def support(self, low: float, price: float) -> float:
        if self._gain == 0:
            return float(self.value(low))
        touching = self.budget + (price / self._gain - float(self.keep * self.backlog)) / self._gain
        amount = max(low, touching)
        return float(self.value(amount)) - price * (amount - low)

    def kink(self) -> Floats:
        if self._gain == 0:
            return np.full(np.shape(self.backlog), np.inf)
        return np.asarray(self.budget - self.keep * self.backlog / self._gain)

    @property
    def _gain(self) -> float:
        return self.add / self.scale


@dataclass(frozen=True, eq=False)
class HardBudget:
    """weight · max(0, (x − budget)/scale)."""

    weight: float
    budget: float
    scale: float

    def value(self, amount: ArrayLike) -> Floats:
        return np.asarray(np.maximum(np.asarray(amount) - self.budget, 0.0) * (self.weight / self.scale))

    def slope(self, amount: float) -> float:
        return self.weight / self.scale if amount >= self.budget else 0.0

    def support(self, low: float, price: float) -> float:
        amount = max(low, self.budget)
        return float(self.value(amount)) - price * (amount - low)

    def kink(self) -> Floats:
        return np.asarray(self.budget)


def budget_scale(budget: float, *, normalised: bool) -> float:
    """What an excess is divided by: the budget, so that weights mean the same for every model; 1 for a budget of 0."""
    return budget if normalised and budget > 0 else 1.0
