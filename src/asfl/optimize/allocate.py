"""Choose a candidate for every client when each client's cost depends on its own choice only.

    min Σ_n cost[k_n, n]   subject to   Σ k_n ≤ K,   at least P clients with k_n ≥ 1

Exact: by sorting when nobody may have more than one block, by trying all allocations when they are few, else by dynamic
programming over clients. Only where that would take too long (hundreds of clients with hundreds of blocks to choose
from) a price per block takes its place; it gives a bound from below too, so the gap is always known.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import comb, lgamma, log

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

PROGRAMMABLE = 300_000
"""Beyond this many steps, dynamic programming gives way to a price per block."""
PRICE_STEPS = 30
"""Bisections of the price per block."""
ENUMERABLE = 2_000
"""Below this many allocations, trying them all is fastest, and exact whatever the objective."""
UNCOUNTED = 10**12


@dataclass(frozen=True, eq=False)
class Supply:
    """The blocks that candidates draw on. Candidate 0 takes none; candidate 1 + (k−1)·P + j takes k blocks."""

    num_rbs: int
    min_served: int
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
        return allocate(priced, supply.num_rbs, supply.min_served)
    # The best power for each count, then the counts.
    cases, _, clients = priced.shape
    by_count = priced[:, 1:].reshape(cases, -1, supply.powers, clients)
    cost = np.concatenate([priced[:, :1], by_count.min(axis=2)], axis=1)
    counts, totals = allocate(cost, supply.num_rbs, supply.min_served)
    row = np.maximum(counts - 1, 0)
    power = by_count[np.arange(cases)[:, None], row, :, np.arange(clients)].argmin(axis=2)
    return np.where(counts > 0, 1 + row * supply.powers + power, 0), totals


def allocate(cost: Floats, num_rbs: int, min_served: int) -> tuple[Counts, Floats]:
    """Best counts [G, N] and their cost [G] in G cases with the cost of k blocks in cost[:, k]; ∞ where impossible."""
    cases, choices, clients = cost.shape
    if choices == 2:
        counts = _pick_singles(cost, num_rbs, min_served)
    elif number_of_allocations(clients, num_rbs, min_served) <= ENUMERABLE:
        table_index = index_of_all_allocations(clients, num_rbs, min_served)
        totals = cost.reshape(cases, -1).take(table_index, axis=1).sum(axis=1)
        counts = all_allocations(clients, num_rbs, min_served)[totals.argmin(axis=1)]
    elif not is_programmable(choices, clients, num_rbs, min_served):
        blocks = np.broadcast_to(np.arange(choices, dtype=float)[:, None], (choices, clients))
        return fit_by_price(cost, blocks, num_rbs, min_served)
    else:
        counts = _by_programming(cost, num_rbs, min_served)
    totals = in_order(cost[np.arange(cases)[:, None], counts, np.arange(clients)])
    kept = (counts.sum(axis=1) <= num_rbs) & ((counts > 0).sum(axis=1) >= min_served)
    return counts, np.where(kept, totals, np.inf)


def in_order(values: Floats) -> Floats:
    """Sums over the last axis, one entry after the other: NumPy's own order depends on the shape."""
    return np.asarray(np.add.accumulate(values, axis=-1)[..., -1])


def is_programmable(choices: int, clients: int, num_rbs: int, min_served: int) -> bool:
    """Whether dynamic programming takes few enough steps."""
    return clients * choices * num_rbs * (1 + min_served * (min_served < clients)) <= PROGRAMMABLE


def _pick_singles(cost: Floats, num_rbs: int, min_served: int) -> Counts:
    """Nobody gets more than one block: serve those who gain most by it, at least `min_served`; ties go to the first."""
    gain = np.where(cost[:, 1] < np.inf, cost[:, 1] - cost[:, 0], np.inf)
    if num_rbs <= min_served < gain.shape[1]:  # exactly as many as there are blocks: no need to sort the others
        last = np.partition(gain, num_rbs - 1, axis=1)[:, num_rbs - 1 : num_rbs]
        surely, tied = gain < last, gain == last
        left = num_rbs - surely.sum(axis=1, keepdims=True)
        return np.where(surely | (tied & (tied.cumsum(axis=1) <= left)), 1, 0)
    rank = gain.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return np.where((rank < min_served) | ((gain < 0) & (rank < num_rbs)), 1, 0)


def _by_programming(cost: Floats, num_rbs: int, min_served: int) -> Counts:
    """[G, N] client after client. State: clients served so far, up to the number asked for, and blocks used so far.

    Where everybody must be served, only what each gets beyond one block is left to decide.
    """
    cases, choices, clients = cost.shape
    if min_served >= clients:
        return 1 + _by_programming(cost[:, 1:], num_rbs - clients, 0)
    need, idle = min_served, cost[:, 0]
    serving = cost[:, :0:-1].transpose(2, 0, 1)[:, :, None, None].copy()  # [N, G, 1, 1, most … 1 blocks]
    value = np.full((cases, need + 1, num_rbs + 1), np.inf)
    value[:, 0, 0] = 0.0
    origin = np.full((cases, need + 1, choices - 1 + num_rbs + 1), np.inf)
    origins = sliding_window_view(origin, choices - 1, axis=2)[:, :, :-1]  # [..., used, i]: `choices − 1 − i` fewer
    reached = np.empty((*value.shape, choices))
    values, given = [], []
    for client in range(clients):
        origin[:, :, choices - 1 :] = _before_serving_one_more(value)
        np.add(origins, serving[client], out=reached[..., :-1])
        np.add(value, idle[:, client, None, None], out=reached[..., -1])
        values.append(value)
        given.append(choices - 1 - reached.argmin(axis=3))
        value = reached.min(axis=3)
    case, served, used = np.arange(cases), np.full(cases, need), value[:, need].argmin(axis=1)
    counts = np.zeros((cases, clients), dtype=np.int64)
    for client in reversed(range(clients)):
        blocks = counts[:, client] = given[client][case, served, used]
        used = np.maximum(used - blocks, 0)  # below 0 only in cases that are impossible anyway
        if need > 0:
            enough = values[client][case, need, used] < values[client][case, need - 1, used]
            served = np.where((blocks == 0) | ((served == need) & enough), served, np.maximum(served - 1, 0))
    return counts


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
