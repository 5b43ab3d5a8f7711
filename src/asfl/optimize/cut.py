"""Cut block: the best cut for given counts and powers, by trying all M−1 of them (paper's problem (34)).

The paper counts M feasible cuts; the last would leave the server no layer, so there are M−1. Both forms use the drift
here, as the paper does: the cut is what the long-run budgets act on.
"""

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.problem import Problem
from asfl.optimize.terms import CutTerms, Links, one_if_idle

Floats = NDArray[np.float64]


def objective_of_cuts(problem: Problem, terms: CutTerms, rb_count: Floats, tx_power_w: Floats) -> Floats:
    """[C] drift + V · objective of every cut in the terms, for one allocation."""
    served = np.flatnonzero(rb_count > 0)
    rules = problem.rules
    num_clients = problem.round.num_clients
    error_rate = np.ones(num_clients)
    energy = np.zeros((len(terms.cuts), num_clients))
    delay = np.zeros(len(terms.cuts))
    if served.size:
        links = Links.of(problem.round, one_if_idle(rb_count), tx_power_w)
        error_rate[served] = links.packet_error_rate[served]
        arrival, s_per_bit = 1 - error_rate[served], links.uplink_s_per_bit[served]
        up, upload = terms.resplit_up_bits[:, None], terms.upload_bits[:, None]
        send_s_per_bit = s_per_bit if np.isfinite(s_per_bit).all() else np.nan_to_num(s_per_bit, posinf=1e300)
        delay = (
            (terms.resplit_down_s[:, served] + up * send_s_per_bit).max(axis=1)
            + (terms.forward_s[:, served] + upload * send_s_per_bit).max(axis=1)
            + terms.server_s * arrival.sum()
            + (terms.after_server_s[:, served] * arrival).max(axis=1)
        )
        energy[:, served] = (
            terms.forward_j[:, served]
            + terms.backward_j[:, served] * arrival
            + (up + upload) * (tx_power_w[served] * send_s_per_bit)
        )
    if rules.reading == "corrected":
        errors = np.full(len(terms.cuts), problem.error_cost(1, error_rate).sum())
    else:
        errors = np.array([problem.error_cost(int(cut), error_rate).sum() for cut in terms.cuts])
    served_mask = rb_count > 0
    participation = np.where(served_mask, problem.serving_cost, problem.sitting_out_cost).sum()
    return np.asarray(
        problem.delay_drift.value(delay)
        + problem.energy_drift.value(energy).sum(axis=1)
        + rules.penalty_weight * problem.spread_of_cut[terms.cuts]
        + errors
        + participation
    )
