"""OOE-BCD (paper's Algorithm 2): cut, resource blocks and power in turn until the objective stands still.

Every block keeps where it is as one of its candidates, so in the drift form, where all three minimise the same
objective, the objective never rises. The paper starts from random blocks and powers and lands in whatever local optimum
is near; here the descent starts from the best decision on a very coarse grid of powers, always the same for the same
round, and begins with the power block.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.cut import objective_of_cuts
from asfl.optimize.grid import best_on_grid
from asfl.optimize.plans import plan_terms
from asfl.optimize.power import best_powers, refine_powers
from asfl.optimize.problem import Problem
from asfl.optimize.rbs import best_rb_counts
from asfl.optimize.sharing import best_shares
from asfl.optimize.solution import Solution, decision_at
from asfl.optimize.terms import CutTerms

Floats = NDArray[np.float64]

SEARCH_SHARE = 0.1
"""The power block is solved to this share of the descent's own tolerance."""
FINAL_ZOOMS = 2
"""Refinements of the power grid once the descent has settled."""
START_POWERS = (1.0, 0.45, 0.2, 0.09, 0.04, 0.01, 0.002)
"""Shares of P^max tried in the start. The smallest matter where energy is short: without them the descent can start at
powers from which no single block leads down."""
START_COARSENESS = 8
"""Of the counts of blocks in the start (`Grid.of`)."""
START_TOLERANCE = 0.02


def ooe_bcd(
    problem: Problem,
    *,
    cuts: Sequence[int] | None = None,
    rb_count: Floats | None = None,
    tx_power_w: Floats | None = None,
) -> Solution:
    """Decide a round. `cuts` restricts the cuts; a given `rb_count` or `tx_power_w` is kept as it is (baselines).

    So is what the round itself gives (`Round.allocation`); then only the cut is left, and all are tried.
    """
    started = time.perf_counter()
    if problem.round.allocation is not None:
        rb_count, tx_power_w = problem.round.allocation
    terms = plan_terms(problem, cuts)
    descent = _Descent(problem, terms, rb_count, tx_power_w)
    rules = problem.rules
    iterations = 0
    while iterations < rules.max_iterations:
        iterations += 1
        before = descent.objective
        descent.update_power()
        moved_cut = descent.update_cut()
        moved_rbs = descent.update_rbs()
        standing_still = before - descent.objective <= rules.tolerance * max(1.0, abs(descent.objective))
        if standing_still or not (moved_cut or moved_rbs):
            break
    descent.refine_power()
    if not np.isfinite(descent.objective) and np.isfinite(problem.round.outage_s):
        # Whoever has to be served can't be done in time at any cut: decide as if there were no outage.
        patient = replace(problem, round=replace(problem.round, outage_s=np.inf))
        return replace(ooe_bcd(patient, cuts=cuts, rb_count=rb_count, tx_power_w=tx_power_w), problem=problem)
    return Solution(
        problem=problem,
        decision=decision_at(terms, descent.cut_index, descent.rb_count, descent.power),
        objective=descent.objective,
        iterations=iterations,
        trace=tuple(descent.trace),
        seconds=time.perf_counter() - started,
    )


class _Descent:
    """Where the descent stands, and its steps."""

    def __init__(self, problem: Problem, terms: CutTerms, rb_count: Floats | None, tx_power_w: Floats | None) -> None:
        self.problem, self.terms = problem, terms
        self.fixed_rbs, self.fixed_power = rb_count is not None, tx_power_w is not None
        self.cut_index = 0
        full_power = np.full(problem.round.num_clients, problem.round.radio.max_tx_power_w)
        self.power = full_power if tx_power_w is None else np.asarray(tx_power_w, float)
        self.rb_count = _fair_counts(problem) if rb_count is None else np.asarray(rb_count, float)
        # Whole blocks are shares too, so time sharing starts from them if they suffice.
        if not self.fixed_rbs and problem.min_participants <= problem.round.radio.num_rbs:
            powers = self.power[None] if self.fixed_power else np.multiply.outer(START_POWERS, full_power)
            found = best_on_grid(problem, terms, powers, START_TOLERANCE, coarseness=START_COARSENESS)
            if found is not None:
                self.cut_index, self.rb_count, self.power, _ = found
        self.trace: list[tuple[str, float]] = []
        self.objective = np.inf
        self._note("start")

    def update_cut(self) -> bool:
        """Best cut; whether it moved."""
        of_cuts = objective_of_cuts(self.problem, self.terms, self.rb_count, self.power)
        best = int(np.argmin(of_cuts))
        moved = best != self.cut_index
        self.cut_index = best
        self._note("cut", float(of_cuts[best]))
        return moved

    def update_rbs(self) -> bool:
        """Best counts; whether they moved."""
        if self.fixed_rbs:
            return False
        improve = best_rb_counts if self.problem.rules.rb_sharing == "whole" else best_shares
        counts = improve(self.problem, self.terms, self.cut_index, self.power, self.rb_count)
        moved = bool((counts != self.rb_count).any())
        if moved:
            self.rb_count = counts
        self._note("rbs", None if moved else self.objective)
        return moved

    def update_power(self) -> None:
        self._set_power(best_powers, zooms=0)

    def refine_power(self) -> None:
        self._set_power(refine_powers, zooms=FINAL_ZOOMS)

    def _set_power(self, improve: Callable[..., Floats], zooms: int) -> None:
        if self.fixed_power:
            return
        where = (self.problem, self.terms, self.cut_index, self.rb_count, self.power)
        self.power = improve(*where, zooms=zooms, tolerance=SEARCH_SHARE * self.problem.rules.tolerance)
        self._note("power")

    def _note(self, block: str, objective: float | None = None) -> None:
        if objective is None:
            here = self.terms.only(self.cut_index)
            objective = float(objective_of_cuts(self.problem, here, self.rb_count, self.power)[0])
        self.objective = objective
        self.trace.append((block, objective))


def _fair_counts(problem: Problem) -> Floats:
    """A start for time sharing, and where nothing better is found: the same for everybody who can be reached."""
    num_rbs, reachable = problem.round.radio.num_rbs, problem.reachable
    share = num_rbs / max(int(reachable.sum()), 1)
    return np.where(reachable, share if problem.rules.rb_sharing == "time" else np.floor(share), 0.0)
