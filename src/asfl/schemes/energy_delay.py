"""A cut per client for the least weighted sum of energy and delay, after Wei and Chen.

Their paper could not be consulted; what is known of it is that each client of split federated learning has the cut that
is best for energy and delay together. Everything else is a choice made here. The round is that of ACC-SFL: client
models come down and go up every round, and layers are averaged over all. Energy and delay weigh as much as
`decision.energy_price` says (docs/beyond.md). A power that loses most packets would look cheap, so what is least is the
sum per packet that is expected to arrive,

    (T / γ  +  energy_price · Σ_n E_n / (N δ))  /  Σ_n (1 − packet error rate),

T = max_n [before the server] + Σ_n server + max_n [behind it] being the delay with everybody arriving. The descent is
in turn over cuts and powers (jointly exact, with powers from a list) and over blocks (one each, then always where the
sum falls most), until it falls no more. Those take part whom ASFL serves, with whole blocks.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asfl.costs.decision import Decision
from asfl.costs.modelled import ACC_SFL, Procedure, cost_of_all_cuts, round_cost
from asfl.costs.round import Round
from asfl.optimize import Problem
from asfl.schemes.acc_sfl import choices_for_two_maxima
from asfl.schemes.base import Decided, borrowed_decision
from asfl.schemes.latency import LEAST_GAIN, MAX_PASSES, even_counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

POWER_LEVELS = 0.5 ** np.arange(0, 6.5, 0.5)
"""Of P^max: 18 dB in steps of 1.5 dB."""


@dataclass(frozen=True)
class EnergyDelayScheme:
    """Clients that sit out report cut 1, which nobody uses, and have no power."""

    borrows: ClassVar[bool] = True
    name: str = "energy-delay"
    procedure: Procedure = ACC_SFL

    def decide(self, problem: Problem, seed: int) -> Decided:
        reference = borrowed_decision(problem)
        clients = np.flatnonzero(reference.scheduled)
        everybody, rules = problem.round.num_clients, problem.rules
        cut, rb_count, tx_power_w = np.ones(everybody, dtype=np.int64), np.zeros(everybody), np.zeros(everybody)
        if clients.size:
            s_per_j = rules.energy_price * rules.delay_budget_s / (everybody * max(rules.energy_budget_j, 1e-300))
            round_ = replace(problem.round, outage_s=np.inf).among(clients)
            best = cheapest_round(round_, s_per_j)
            cut[clients], rb_count[clients], tx_power_w[clients] = best.cut, best.rb_count, best.tx_power_w
        return Decided(Decision(cut, rb_count, tx_power_w), reference)


def cheapest_round(round_: Round, s_per_j: float) -> Decision:
    """The decision of a round in which every client takes part; a joule costs as much as `s_per_j` seconds."""
    decision = cuts_and_powers(round_, even_counts(round_), s_per_j)
    decision = replace(decision, rb_count=best_counts(round_, decision, s_per_j))
    cost = cost_per_arrival_s(round_, decision, s_per_j)
    for _ in range(MAX_PASSES):
        # 1. Cuts and powers for these blocks.
        proposed = cuts_and_powers(round_, decision.rb_count, s_per_j)
        # 2. Blocks for these cuts and powers.
        proposed = replace(proposed, rb_count=best_counts(round_, proposed, s_per_j))
        # 3. Until the sum falls no more.
        proposed_cost = cost_per_arrival_s(round_, proposed, s_per_j)
        if not proposed_cost < cost * (1 - LEAST_GAIN):
            break
        decision, cost = proposed, proposed_cost
    return decision


def cost_per_arrival_s(round_: Round, decision: Decision, s_per_j: float) -> float:
    """(T + s_per_j · Σ E) / Σ (1 − packet error rate), T and E with everybody arriving."""
    cost = round_cost(round_, decision, np.ones(round_.num_clients), ACC_SFL)
    arrivals = float((1 - cost.packet_error_rate).sum())
    return float(cost.delay_s + s_per_j * cost.energy_j.sum()) / arrivals if arrivals > 0 else np.inf


def cuts_and_powers(round_: Round, rb_count: Floats, s_per_j: float) -> Decision:
    """The best cut and power level of each client with these blocks: exact.

    A ratio is least where cost − λ · arrivals is, λ being the ratio itself (Dinkelbach); energies and arrivals add up
    over clients, so that is a choice for two maxima and a sum.
    """
    powers_w, cuts = round_.radio.max_tx_power_w * POWER_LEVELS, round_.profile.cuts
    everybody = np.ones(round_.num_clients)
    costs = [cost_of_all_cuts(round_, rb_count, power_w * everybody, everybody, ACC_SFL) for power_w in powers_w]
    before = np.concatenate([c.model_down_delay_s + c.client_forward_delay_s + c.uplink_delay_s for c in costs])
    behind = np.concatenate([c.downlink_delay_s + c.client_backward_delay_s + c.model_up_delay_s for c in costs])
    summed = np.concatenate([c.server_delay_s + s_per_j * c.energy_j for c in costs])
    lost = np.repeat([c.packet_error_rate for c in costs], len(cuts), axis=0)

    best = Decision(np.ones(round_.num_clients, dtype=np.int64), rb_count, powers_w[0] * everybody)
    ratio_s = cost_per_arrival_s(round_, best, s_per_j)
    for _ in range(MAX_PASSES):
        level, cut = np.divmod(choices_for_two_maxima(before, behind, summed + ratio_s * lost), len(cuts))
        found = Decision(cuts[cut], rb_count, powers_w[level])
        found_s = cost_per_arrival_s(round_, found, s_per_j)
        if not found_s < ratio_s * (1 - LEAST_GAIN):
            break
        best, ratio_s = found, found_s
    return best


def best_counts(round_: Round, decision: Decision, s_per_j: float) -> Floats:
    """One block each, then one at a time to the client with which the sum falls most, while it falls, [N]."""
    count, clients = np.ones(round_.num_clients), np.arange(round_.num_clients)
    cost = cost_per_arrival_s(round_, replace(decision, rb_count=count), s_per_j)
    for _ in range(round_.radio.num_rbs - round_.num_clients):
        more = [count + (clients == client) for client in clients]
        costs = [cost_per_arrival_s(round_, replace(decision, rb_count=each), s_per_j) for each in more]
        best = int(np.argmin(costs))
        if not costs[best] < cost:
            break
        count, cost = more[best], costs[best]
    return count
