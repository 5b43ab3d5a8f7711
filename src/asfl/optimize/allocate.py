"""Give out resource blocks when every client's cost depends on its own count only.

    min Σ_n cost[k_n, n]   subject to   Σ k_n ≤ K,   at least P clients with k_n ≥ 1

Exact: by sorting when nobody may have more than one block, by trying all allocations when they are few, else by dynamic
programming over clients. Only where that would take too long (hundreds of clients with hundreds of blocks to choose
from) a price per block takes its place; it gives a bound from below too, so the gap is always known.
"""

from functools import lru_cache
from math import comb

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


def allocate(cost: Floats, num_rbs: int, min_served: int) -> tuple[Counts, Floats]:
    """Best counts [G, N] and their cost [G] in G cases with the cost of k blocks in cost[:, k]; ∞ where impossible."""
    cases, choices, clients = cost.shape
    if choices == 2:
        counts = _pick_singles(cost, num_rbs, min_served)
    elif number_of_allocations(clients, num_rbs, min_served) <= ENUMERABLE:
        table_index = index_of_all_allocations(clients, num_rbs, min_served)
        totals = cost.reshape(cases, -1).take(table_index, axis=1).sum(axis=2)
        counts = all_allocations(clients, num_rbs, min_served)[totals.argmin(axis=1)]
    elif clients * choices * num_rbs * (1 + min_served * (min_served < clients)) > PROGRAMMABLE:
        blocks = np.broadcast_to(np.arange(choices, dtype=float)[:, None], (choices, clients))
        return fit_by_price(cost, blocks, float(num_rbs), min_served)
    elif min_served in (0, clients):
        counts = _by_programming_together(cost, num_rbs, serve_all=min_served > 0)
    else:
        counts = np.array([_by_programming(case, num_rbs, min_served) for case in cost])
    totals = cost[np.arange(cases)[:, None], counts, np.arange(clients)].sum(axis=1)
    kept = (counts.sum(axis=1) <= num_rbs) & ((counts > 0).sum(axis=1) >= min_served)
    return counts, np.where(kept, totals, np.inf)


def _pick_singles(cost: Floats, num_rbs: int, min_served: int) -> Counts:
    """Nobody gets more than one block: serve those who gain most by it, at least `min_served`."""
    gain = np.where(cost[:, 1] < np.inf, cost[:, 1] - cost[:, 0], np.inf)
    if num_rbs <= min_served < gain.shape[1]:  # exactly as many as there are blocks: no need to sort the others
        served = np.argpartition(gain, num_rbs - 1, axis=1)[:, :num_rbs]
        counts = np.zeros(gain.shape, dtype=np.int64)
        np.put_along_axis(counts, served, 1, axis=1)
        return counts
    rank = gain.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return ((rank < min_served) | ((gain < 0) & (rank < num_rbs))).astype(np.int64)


def _by_programming_together(cost: Floats, num_rbs: int, *, serve_all: bool) -> Counts:
    """[G, N] for all cases at once, where everybody or anybody may be served: state is the blocks used so far."""
    cases, choices, num_clients = cost.shape
    falling = cost[:, ::-1].copy()  # entry i is the cost of choices − 1 − i blocks
    if serve_all:
        falling[:, -1] = np.inf
    value = np.full((cases, num_rbs + 1), np.inf)
    value[:, 0] = 0.0
    before_any = np.full((cases, choices - 1), np.inf)
    given = np.empty((num_clients, cases, num_rbs + 1), dtype=np.int64)
    for client in range(num_clients):
        padded = np.concatenate([before_any, value], axis=1)
        reached = sliding_window_view(padded, choices, axis=1) + falling[:, None, :, client]
        best = reached.argmin(axis=2)
        given[client] = choices - 1 - best
        value = np.take_along_axis(reached, best[:, :, None], axis=2)[:, :, 0]
    used, case = value.argmin(axis=1), np.arange(cases)
    counts = np.zeros((cases, num_clients), dtype=np.int64)
    for client in reversed(range(num_clients)):
        counts[:, client] = given[client, case, used]
        used = np.maximum(used - counts[:, client], 0)  # below 0 only in cases that are impossible anyway
    return counts


def _by_programming(cost: Floats, num_rbs: int, min_served: int) -> Counts:
    """State: clients served so far, capped at the number asked for, and blocks used so far.

    Serving everybody needs no count of the served: row 0 is simply out.
    """
    choices, num_clients = cost.shape
    need = 0 if min_served >= num_clients else min_served
    least = 1 if min_served >= num_clients else 0
    value = np.full((need + 1, num_rbs + 1), np.inf)
    value[0, 0] = 0.0
    given = np.zeros((num_clients, need + 1, num_rbs + 1), dtype=np.int64)
    came_from = np.zeros((num_clients, need + 1, num_rbs + 1), dtype=np.int64)
    served_before = np.arange(need + 1)[:, None]
    for client in range(num_clients):
        after = np.full((need + 1, num_rbs + 1), np.inf)
        for blocks in range(least, min(choices - 1, num_rbs) + 1):
            reached = np.full_like(after, np.inf)
            origin = np.broadcast_to(served_before, after.shape)
            moved = value[:, : num_rbs + 1 - blocks] + cost[blocks, client]
            if blocks == 0 or need == 0:
                reached[:, blocks:] = moved
            else:
                reached[1:, blocks:] = moved[:-1]
                # Whoever has served enough already stays at the cap.
                stay = moved[-1] < reached[-1, blocks:]
                reached[-1, blocks:] = np.where(stay, moved[-1], reached[-1, blocks:])
                origin = np.maximum(origin - 1, 0)
                origin[-1, blocks:] = np.where(stay, need, need - 1)
            better = reached < after
            after = np.where(better, reached, after)
            given[client][better] = blocks
            came_from[client][better] = origin[better]
        value = after
    used = int(np.argmin(value[need]))
    counts, served = np.zeros(num_clients, dtype=np.int64), need
    for client in reversed(range(num_clients)):
        counts[client] = given[client, served, used]
        served, used = int(came_from[client, served, used]), used - int(counts[client])
    return counts


@lru_cache(maxsize=256)
def number_of_allocations(num_clients: int, num_rbs: int, min_served: int) -> int:
    """How many counts have Σ ≤ K and at least P clients served: Σ_j C(N, j) C(K, j)."""
    most = min(num_clients, num_rbs)
    return sum(comb(num_clients, served) * comb(num_rbs, served) for served in range(min_served, most + 1))


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
    """[L, N] where each allocation's entries stand in a flattened table [1 + most, N]."""
    return all_allocations(num_clients, num_rbs, min_served) * num_clients + np.arange(num_clients)


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
