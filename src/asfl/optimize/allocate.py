"""Choose a candidate for every client when each client's cost depends on its own choice only.

    min Σ_n cost[k_n, n]   subject to   Σ k_n ≤ K,   at least P clients with k_n ≥ 1

By sorting when nobody may have more than one block. Else by a price per block, which gives a choice and a bound from
below; they nearly always meet, and where they don't, dynamic programming over clients makes the choice exact. Only
where that would take too long (dozens of clients with dozens of blocks to choose from) the gap stays, and is known.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import comb, lgamma, log

import numpy as np
from numpy.typing import NDArray

from asfl.config.shapes import Floats, Int, Ints

Counts = NDArray[np.int64]

PROGRAMMABLE = 300_000
"""Beyond this many steps, dynamic programming doesn't close the gap that a price per block leaves."""
PRICE_STEPS = 30
"""Prices per block tried, at most."""
MET = 1e-12
"""Relative difference at which a choice and its bound are the same."""
ENUMERABLE = 2_000
"""Below this many allocations, the RB block tries them all, which is exact whatever the objective."""
UNCOUNTED = 10**12


@dataclass(frozen=True, eq=False)
class Supply:
    """The blocks that candidates draw on. Candidate 0 takes none; candidate 1 + i·P + j takes counts[i] blocks."""

    num_rbs: int
    min_served: int
    counts: Int[Ints, "counts"]
    """Numbers of blocks that a client may have, rising."""
    powers: int = 1
    """P: how many candidates there are for each number of blocks."""
    shares: Floats | None = None
    """[O, N] what each candidate takes instead, where blocks are shared in time."""


def choose(priced: Floats, supply: Supply | None) -> tuple[Counts, Floats]:
    """The best candidate of each client [G, N] in G cases with costs [G, O, N], and a lower bound [G] of their cost.

    The bound is the cost itself where the choice is exact, infinite where there is none. Without a supply nothing
    couples the clients.
    """
    if supply is None:
        return priced.argmin(axis=1), in_order(priced.min(axis=1))
    if supply.shares is not None:
        return fit_by_price(priced, supply.shares, supply.num_rbs, supply.min_served)
    if supply.powers == 1:
        return allocate(priced, supply.counts, supply.num_rbs, supply.min_served)
    # The best power for each count, then the counts.
    cases, _, clients = priced.shape
    by_count = priced[:, 1:].reshape(cases, -1, supply.powers, clients)
    cost = np.concatenate([priced[:, :1], by_count.min(axis=2)], axis=1)
    rows, bounds = allocate(cost, supply.counts, supply.num_rbs, supply.min_served)
    row = np.maximum(rows - 1, 0)
    power = by_count[np.arange(cases)[:, None], row, :, np.arange(clients)].argmin(axis=2)
    return np.where(rows > 0, 1 + row * supply.powers + power, 0), bounds


def allocate(cost: Floats, counts: Ints, num_rbs: int, min_served: int) -> tuple[Counts, Floats]:
    """Rows [G, N] of each client in cost [G, 1 + L, N], and a lower bound [G] of any choice's cost; ∞: impossible.

    Row 0 takes no block, row i + 1 takes counts[i].
    """
    clients = cost.shape[2]
    if counts.tolist() == [1]:
        rows = _pick_singles(cost, num_rbs, min_served)
        served = rows.sum(axis=1)
        return rows, np.where((min_served <= served) & (served <= num_rbs), _spent(cost, rows), np.inf)
    blocks = np.concatenate([[0], counts])
    if min_served >= clients:
        cost = cost.copy()
        cost[:, 0], min_served = np.inf, 0
    rows, bounds = _by_price(cost, blocks, num_rbs, min_served)
    if is_programmable(len(blocks), clients, num_rbs, min_served):
        totals = _spent(cost, rows)
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            open_ = np.flatnonzero(totals - bounds > MET * np.maximum(1.0, np.abs(totals)))
        if open_.size:
            rows[open_] = _by_programming(cost[open_], blocks, num_rbs, min_served)
            bounds[open_] = _spent(cost[open_], rows[open_])
    return rows, bounds


def in_order(values: Floats) -> Floats:
    """Sums over the last axis, one entry after the other: NumPy's own order depends on the shape."""
    return np.asarray(np.add.accumulate(values, axis=-1)[..., -1])


