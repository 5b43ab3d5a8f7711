"""Cut block: the best cut for given counts and powers, by trying all M−1 of them (paper's problem (34)).

The paper counts M feasible cuts; the last would leave the server no layer, so there are M−1. Both forms use the drift
here, as the paper does: the cut is what the long-run budgets act on.
"""

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.problem import Problem
from asfl.optimize.terms import Candidates, CutTerms, Links, sitting_out_cost

Floats = NDArray[np.float64]


def objective_of_cuts(problem: Problem, terms: CutTerms, rb_count: Floats, tx_power_w: Floats) -> Floats:
    """[C] drift + V · objective of every cut in the terms, for one allocation."""
    served, drift = rb_count > 0, problem.energy_drift
    links = Links.at(problem.round, rb_count, tx_power_w)
    candidates = Candidates.of(problem, terms, links, drift)
    waits = np.where(served, candidates.stage_s, 0.0).max(axis=2)
    waits = np.maximum(waits[0], terms.resplit_wait_s) + waits[1] + waits[2]
    load = terms.server_s * np.where(served, candidates.load, 0.0).sum()
    costs = np.where(served, candidates.cost, sitting_out_cost(problem, terms.cuts, drift)).sum(axis=1)
    spread = problem.plan_cost(terms.cuts, terms.synced)
    return np.asarray(problem.delay_drift.value(waits + load) + costs + spread)
