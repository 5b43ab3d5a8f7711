"""Cut block: the best cut for given counts and powers, by trying all M−1 of them (paper's problem (34)).

The paper counts M feasible cuts; the last would leave the server no layer, so there are M−1. Both forms use the drift
here, as the paper does: the cut is what the long-run budgets act on.
"""

import numpy as np
from numpy.typing import NDArray

from asfl.costs import times
from asfl.optimize.problem import Problem
from asfl.optimize.terms import CutTerms, Links, one_if_idle

Floats = NDArray[np.float64]


def objective_of_cuts(problem: Problem, terms: CutTerms, rb_count: Floats, tx_power_w: Floats) -> Floats:
    """[C] drift + V · objective of every cut in the terms, for one allocation."""
    served = rb_count > 0
    links = Links.of(problem.round, one_if_idle(rb_count), tx_power_w)
    error_rate = np.where(served, links.packet_error_rate, 1.0)
    arrival = 1.0 - error_rate
    s_per_bit = np.where(served, links.uplink_s_per_bit, 0.0)
    up, upload = terms.resplit_up_bits[:, None], terms.upload_bits[:, None]
    delay = (
        (np.where(served, terms.resplit_down_s, 0.0) + times(up, s_per_bit)).max(axis=1)
        + (terms.forward_s * served + times(upload, s_per_bit)).max(axis=1)
        + terms.server_s * arrival.sum()
        + times(arrival, terms.after_server_s).max(axis=1)
    )
    energy = terms.forward_j * served + terms.backward_j * arrival + times(up + upload, times(tx_power_w, s_per_bit))
    participation = np.where(served, problem.serving_cost, problem.sitting_out_cost).sum()
    return np.asarray(
        problem.delay_drift.value(delay)
        + problem.energy_drift.value(energy).sum(axis=1)
        + problem.rules.penalty_weight * problem.spread_of_cut[terms.cuts]
        + problem.error_cost(terms.cuts, error_rate).sum(axis=1)
        + participation
    )