def _spent(cost: Floats, rows: Counts) -> Floats:
    """[G] the cost of rows [G, N]."""
    return in_order(cost[np.arange(len(cost))[:, None], rows, np.arange(cost.shape[2])])


def is_programmable(rows: int, clients: int, num_rbs: int, min_served: int) -> bool:
    """Whether dynamic programming takes few enough steps."""
    return clients * rows * num_rbs * (1 + min_served) <= PROGRAMMABLE


def _pick_singles(cost: Floats, num_rbs: int, min_served: int) -> Counts:
    """Nobody gets more than one block: serve those who gain most by it, at least `min_served`; ties go to the first."""
    gain = _gain(cost[:, 1], cost[:, 0])
    if num_rbs <= min_served < gain.shape[1]:  # exactly as many as there are blocks: no need to sort the others
        return np.where(_are_least(gain, num_rbs), 1, 0)
    rank = gain.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return np.where((rank < min_served) | ((gain < 0) & (rank < num_rbs)), 1, 0)


def _gain(serving: Floats, idle: Floats) -> Floats:
    """What serving a client adds; infinite where that is impossible, whatever it costs not to."""
    return np.asarray(np.subtract(serving, idle, out=np.full_like(serving, np.inf), where=serving < np.inf))


def _are_least(values: Floats, number: int) -> NDArray[np.bool_]:
    """[G, N] which are the least `number` ≥ 1 of each case; of equal ones the first."""
    last = np.partition(values, number - 1, axis=1)[:, number - 1 : number]
    surely, tied = values < last, values == last
    left = number - surely.sum(axis=1, keepdims=True)
    return np.asarray(surely | (tied & (tied.cumsum(axis=1) <= left)))


def _by_price(cost: Floats, blocks: Ints, num_rbs: int, min_served: int) -> tuple[Counts, Floats]:
    """Rows [G, N] that fit, and a lower bound [G] of the cost of any that do: the optimum of the Lagrangian dual.

    At a price per block every client takes its cheapest row, and `min_served` of them at least some block. Without a
    price they may take too much, at an enormous one they take as little as they can. Both choices cost a straight line
    in the price; where the lines meet is the next price, until no choice is below that point. What is left over then
    goes where it saves most.
    """
    every, clients = np.arange(len(cost))[:, None], np.arange(cost.shape[2])
    # Whom a higher price doesn't scare off takes fewer blocks: rows between `least` and `most` are left.
    least, most = 1 + (cost[:, 1:] < np.inf).argmax(axis=1), 1 + cost[:, 1:].argmin(axis=1)
    low, low_used, low_spent = _taken_at(np.zeros(len(cost)), most, cost, blocks, min_served)
    extremes = np.stack([cost[:, 0], cost[every, least, clients], cost[every, most, clients]])
    extremes = np.where(extremes < np.inf, extremes, 0.0)
    enormous = 2.0 * (extremes.max(axis=(0, 2)) - extremes.min(axis=(0, 2))) + 1e-9
    high, high_used, high_spent = _taken_at(enormous, least, cost, blocks, min_served)
    fits = low_used <= num_rbs
    possible = (low_spent < np.inf) & (fits | (high_used <= num_rbs) & (high_spent < np.inf))
    bound = np.where(possible, low_spent, np.inf)
    high = np.where(fits[:, None], low, high)
    open_ = np.flatnonzero(possible & ~fits)
    for _ in range(PRICE_STEPS):
        if not open_.size:
            break
        price = (high_spent[open_] - low_spent[open_]) / (low_used[open_] - high_used[open_])
        meet = low_spent[open_] + price * (low_used[open_] - num_rbs)
        serving = _best_rows(price, cost[open_], blocks, least[open_], most[open_])
        found, used, spent = _taken_at(price, serving, cost[open_], blocks, min_served)
        dual = spent + price * (used - num_rbs)
        bound[open_] = np.maximum(bound[open_], dual)
        is_high = used <= num_rbs
        here, there = open_[is_high], open_[~is_high]
        least[here], most[there] = serving[is_high], serving[~is_high]
        high[here], high_used[here], high_spent[here] = found[is_high], used[is_high], spent[is_high]
        low_used[there], low_spent[there] = used[~is_high], spent[~is_high]
        open_ = open_[(dual < meet - MET * np.maximum(1.0, np.abs(meet))) & (used != num_rbs)]
    _give_the_rest(cost, blocks, num_rbs, high)
    return high, np.minimum(bound, np.where(possible, _spent(cost, high), np.inf))


