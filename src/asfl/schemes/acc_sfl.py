"""ACC-SFL: one cut per client and the blocks that make the round fastest.

Xu et al., "Accelerating Split Federated Learning over Wireless Communication Networks" (arXiv:2310.15584) choose every
client's cut and bandwidth so that the round is as short as possible, by solving in turn for the bandwidth with given
cuts and for the cuts with given bandwidth, each exactly. They assume that everything sent arrives. The round, as it
is charged here with all packets arriving, takes

    max_n [ψ down + forward + activations up]  +  Σ_n server  +  max_n [gradient down + backward + ψ up],

ψ being the client model, which comes down and goes up every round. Below, the first bracket is `upload_s`, the second
`return_s`; both hold uplink traffic, so both depend on a client's blocks and on its cut.

What differs from its paper, or is open there, and was chosen: bandwidth comes in whole blocks, also where others share
blocks in time, not in hertz; its clients are never too many, here ASFL says who takes part; its powers are given, here
they are drawn at random; and the descent starts from the best common cut under an even split of the blocks.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import ACC_SFL, ExchangeRules, cost_of_all_cuts, round_cost
from asfl.costs.round import Decision, Round
from asfl.optimize import Problem
from asfl.schemes.base import Decided, decided_for_served, descend, even_counts, random_powers, relative_uplink_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class AccSflScheme:
    """Cuts and blocks in turn until the round gets no shorter. Clients that sit out report cut 1, which isn't used."""

    borrows: ClassVar[bool] = True
    name: str = "acc-sfl"
    exchange: ExchangeRules = ACC_SFL

    def decide(self, problem: Problem, seed: int) -> Decided:
        tx_power_w, nothing = random_powers(problem, seed), np.zeros(problem.round.num_clients)

        def decide(round_: Round, clients: Ints) -> Decision:
            patient = replace(round_, outage_s=np.inf)  # its outage isn't ASFL's
            return Decision(*fastest_round(patient, tx_power_w[clients]), tx_power_w[clients])

        return decided_for_served(problem, Decision(np.ones_like(nothing, np.int64), nothing, tx_power_w), decide)


def fastest_round(round_: Round, tx_power_w: Floats) -> tuple[Ints, Floats]:
    """Cuts [N] and counts [N] of a round in which every client takes part: blocks and cuts in turn."""
    rb_count, all_arrive = even_counts(round_), np.ones(round_.num_clients)
    delay_of_cut_s = cost_of_all_cuts(round_, rb_count, tx_power_w, all_arrive, ACC_SFL).delay_s
    cut = np.full(round_.num_clients, round_.profile.cuts[np.argmin(delay_of_cut_s)])

    def improved(now: tuple[Ints, Floats]) -> tuple[Ints, Floats]:
        count = best_counts(round_, now[0], tx_power_w)
        return best_cuts(round_, count, tx_power_w), count

    return descend((cut, rb_count), improved, lambda now: _latency_s(round_, *now, tx_power_w))


def _latency_s(round_: Round, cut: Ints, rb_count: Floats, tx_power_w: Floats) -> float:
    all_arrive = np.ones(round_.num_clients)
    return float(round_cost(round_, Decision(cut, rb_count, tx_power_w), all_arrive, ACC_SFL).delay_s)


# ---------------------------------------------------------------------- blocks for given cuts
def best_counts(
    round_: Round, cut: Ints, tx_power_w: Floats, exchange: ExchangeRules = ACC_SFL, batch: Ints | None = None
) -> Floats:
    """Counts [N], all ≥ 1, that make the round shortest for these cuts: exact."""
    one_each = np.ones(round_.num_clients)
    shorter = relative_uplink_s(round_, tx_power_w)
    cost = round_cost(round_, Decision(cut, one_each, tx_power_w, batch=batch), one_each, exchange)
    upload_s = cost.model_down_delay_s + cost.client_forward_delay_s + cost.uplink_delay_s * shorter
    return_s = cost.downlink_delay_s + cost.client_backward_delay_s + cost.model_up_delay_s * shorter
    return counts_for_two_maxima(upload_s, return_s, round_.radio.num_rbs).astype(float)


