"""The RB block as the paper solves it: problem (49) with CVXPY and the mixed-integer solver HiGHS.

x[n, k] = 1 if client n gets k blocks. For fixed cut and power, every delay and energy of (49) is a number per (n, k),
and the three maxima are epigraph variables, so it is a mixed-integer linear program.
"""

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import Links, arrived_only, energy, joules, seconds
from asfl.optimize.problem import Problem
from asfl.optimize.terms import Candidates, CutTerms, plan_terms

Floats = NDArray[np.float64]


def solve(problem: Problem, cut: int, tx_power_w: Floats) -> float | None:
    """Least V · objective (+ participation) within this round's budgets; None if no allocation keeps them."""
    terms = plan_terms(problem, [cut])
    counts = np.arange(1.0, problem.round.radio.num_rbs + 1)[:, None]
    links = Links.of(problem.round, counts, tx_power_w)
    candidates = Candidates.of(problem, terms, links, problem.objective.energy_penalty, sitting_out=True)
    stage_s, arrival = candidates.stage_s[:, 0], candidates.load
    rules, num_rbs = problem.rules, problem.round.radio.num_rbs
    over_energy = problem.objective.energy_penalty.value(_energy(problem, terms, tx_power_w, len(arrival)))
    cost = candidates.cost[0] - over_energy  # what is left is V · error cost + participation
    pick = cp.Variable(cost.shape, boolean=True)
    waits = cp.Variable(3, nonneg=True)
    blocks = np.arange(cost.shape[0])[:, None] * np.ones(cost.shape[1])
    constraints = [
        cp.sum(pick, axis=0) == 1,
        cp.sum(cp.multiply(blocks, pick)) <= num_rbs,
        cp.sum(pick[1:]) >= problem.min_participants,
        cp.multiply(over_energy > 0, pick) == 0,
        cp.sum(waits) + float(terms.server_s[0]) * cp.sum(cp.multiply(arrival, pick)) <= rules.delay_budget_s,
    ]
    constraints += [cp.sum(cp.multiply(stage_s[stage], pick), axis=0) <= waits[stage] for stage in range(3)]
    program = cp.Problem(cp.Minimize(cp.sum(cp.multiply(cost, pick))), constraints)
    program.solve(solver=cp.HIGHS)
    if program.value is None or not np.isfinite(program.value):
        return None
    return float(program.value) + float(problem.objective.drift_cost_of_cut[cut])


def _energy(problem: Problem, terms: CutTerms, tx_power_w: Floats, rows: int) -> Floats:
    """[rows, N] expected energy of k blocks, k = 0 … rows − 1."""
    links = Links.of(problem.round, np.arange(1.0, rows)[:, None], tx_power_w)
    steps = arrived_only(seconds(terms.work, links), links, links.arrival)
    served = energy(joules(problem.round, terms.work, links, steps))[0]
    return np.concatenate([np.zeros((1, served.shape[1])), served])