def _best_rows(price: Floats, cost: Floats, blocks: Ints, least: Counts, most: Counts) -> Counts:
    """Rows [G, N] from `least` to `most` that are best at a price per block [G]."""
    row = np.arange(len(blocks))[:, None]
    outside = (row < least[:, None]) | (row > most[:, None])
    best = np.where(outside, np.inf, cost + price[:, None, None] * blocks[:, None]).argmin(axis=1)
    return np.asarray(
        np.maximum(best, 1)
    )  # of clients that can't be served all are infinite, and row 0 is no way to serve them


def _taken_at(
    price: Floats, serving: Counts, cost: Floats, blocks: Ints, min_served: int
) -> tuple[Counts, Ints, Floats]:
    """Rows [G, N] when clients take `serving` or nothing at a price per block [G]; their blocks and cost [G]."""
    of_client = cost[np.arange(len(cost))[:, None], serving, np.arange(cost.shape[2])]
    gain = _gain(of_client + price[:, None] * blocks[serving], cost[:, 0])
    takes = gain < 0
    if min_served > 0:
        takes |= _are_least(gain, min_served)
    rows = np.where(takes, serving, 0)
    return rows, blocks[rows].sum(axis=1), _spent(cost, rows)


def _give_the_rest(cost: Floats, blocks: Ints, num_rbs: int, rows: Counts) -> None:
    """Blocks that are left go, in place, where they save most per block, as long as they save anything."""
    clients = np.arange(cost.shape[2])
    left = num_rbs - blocks[rows].sum(axis=1)
    open_ = np.flatnonzero(left > 0)
    while open_.size:
        now = rows[open_]
        more = blocks[:, None] - blocks[now][:, None]
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            saves = cost[open_[:, None], now, clients][:, None] - cost[open_]
        fits = (more > 0) & (more <= left[open_, None, None]) & (saves > 0)
        each = np.where(fits, saves / np.maximum(more, 1), 0.0).reshape(len(open_), -1)
        best = each.argmax(axis=1)
        gains = each[np.arange(len(open_)), best] > 0
        open_, (row, client) = open_[gains], np.divmod(best[gains], len(clients))
        left[open_] -= blocks[row] - blocks[rows[open_, client]]
        rows[open_, client] = row
        open_ = open_[left[open_] > 0]


def _by_programming(cost: Floats, blocks: Ints, num_rbs: int, min_served: int) -> Counts:
    """Rows [G, N], client after client. State: clients served so far, up to the number asked for, and blocks used."""
    cases, rows, clients = cost.shape
    need, most = min_served, int(blocks[-1])
    value = np.full((cases, need + 1, num_rbs + 1), np.inf)
    value[:, 0, 0] = 0.0
    origin = np.full((cases, need + 1, most + num_rbs + 1), np.inf)
    before = most + np.arange(num_rbs + 1)[:, None] - blocks[:0:-1]  # [used, L]: from where the last … first row leads
    reached = np.empty((*value.shape, rows))
    values, given = [], []
    for client in range(clients):
        origin[:, :, most:] = _before_serving_one_more(value)
        np.add(origin[:, :, before], cost[:, None, None, :0:-1, client], out=reached[..., :-1])
        np.add(value, cost[:, 0, client, None, None], out=reached[..., -1])
        values.append(value)
        given.append(rows - 1 - reached.argmin(axis=3))
        value = reached.min(axis=3)
    case, served, used = np.arange(cases), np.full(cases, need), value[:, need].argmin(axis=1)
    chosen = np.zeros((cases, clients), dtype=np.int64)
    for client in reversed(range(clients)):
        row = chosen[:, client] = given[client][case, served, used]
        used = used - blocks[row]
        if need > 0:
            enough = values[client][case, need, used] < values[client][case, need - 1, used]
            served = np.where((row == 0) | ((served == need) & enough), served, np.maximum(served - 1, 0))
    return chosen


def _before_serving_one_more(value: Floats) -> Floats:
    """[G, S, K+1] the best value from which serving a client leads to each state; enough served stays enough."""
    if value.shape[1] == 1:
        return value
    before = np.full_like(value, np.inf)
    before[:, 1:] = value[:, :-1]
    before[:, -1] = np.minimum(value[:, -2], value[:, -1])
    return before


