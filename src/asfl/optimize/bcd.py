"""OOE-BCD (paper's Algorithm 2): cut, resource blocks and power in turn until the objective stands still.

Every block keeps where it is as one of its candidates, so in the drift form, where all three minimise the same
objective, the objective never rises. The paper starts from random blocks and powers; here the start is the same for
the same round.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asfl.decision import Decision
from asfl.optimize.cut import objective_of_cuts
from asfl.optimize.power import best_powers
from asfl.optimize.problem import Problem
from asfl.optimize.rbs import best_rb_counts
from asfl.optimize.sharing import best_shares
from asfl.optimize.solution import Solution
from asfl.optimize.terms import CutTerms

Floats = NDArray[np.float64]

FINAL_ZOOMS = 3
"""Refinements of the power grid once the descent has settled."""


def ooe_bcd(
    problem: Problem,
    *,
    cuts: Sequence[int] | None = None,
    rb_count: Floats | None = None,
    tx_power_w: Floats | None = None,
) -> Solution:
    """Decide a round. `cuts` restricts the cuts; a given `rb_count` or `tx_power_w` is kept as it is (baselines)."""
    started = time.perf_counter()
    allowed = problem.round.profile.cuts if cuts is None else np.asarray(sorted(cuts))
    terms = CutTerms.of(problem.round, allowed)
    descent = _Descent(problem, terms, rb_count, tx_power_w)
    rules = problem.rules
    before = np.inf
    iterations, zooms = 0, 0
    while iterations < rules.max_iterations:
        iterations += 1
        descent.update_cut()
        descent.update_rbs()
        descent.update_power(zooms)
        settled = abs(before - descent.objective) <= rules.tolerance * max(1.0, abs(descent.objective))
        if settled and zooms:
            break
        if settled or iterations == rules.max_iterations - 1:
            zooms = FINAL_ZOOMS
        before = descent.objective
    descent.update_cut()
    return Solution(
        problem=problem,
        decision=descent.decision(),
        objective=descent.objective,
        iterations=iterations,
        trace=tuple(descent.trace),
        seconds=time.perf_counter() - started,
    )


class _Descent:
    """Where the descent stands, and its three steps."""

    def __init__(
        self, problem: Problem, terms: CutTerms, rb_count: Floats | None, tx_power_w: Floats | None
    ) -> None:
        self.problem, self.terms = problem, terms
        self.fixed_rbs, self.fixed_power = rb_count is not None, tx_power_w is not None
        self.power = first_powers(problem) if tx_power_w is None else np.asarray(tx_power_w, float)
        self.rb_count = first_counts(problem) if rb_count is None else np.asarray(rb_count, float)
        self.cut_index = 0
        self.objective = np.inf
        self.trace: list[tuple[str, float]] = []

    def update_cut(self) -> None:
        of_cuts = objective_of_cuts(self.problem, self.terms, self.rb_count, self.power)
        self.cut_index = int(np.argmin(of_cuts))
        self._note("cut", float(of_cuts[self.cut_index]))

    def update_rbs(self) -> None:
        if self.fixed_rbs:
            return
        improve = best_rb_counts if self.problem.rules.rb_sharing == "whole" else best_shares
        self.rb_count = improve(self.problem, self.terms, self.cut_index, self.power, self.rb_count)
        self._note("rbs", self._value())

    def update_power(self, zooms: int) -> None:
        if self.fixed_power:
            return
        self.power = best_powers(self.problem, self.terms, self.cut_index, self.rb_count, self.power, zooms=zooms)
        self._note("power", self._value())

    def decision(self) -> Decision:
        return Decision(int(self.terms.cuts[self.cut_index]), self.rb_count, self.power)

    def _value(self) -> float:
        return float(objective_of_cuts(self.problem, self.terms, self.rb_count, self.power)[self.cut_index])

    def _note(self, block: str, objective: float) -> None:
        self.objective = objective
        self.trace.append((block, objective))


def first_powers(problem: Problem) -> Floats:
    return np.full(problem.round.num_clients, problem.round.radio.max_tx_power_w)


def first_counts(problem: Problem) -> Floats:
    """Serve as many as possible: those owed most first, then those with the best channel; spare blocks to the weakest."""
    round_ = problem.round
    num_clients, num_rbs = round_.num_clients, round_.radio.num_rbs
    if problem.rules.rb_sharing == "time":
        return np.where(problem.reachable, num_rbs / max(int(problem.reachable.sum()), 1), 0.0)
    order = np.lexsort((-round_.channel_gain, -problem.queues.participation))
    order = order[problem.reachable[order]]
    counts = np.zeros(num_clients)
    counts[order[:num_rbs]] = 1.0
    spare = num_rbs - int(counts.sum())
    if order.size and spare > 0:
        weakest_first = order[np.argsort(round_.channel_gain[order], kind="stable")]
        for step in range(spare):
            counts[weakest_first[step % len(weakest_first)]] += 1
    return counts
