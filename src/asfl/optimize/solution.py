"""What a solver returns: the decision, what it is worth, and whether it keeps the budgets."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.costs.decision import Decision
from asfl.costs.modelled import RoundCost, round_cost
from asfl.optimize.problem import Problem
from asfl.optimize.terms import CutTerms

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Solution:
    """A solver's answer to one problem."""

    problem: Problem
    decision: Decision
    objective: float
    """Drift + V · objective (+ the participation queue's share)."""
    iterations: int
    trace: tuple[tuple[str, float], ...]
    """(block, objective after it), in order."""
    seconds: float
    considered_power_w: Floats
    """[N] powers, also of those who sit out: with which it was found that they had better."""
    lower_bound: float = -np.inf
    """No decision on the solver's grid is better than this (joint solver only)."""

    @cached_property
    def expected(self) -> RoundCost:
        return round_cost(self.problem.round, self.decision)

    @cached_property
    def rank(self) -> float:
        """What the solver's form minimises: the objective, or within hard budgets the violation first."""
        problem = self.problem
        if problem.rules.form == "drift":
            return self.objective
        cost, cut = self.expected, np.atleast_1d(self.decision.cut)
        over = problem.delay_penalty.at(float(cost.delay_s)) + problem.energy_penalty.value(cost.energy_j).sum()
        errors = problem.error_cost(cut, cost.packet_error_rate).sum()
        owed = np.where(self.decision.scheduled, problem.serving_cost, problem.sitting_out_cost).sum()
        return float(over + float(problem.drift_cost_of_cut[cut.max()]) + errors + owed)

    @property
    def delay_excess_s(self) -> float:
        """How far the expected delay misses this round's budget; 0 if it is kept."""
        return max(float(self.expected.delay_s) - self.problem.rules.delay_budget_s, 0.0)

    @property
    def energy_excess_j(self) -> Floats:
        """[N] the same for each client's energy."""
        return np.maximum(self.expected.energy_j - self.problem.rules.energy_budget_j, 0.0)

    @property
    def feasible(self) -> bool:
        """Whether this round, in expectation, keeps all budgets."""
        rules = self.problem.rules
        slack = 1e-9
        return bool(
            self.delay_excess_s <= slack * rules.delay_budget_s
            and (self.energy_excess_j <= slack * rules.energy_budget_j).all()
        )

    def missed_budgets(self) -> dict[str, Any]:
        """Which budgets are missed by how much."""
        missed: dict[str, Any] = {}
        if self.delay_excess_s > 1e-9 * self.problem.rules.delay_budget_s:
            missed["delay_s"] = self.delay_excess_s
        over = self.energy_excess_j > 1e-9 * self.problem.rules.energy_budget_j
        if over.any():
            missed["energy_j"] = {int(n): float(self.energy_excess_j[n]) for n in np.flatnonzero(over)}
        return missed


def plan_at(terms: CutTerms, index: int, rb_count: Floats, tx_power_w: Floats) -> Decision:
    """The decision for the plan of a row."""
    return Decision(int(terms.cuts[index]), rb_count, tx_power_w, int(terms.bits[index]), int(terms.synced[index]))


def same_plan(one: Decision, other: Decision) -> bool:
    """Whether cuts, bits and averages are the same."""
    return np.array_equal(one.cut, other.cut) and np.array_equal(one.bits, other.bits) and one.synced == other.synced


def silent_if_idle(decision: Decision) -> Decision:
    """Whoever sits out sends nothing."""
    return replace(decision, tx_power_w=np.where(decision.scheduled, decision.tx_power_w, 0.0))