def counts_for_two_maxima(upload_s: Floats, return_s: Floats, num_rbs: int) -> Ints:
    """Counts [N] that minimise max_n upload_s[k_n − 1, n] + max_n return_s[k_n − 1, n] with Σ k ≤ K: exact.

    Row k − 1 of the tables [K', N] holds the delays with k blocks; no delay grows with k. Always giving the next block
    to the straggler is exact for *one* maximum, but with two a block may serve either. Instead: the two maxima of any
    allocation are entries of the two tables. Deadlines (T, T') are kept if and only if every client has at least
    max(k_n(T), k'_n(T')) blocks, where k_n(T) is the first row that meets T. So they can be kept if and only if
    these needs sum to at most K, and the needs then are an allocation that does. A later deadline needs no more
    blocks, so the earliest T for each of the few T' is found by bisection, for all T' at once; the least T + T' is the
    minimum. No block is handed out that these deadlines don't need.
    """
    upload_s, return_s = np.minimum.accumulate(upload_s), np.minimum.accumulate(return_s)  # rounding may lift an entry
    upload_deadlines, upload_needs = _deadlines_and_needs(upload_s)
    return_deadlines, return_needs = _deadlines_and_needs(return_s)
    low = np.zeros(len(return_deadlines), dtype=np.int64)
    high = np.full(len(return_deadlines), len(upload_deadlines) - 1)  # the latest: one block each always will do
    for _ in range(len(upload_deadlines).bit_length()):
        middle = (low + high) // 2
        kept = np.maximum(upload_needs[middle], return_needs).sum(axis=1) <= num_rbs
        low, high = np.where(kept, low, np.minimum(middle + 1, high)), np.where(kept, middle, high)
    needs = np.maximum(upload_needs[high], return_needs)
    total_s = np.where(needs.sum(axis=1) <= num_rbs, upload_deadlines[high] + return_deadlines, np.inf)
    # The last row can always be kept, so it is the one to take if nothing is finite.
    return np.asarray(needs[::-1][int(np.argmin(total_s[::-1]))])


def _deadlines_and_needs(table: Floats) -> tuple[Floats, Ints]:
    """Every entry [D] in ascending order, and the blocks each client needs to be done by then [D, N]."""
    deadlines = np.unique(table)
    return deadlines, 1 + (table[:, None, :] > deadlines[:, None]).sum(axis=0)


# ---------------------------------------------------------------------- cuts for given blocks
def best_cuts(round_: Round, rb_count: Floats, tx_power_w: Floats) -> Ints:
    """Cuts [N] that make the round shortest with these blocks: exact."""
    all_arrive = np.ones(round_.num_clients)
    cost = cost_of_all_cuts(round_, rb_count, tx_power_w, all_arrive, ACC_SFL)
    upload_s = cost.model_down_delay_s + cost.client_forward_delay_s + cost.uplink_delay_s
    return_s = cost.downlink_delay_s + cost.client_backward_delay_s + cost.model_up_delay_s
    return round_.profile.cuts[choices_for_two_maxima(upload_s, return_s, cost.server_delay_s)]


def choices_for_two_maxima(upload_s: Floats, return_s: Floats, server_s: Floats) -> Ints:
    """Row c_n of each client that minimises max_n upload_s[c_n, n] + max_n return_s[c_n, n] + Σ_n server_s[c_n, n].

    Tables are [C, N]. Exact: the two maxima of any choice are entries of the tables, and for given deadlines (T, T')
    each client takes its cheapest row that keeps both. What T alone allows — the earliest T' and the least server time
    — bounds its best total from below, so the T are tried in the order of that bound until it can't beat the best. For
    one T all T' are tried at once: a client's server time is a falling staircase over T'.
    """
    upload, back, server = upload_s.T.copy(), return_s.T.copy(), server_s.T.copy()  # [N, C]
    deadlines = np.sort(upload, axis=None)  # [D], D = N · C
    least_return_s = _least_by_deadline(upload, back).max(axis=1)
    bound_s = deadlines + least_return_s + _least_by_deadline(upload, server).sum(axis=1)

    by_return = np.argsort(back, axis=1)
    upload_by_return, server_by_return = (np.take_along_axis(table, by_return, 1) for table in (upload, server))
    steps = np.argsort(np.take_along_axis(back, by_return, 1), axis=None, kind="stable")
    return_deadlines = np.sort(back, axis=None)  # [D]
    most = server.max()

    best_s, best = np.inf, (np.inf, np.inf)
    for index in np.argsort(bound_s, kind="stable"):
        if not bound_s[index] < best_s:
            break
        deadline = deadlines[index]
        staircase = np.minimum.accumulate(np.where(upload_by_return <= deadline, server_by_return, most), axis=1)
        drops = -np.diff(staircase, axis=1, prepend=most)
        first = np.searchsorted(return_deadlines, least_return_s[index])  # earlier, some client has no row
        total_s = (return_deadlines - np.cumsum(drops.ravel()[steps]))[first:] + (deadline + len(server) * most)
        where = int(np.argmin(total_s))
        if total_s[where] < best_s:
            best_s, best = total_s[where], (deadline, return_deadlines[first + where])
    return np.asarray(np.where((upload <= best[0]) & (back <= best[1]), server, np.inf).argmin(axis=1))


def _least_by_deadline(deadline_of: Floats, value: Floats) -> Floats:
    """[D, N]: the least value [N, C] of each client among its rows that keep each deadline; infinite if none does."""
    clients, rows = value.shape
    order = np.argsort(deadline_of, axis=None)
    least = np.full((clients * rows, clients), np.inf)
    least[np.arange(clients * rows), order // rows] = value.ravel()[order]
    return np.minimum.accumulate(least)
