"""How far a run was over budget in every round, and the queues that remember it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.queues import budget_scale, queue_weights
from asfl.results.curves import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Excess:
    """Delay first, then clients: excess [R, N+1], queues [R+1, N+1]."""

    excess: Floats
    queues: Floats
    keep: float
    add: float
    unit: Floats
    """[N+1] what one of a queue is in budgets."""

    @classmethod
    def of(cls, run: Run) -> "Excess":
        assert run.config is not None
        assert run.budgets is not None
        rules, budgets = run.config.decision, run.budgets
        normalised = rules.equations == "corrected"
        cost = np.array([[record.delay_s, *record.energy_j] for record in run.records], float)
        budget = np.array([budgets.delay_s, *[budgets.energy_j] * (cost.shape[1] - 1)])
        scale = np.array([budget_scale(float(one), normalised=normalised) for one in budget])
        queues = np.array([[record.delay_queue, *record.energy_queue] for record in run.records], float)
        keep, add = queue_weights(rules.queue_rule, rules.queue_memory)
        unit = np.divide(scale, budget, out=np.full_like(scale, np.nan), where=budget > 0)
        return cls((cost - budget) / scale, np.vstack([np.zeros(queues.shape[1]), queues]), keep, add, unit)

    @property
    def feeds_the_queues(self) -> bool:
        """Whether these costs made these queues; schemes that borrow from ASFL keep its queues."""
        expected = np.maximum(self.keep * self.queues[:-1] + self.add * self.excess, 0.0)
        return bool(np.allclose(expected, self.queues[1:], rtol=1e-6, atol=1e-9))


def still_owed(run: Run) -> tuple[float, float]:
    """Q/R after the last round, as a share of the budget: of the delay, and of the client whose energy owes most.

    Under the standard rule a queue is what has been spent beyond the budget and not made good since, so Q/R bounds the
    mean excess and falls to 0 if budgets are kept in the long run. NaN under the printed rule, whose queues forget and
    mean no such thing, and for queues that another scheme's costs made.
    """
    if run.config is None or run.budgets is None or not run.records:
        return math.nan, math.nan
    own = Excess.of(run)
    if own.keep != 1 or own.add != 1 or not np.isfinite(own.excess).all() or not own.feeds_the_queues:
        return math.nan, math.nan
    owed = own.queues[-1] * own.unit / len(run.records)
    return float(owed[0]), float(owed[1:].max())
