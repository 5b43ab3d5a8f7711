"""EPSL: one cut for all, blocks to the straggler, as much power as allowed.

Lin et al., "Efficient Parallel Split Learning over Resource-constrained Wireless Edge Networks" (arXiv:2303.15991)
shorten the round in two ways: they average the last-layer gradients of a share φ of the sample positions over the
clients, so that the server goes backward on φb + N(1−φ)b samples instead of Nb; and they choose sub-channels
(greedily), power and the common cut (exhaustively) by block coordinate descent. They assume that everything sent
arrives. What is minimised here is the delay as it is charged, with everybody arriving,

    max_n re-split  +  max_n [forward + activations up]  +  server(φ)  +  max_n [gradients down + backward].

What differs from its paper, or is open there, and was chosen: its cut is fixed once, here it is chosen every round, and
the re-split from the cut before is part of the delay because the clock is charged for it; ASFL says who takes part;
blocks are whole, also where others share them in time; and the descent starts from the best cut under an even split of
blocks and power.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.crossing import label_bits, moving_bits, prefix_sums
from asfl.costs.decision import Decision
from asfl.costs.modelled import Procedure, cost_of_all_cuts, epsl, round_cost
from asfl.costs.round import Round
from asfl.optimize import Problem
from asfl.radio.link import SmoothRate, uplink_noise_w
from asfl.schemes.base import Decided, borrowed_decision
from asfl.schemes.latency import LEAST_GAIN, MAX_PASSES, even_counts, relative_uplink_s

Floats = NDArray[np.float64]

BISECTIONS = 60


@dataclass(frozen=True)
class EpslScheme:
    """Cut, blocks and power in turn until the round gets no shorter. Clients that sit out have no power."""

    borrows: ClassVar[bool] = True
    name: str = "epsl"
    aggregated_share: float = 0.5
    """φ: share of the sample positions whose gradients are averaged. 0 is parallel split learning, 1 is the fastest;
    0.5, between the two, was chosen."""
    sum_power_w: float | None = None
    """The most all clients may transmit with together; None: only P^max limits them."""

    def __post_init__(self) -> None:
        if not 0 <= self.aggregated_share <= 1:
            raise AsflError(f"epsl: aggregated_share = {self.aggregated_share:g} must be 0 … 1")
        if self.sum_power_w is not None and not self.sum_power_w > 0:
            raise AsflError(f"epsl: sum_power_w = {self.sum_power_w:g} must be above 0")

    @property
    def procedure(self) -> Procedure:
        return epsl(self.aggregated_share)

    def decide(self, problem: Problem, seed: int) -> Decided:
        reference = borrowed_decision(problem)
        clients = np.flatnonzero(reference.scheduled)
        cut, rb_count, tx_power_w = 1, np.zeros(problem.round.num_clients), np.zeros(problem.round.num_clients)
        if clients.size:
            fastest = fastest_round(problem.round.among(clients), self.procedure, self.sum_power_w)
            cut, rb_count[clients], tx_power_w[clients] = int(fastest.cut), fastest.rb_count, fastest.tx_power_w
        return Decided(Decision(cut, rb_count, tx_power_w), reference)


def fastest_round(round_: Round, procedure: Procedure, sum_power_w: float | None = None) -> Decision:
    """The decision of a round in which every client takes part, by descent over blocks, power and cut."""
    cap_w = np.inf if sum_power_w is None else sum_power_w
    rb_count, tx_power_w = even_counts(round_), equal_powers(round_, cap_w)
    decision = Decision(best_cut(round_, rb_count, tx_power_w, procedure), rb_count, tx_power_w)
    latency_s = _latency_s(round_, decision, procedure)
    for _ in range(MAX_PASSES):
        # 1. Blocks for this cut and power.
        count = greedy_counts(round_, int(decision.cut), decision.tx_power_w, procedure)
        proposed = _shorter(round_, procedure, replace(decision, rb_count=count), decision)
        # 2. Power for this cut and these blocks.
        power = best_powers(round_, int(proposed.cut), proposed.rb_count, cap_w, procedure)
        proposed = _shorter(round_, procedure, replace(proposed, tx_power_w=power), proposed)
        # 3. Cut for these blocks and power.
        cut = best_cut(round_, proposed.rb_count, proposed.tx_power_w, procedure)
        proposed = replace(proposed, cut=cut)
        # 4. Until the round gets no shorter.
        proposed_s = _latency_s(round_, proposed, procedure)
        if not proposed_s < latency_s * (1 - LEAST_GAIN):
            break
        decision, latency_s = proposed, proposed_s
    return decision


def _latency_s(round_: Round, decision: Decision, procedure: Procedure) -> float:
    return float(round_cost(round_, decision, np.ones(round_.num_clients), procedure).delay_s)


def _shorter(round_: Round, procedure: Procedure, proposed: Decision, current: Decision) -> Decision:
    """The blocks and power are heuristic while the cut shrinks, so their proposals have to prove themselves."""
    longer = _latency_s(round_, proposed, procedure) > _latency_s(round_, current, procedure)
    return current if longer else proposed


def best_cut(round_: Round, rb_count: Floats, tx_power_w: Floats, procedure: Procedure) -> int:
    """The common cut that makes the round shortest: exhaustive, so exact."""
    everybody = np.ones(round_.num_clients)
    delay_s = cost_of_all_cuts(round_, rb_count, tx_power_w, everybody, procedure).delay_s
    return int(round_.profile.cuts[np.argmin(delay_s)])


def greedy_counts(round_: Round, cut: int, tx_power_w: Floats, procedure: Procedure) -> Floats:
    """One block each, then always one more to the client that holds up the round, [N].

    A client holds up the round by its forward pass and everything it sends up: activations and, if the cut shrinks,
    layers. If the cut doesn't shrink, blocks matter in one maximum only and this is exact: a client that is done by the
    best deadline gets no block as long as somebody isn't, so nobody gets more than the best deadline needs before all
    keep it. If the cut shrinks, there are two maxima (re-split and stage 2) and this is a heuristic, as in its paper.
    """
    one_each = np.ones(round_.num_clients)
    cost = round_cost(round_, Decision(cut, one_each, tx_power_w), one_each, procedure)
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


def equal_powers(round_: Round, cap_w: float) -> Floats:
    """The same power for everybody, as much as P^max and the cap on the sum allow, [N]."""
    return np.full(round_.num_clients, min(round_.radio.max_tx_power_w, cap_w / round_.num_clients))


def best_powers(round_: Round, cut: int, rb_count: Floats, cap_w: float, procedure: Procedure) -> Floats:
    """Powers [N] with which the last client is done earliest, subject to p ≤ P^max and Σ p ≤ cap.

    More power is always faster, so without a cap all take P^max. With one, being done by T takes the rate
    bits / (T − forward) and so, inverting the rate, the power

        p_n(T) = (2^{rate / (k B)} − 1) · k B N₀ / g        (B N₀ / g if each block has the client's whole power),

    which falls with T: the earliest T with Σ p_n(T) ≤ cap is found by bisection, between when the last is done if each
    had the largest power and if all had the same. Power that is left once the slowest client is at P^max goes to all in
    proportion to their headroom: it saves errors, not time. Exact if the cut doesn't shrink, as in `greedy_counts`.
    """
    largest_w, equal = min(round_.radio.max_tx_power_w, cap_w), equal_powers(round_, cap_w)
    overheads = round_.equations.overheads
    labels = label_bits(round_.profile, BITS_PER_VALUE, round_.charged_samples, round_.local_steps, overheads)
    bits = round_.charged_samples * round_.profile.activation_bits[cut - 1] + float(labels)
    bits += _layers_sent_bits(round_, cut)
    slowest_rate = round_.uplink_rate_bps(rb_count, equal).min()
    if equal[0] == largest_w or bits == 0 or slowest_rate == 0:
        return equal

    everybody = np.ones(round_.num_clients)
    forward_s = round_cost(round_, Decision(cut, rb_count, equal), everybody, procedure).client_forward_delay_s
    early_s, late_s = (
        float((forward_s + bits / round_.uplink_rate_bps(rb_count, power)).max())
        for power in (largest_w * everybody, equal)
    )
    best = equal
    for _ in range(BISECTIONS):
        middle_s = 0.5 * (early_s + late_s)
        power = power_to_send(round_, rb_count, bits, middle_s - forward_s)
        if power.sum() <= cap_w and power.max() <= largest_w:
            late_s, best = middle_s, power
        else:
            early_s = middle_s
    headroom_w = largest_w - best
    spare_w = cap_w - best.sum()  # less than all the headroom, or the largest power were the same for all
    return np.asarray(best + headroom_w * (spare_w / headroom_w.sum()))


def power_to_send(round_: Round, rb_count: Floats, bits: float, seconds: Floats) -> Floats:
    """Power [N] with which each client sends these bits in this time: the inverse of the uplink rate."""
    bandwidth = round_.radio.rb_bandwidth_hz
    noise_w = uplink_noise_w(rb_count, round_.radio, round_.equations.uplink_power)
    snr = SmoothRate.of(round_.radio).snr_for(bits, seconds * rb_count * bandwidth)
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(snr * noise_w / round_.channel_gain)


def _layers_sent_bits(round_: Round, cut: int) -> float:
    """What each client has to send up in the re-split: 0 unless the cut shrinks."""
    if round_.previous_cut is None:
        return 0.0
    sums = prefix_sums(moving_bits(round_.profile, round_.equations.overheads))
    return max(float(sums[round_.previous_cut] - sums[cut]), 0.0)
