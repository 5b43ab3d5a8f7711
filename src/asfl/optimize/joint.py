"""The joint solver: cut, counts and powers at once, the yardstick for OOE-BCD and a scheme of its own.

Every client's candidates are all pairs of a count and a power from a grid; the deadline search runs over all cuts
together and is optimal on that grid up to `TOLERANCE`. The powers are then refined off the grid, and OOE-BCD's own
answer is taken if it should be better. Where blocks differ, the answer is OOE-BCD's.
"""

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.bcd import ooe_bcd
from asfl.optimize.cut import objective_of_cuts
from asfl.optimize.grid import best_on_grid
from asfl.optimize.plans import plan_terms
from asfl.optimize.power import LOWEST_SHARE, refine_powers
from asfl.optimize.problem import Problem
from asfl.optimize.solution import Solution, plan_at, silent_if_idle

Floats = NDArray[np.float64]

TOLERANCE = 2e-3
"""Tolerance of the search on the grid, relative to the objective, or to `LEAST_SCALE` where that is nearly 0."""
LEAST_SCALE = 0.05
POWER_SHARES = np.concatenate([np.geomspace(1.0, 0.1, 22), np.geomspace(0.085, LOWEST_SHARE, 12)])
"""Powers tried, as shares of P^max: 12 % apart where most decisions lie, coarser below a tenth."""
ZOOMS = 4


def solve_jointly(problem: Problem, *, start: Solution | None = None) -> Solution:
    """Decide a round as well as a grid of powers and a refinement allow; `start` as in `ooe_bcd`."""
    started = time.perf_counter()
    best = ooe_bcd(problem, start=start)
    round_ = problem.round
    if round_.allocation is not None or round_.block_gain is not None:
        return best
    trace, lower_bound = list(best.trace), -np.inf
    terms = plan_terms(problem)
    top = np.full(problem.round.num_clients, problem.round.radio.max_tx_power_w)
    found = best_on_grid(problem, terms, np.multiply.outer(POWER_SHARES, top), TOLERANCE, LEAST_SCALE)
    if found is not None:
        index, count, power, lower_bound = found
        power = refine_powers(problem, terms.only(index), count, power, zooms=ZOOMS)
        objective = float(objective_of_cuts(problem, terms, count, power)[index])
        refined = Solution(problem, plan_at(terms, index, count, power), objective, 1, (), 0.0, power)
        trace.append(("joint", objective))
        if problem.switches.any:  # from the best plan, each client may go its own way
            refined = ooe_bcd(problem, start=refined)
            trace.extend(refined.trace)
        best = min(best, refined, key=lambda solution: solution.rank)
    return replace(
        best,
        decision=silent_if_idle(best.decision),
        trace=tuple(trace),
        seconds=time.perf_counter() - started,
        lower_bound=lower_bound,
    )
