"""EPSL: one cut for all, blocks to the straggler, full power.

Lin et al., "Efficient Parallel Split Learning over Resource-constrained Wireless Edge Networks" (arXiv:2303.15991)
shorten the round in two ways: they average the last-layer gradients of a share φ of the sample positions over the
clients, so that the server goes backward on φb + N(1−φ)b samples instead of Nb; and they choose sub-channels
(greedily), power and the common cut (exhaustively) by block coordinate descent. They assume that everything sent
arrives, so more power is always faster: without a limit on the sum of powers, which isn't modelled, all have P^max.
What is minimised here is the delay as it is charged, with all packets arriving,

    max_n re-split  +  max_n [forward + activations up]  +  server(φ)  +  max_n [gradients down + backward].

What differs from its paper, or is open there, and was chosen: its cut is fixed once, here it is chosen every round, and
the re-split from the cut before is part of the delay because the clock is charged for it; ASFL says who takes part;
blocks are whole; and the descent starts from the best cut under an even split of blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import ExchangeRules, cost_of_all_cuts, epsl, round_cost
from asfl.costs.round import Decision, Round, moving_bits, prefix_sums
from asfl.optimize import Problem
from asfl.schemes.base import Decided, Values, decided_for_served, descend, even_counts, relative_uplink_s

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EpslScheme:
    """Blocks and cut in turn until the round gets no shorter. Clients that sit out have no power."""

    borrows: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Values]] = {"share": (0.0, 1.0)}
    name: str = "epsl"
    share: float = 0.5
    """φ: share of the sample positions whose gradients are averaged. 0 is parallel split learning, 1 is the fastest;
    0.5, between the two, was chosen."""

    @property
    def exchange(self) -> ExchangeRules:
        return epsl(self.share)

    def decide(self, problem: Problem, seed: int) -> Decided:
        nothing = np.zeros(problem.round.num_clients)
        idle = Decision(1, nothing, nothing)
        return decided_for_served(problem, idle, lambda round_, _: fastest_round(round_, self.exchange))


def fastest_round(round_: Round, exchange: ExchangeRules) -> Decision:
    """The decision of a round in which every client takes part, by descent over blocks and cut, with full power."""
    tx_power_w = np.full(round_.num_clients, round_.radio.max_tx_power_w)

    def seconds(now: Decision) -> float:
        return float(round_cost(round_, now, np.ones(round_.num_clients), exchange).delay_s)

    def improved(now: Decision) -> Decision:
        more = replace(now, rb_count=greedy_counts(round_, int(now.cut), tx_power_w, exchange))
        if seconds(more) > seconds(now):  # blocks are heuristic while the cut shrinks
            more = now
        return replace(more, cut=best_cut(round_, more.rb_count, tx_power_w, exchange))

    rb_count = even_counts(round_)
    return descend(Decision(best_cut(round_, rb_count, tx_power_w, exchange), rb_count, tx_power_w), improved, seconds)


def best_cut(round_: Round, rb_count: Floats, tx_power_w: Floats, exchange: ExchangeRules) -> int:
    """The common cut that makes the round shortest: exhaustive, so exact."""
    all_arrive = np.ones(round_.num_clients)
    delay_s = cost_of_all_cuts(round_, rb_count, tx_power_w, all_arrive, exchange).delay_s
    return int(round_.profile.cuts[np.argmin(delay_s)])


def greedy_counts(round_: Round, cut: int, tx_power_w: Floats, exchange: ExchangeRules) -> Floats:
    """One block each, then always one more to the client that holds up the round, [N].

    A client holds up the round by its forward pass and everything it sends up: activations and, if the cut shrinks,
    layers. If the cut doesn't shrink, blocks matter in one maximum only and this is exact: a client that is done by the
    best deadline gets no block as long as another client isn't, so none gets more than the best deadline needs before
    all keep it. If the cut shrinks, there are two maxima (re-split and stage 2) and this is a heuristic, as in its
    paper.
    """
    one_each = np.ones(round_.num_clients)
    cost = round_cost(round_, Decision(cut, one_each, tx_power_w), one_each, exchange)
    sent_s = cost.uplink_delay_s + (cost.resplit_delay_by_client_s if _layers_sent_bits(round_, cut) else 0.0)
    finished_s = cost.client_forward_delay_s + sent_s * relative_uplink_s(round_, tx_power_w)
    return straggler_first(finished_s, round_.radio.num_rbs).astype(float)


def straggler_first(finished_s: Floats, num_rbs: int) -> NDArray[np.int64]:
    """Counts [N] that sum to K, given when each client is done with 1 … K' blocks, [K', N]."""
    clients = finished_s.shape[1]
    count, current_s = np.ones(clients, dtype=np.int64), finished_s[0].copy()
    for _ in range(num_rbs - clients):
        straggler = int(np.argmax(current_s))
        current_s[straggler] = finished_s[count[straggler], straggler]
        count[straggler] += 1
    return count


def _layers_sent_bits(round_: Round, cut: int) -> float:
    """What each client has to send up in the re-split: 0 unless the cut shrinks."""
    if round_.previous_cut is None:
        return 0.0
    sums = prefix_sums(moving_bits(round_.profile, round_.equations.overheads))
    return max(float(sums[round_.previous_cut] - sums[cut]), 0.0)