@lru_cache(maxsize=256)
def number_of_allocations(num_clients: int, num_rbs: int, min_served: int) -> int:
    """How many counts have Σ ≤ K and at least P clients served: Σ_j C(N, j) C(K, j), or `UNCOUNTED`."""
    total = 0
    for served in range(min_served, min(num_clients, num_rbs) + 1):
        if _log_comb(num_clients, served) + _log_comb(num_rbs, served) > log(UNCOUNTED):
            return UNCOUNTED  # numbers of thousands of digits take long, and nobody needs them
        total += comb(num_clients, served) * comb(num_rbs, served)
    return total


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


@lru_cache(maxsize=64)
def all_allocations(num_clients: int, num_rbs: int, min_served: int) -> Counts:
    """[L, N] every allocation, built client by client; only asked for where L is small."""
    rows: list[tuple[int, ...]] = [()]
    for client in range(num_clients):
        still_to_come = num_clients - client - 1
        rows = [
            (*row, blocks)
            for row in rows
            for blocks in range(num_rbs - sum(row) + 1)
            if sum(k > 0 for k in row) + (blocks > 0) + min(still_to_come, num_rbs - sum(row) - blocks) >= min_served
        ]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), num_clients)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=64)
def index_of_all_allocations(num_clients: int, num_rbs: int, min_served: int) -> Counts:
    """[N, L] where each allocation's entries stand in a flattened table [1 + most, N]."""
    return np.ascontiguousarray(
        (all_allocations(num_clients, num_rbs, min_served) * num_clients + np.arange(num_clients)).T
    )


def fit_by_price(priced: Floats, shares: Floats, num_rbs: float, need: int) -> tuple[Counts, Floats]:
    """Candidates [G, N] whose shares [O, N] fit into `num_rbs`, and a lower bound [G] of any such choice's cost.

    Lagrangian: at a price per block every client takes its cheapest candidate, at least `need` of them other than
    candidate 0; the price is raised by bisection until the choice fits. Every price gives a bound from below.
    """
    cases, _, clients = priced.shape
    case = np.arange(cases)[:, None]
    table = priced.copy()
    serve_all = need >= clients
    if serve_all:
        table[:, 0] = np.inf

    def choose_at(price: Floats) -> tuple[Counts, Floats, Floats]:
        total = table + price[:, None, None] * shares
        pick = total.argmin(axis=1)
        if need > 0 and not serve_all:
            gain = total[:, 1:].min(axis=1) - np.where(np.isfinite(total[:, 0]), total[:, 0], 0.0)
            forced = gain.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") < need
            pick = np.where(forced, 1 + total[:, 1:].argmin(axis=1), pick)
        chosen = total[case, pick, np.arange(clients)].sum(axis=1)
        return pick, shares[pick, np.arange(clients)].sum(axis=1), chosen - price * num_rbs

    enough = num_rbs * (1 + 1e-12)
    finite = np.where(np.isfinite(table), table, 0.0)
    low, high = np.zeros(cases), 1e-9 + np.ptp(finite, axis=(1, 2)) / max(float(shares[shares > 0].min()), 1e-300)
    best, used, bound = choose_at(low)
    fits = used <= enough
    # A price this high makes everybody take its smallest share; if that doesn't fit, nothing does.
    smallest, used, dual = choose_at(high)
    possible = fits | (used <= enough)
    bound = np.where(fits, bound, np.maximum(bound, dual))
    best = np.where(fits[:, None], best, smallest)
    high = np.where(fits, 0.0, high)
    for _ in range(PRICE_STEPS):
        if (high - low <= 1e-6 * high).all():
            break
        price = 0.5 * (low + high)
        pick, used, dual = choose_at(price)
        bound = np.where(high > 0, np.maximum(bound, dual), bound)
        kept = (used <= enough) & (high > 0)
        best = np.where(kept[:, None], pick, best)
        low, high = np.where(kept, low, np.where(high > 0, price, low)), np.where(kept, price, high)
    cost = table[case, best, np.arange(clients)].sum(axis=1)
    return best, np.where(possible & np.isfinite(cost), np.minimum(bound, cost), np.inf)
