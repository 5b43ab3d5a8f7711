"""The joint solver: cut, counts and powers at once, the yardstick for OOE-BCD and a scheme of its own.

Every client's candidates are all pairs of a count and a power from a grid; the deadline search runs over all cuts
together and is optimal on that grid up to `TOLERANCE`. The result is then refined by the exact blocks, starting from
the best of the grid, so it never gets worse. Whole resource blocks only.
"""

import time

import numpy as np
from numpy.typing import NDArray

from asfl.decision import Decision
from asfl.optimize.allocate import allocate
from asfl.optimize.bcd import ooe_bcd
from asfl.optimize.cut import objective_of_cuts
from asfl.optimize.deadlines import StageProblem, search_deadlines
from asfl.optimize.power import LOWEST_SHARE, best_powers
from asfl.optimize.problem import Problem
from asfl.optimize.rbs import stages_with_sitting_out
from asfl.optimize.solution import Solution
from asfl.optimize.terms import CutTerms, Links

Floats = NDArray[np.float64]

TOLERANCE = 2e-3
"""Relative tolerance of the search on the grid (of the objective, or absolute below 1)."""
POWER_GRID = 20


def solve_jointly(problem: Problem) -> Solution:
    """Decide a round as well as a grid of powers and a refinement allow."""
    started = time.perf_counter()
    descended = ooe_bcd(problem)
    if problem.rules.rb_sharing == "time":
        return descended
    round_ = problem.round
    terms = CutTerms.of(round_, round_.profile.cuts)
    most = max(1, round_.radio.num_rbs - max(problem.min_participants - 1, 0))
    powers = round_.radio.max_tx_power_w * LOWEST_SHARE ** np.linspace(0, 1, POWER_GRID)
    counts = np.arange(1, most + 1, dtype=float)
    # Candidate 1 + (k−1)·P + j is k blocks at power j; candidate 0 sits out.
    links = Links.of(
        round_,
        np.repeat(counts, POWER_GRID)[:, None],
        np.broadcast_to(np.tile(powers, most)[:, None], (most * POWER_GRID, round_.num_clients)),
    )
    problems = [
        _with_counts(stages_with_sitting_out(problem, terms, index, links), problem, most)
        for index in range(len(terms.cuts))
    ]
    found = search_deadlines(problems, problem.delay_penalty, None, TOLERANCE)
    best, trace, lower_bound = descended, list(descended.trace), -np.inf
    if found is not None:
        lower_bound = found.lower_bound
        served = found.pick > 0
        count = np.where(served, counts[(found.pick - 1) // POWER_GRID], 0.0)
        power = np.where(served, powers[(found.pick - 1) % POWER_GRID], round_.radio.max_tx_power_w)
        refined = _refine(problem, terms, found.problem_index, count, power)
        trace.append(("joint", refined.objective))
        if _is_better(problem, refined, descended):
            best = refined
    return Solution(
        problem=problem,
        decision=best.decision,
        objective=best.objective,
        iterations=best.iterations,
        trace=tuple(trace),
        seconds=time.perf_counter() - started,
        lower_bound=lower_bound,
    )


def _refine(problem: Problem, terms: CutTerms, index: int, count: Floats, power: Floats) -> Solution:
    """Sharpen the powers off the grid."""
    power = best_powers(problem, terms, index, count, power, zooms=4)
    value = float(objective_of_cuts(problem, terms, count, power)[index])
    return Solution(problem, Decision(int(terms.cuts[index]), count, power), value, 1, (), 0.0)


def _is_better(problem: Problem, one: Solution, other: Solution) -> bool:
    """By the objective; within hard budgets, by the least violation first."""
    if problem.rules.form == "drift":
        return one.objective < other.objective
    return _hard_value(problem, one) < _hard_value(problem, other)


def _hard_value(problem: Problem, solution: Solution) -> float:
    cost = solution.expected
    spread = problem.rules.penalty_weight * problem.spread_of_cut[int(solution.decision.cut)]
    errors = problem.error_cost(int(solution.decision.cut), cost.packet_error_rate).sum()
    over = problem.delay_penalty.value(cost.delay_s) + problem.energy_penalty.value(cost.energy_j).sum()
    return float(over + spread + errors)


def _with_counts(stages: StageProblem, problem: Problem, most: int) -> StageProblem:
    """Choose the best power for each count, then the counts; add the spread that this cut means for everybody."""
    num_rbs, need = problem.round.radio.num_rbs, problem.min_participants
    clients = np.arange(stages.cost.shape[1])

    def choose(priced: Floats) -> tuple[NDArray[np.int64], float] | None:
        by_count = priced[1:].reshape(most, POWER_GRID, -1)
        power = np.argmin(by_count, axis=1)
        best = np.take_along_axis(by_count, power[:, None], axis=1)[:, 0]
        allocated = allocate(np.concatenate([priced[:1], best]), num_rbs, need)
        if allocated is None:
            return None
        counts, total = allocated
        row = np.maximum(counts - 1, 0)
        return np.where(counts > 0, 1 + row * POWER_GRID + power[row, clients], 0), total

    return StageProblem(stages.stage_s, stages.arrival, stages.cost, stages.server_s, stages.least_waits, choose)
