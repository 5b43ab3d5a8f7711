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
        fitted = [fit_by_price(case, blocks, float(num_rbs), min_served) for case in cost]
        return np.array([pick for pick, _ in fitted]), np.array([bound for _, bound in fitted])
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
    if min_served >= num_rbs:  # exactly as many as there are blocks
        order = np.argpartition(gain, num_rbs - 1, axis=1)[:, :num_rbs] if num_rbs < gain.shape[1] else None
        counts = np.ones_like(gain, dtype=np.int64) if order is None else np.zeros_like(gain, dtype=np.int64)
        if order is not None:
            np.put_along_axis(counts, order, 1, axis=1)
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


def fit_by_price(priced: Floats, shares: Floats, num_rbs: float, need: int) -> tuple[Counts, float]:
    """Candidates whose shares fit into `num_rbs`, by bisection on the price of a block; and the best dual bound."""
    clients = np.arange(priced.shape[1])
    must_serve = need >= priced.shape[1] or bool((~np.isfinite(priced[0])).all())
    table = priced.copy()
    if must_serve:
        table[0] = np.inf
    impossible = np.zeros(priced.shape[1], dtype=np.int64), np.inf
    if not np.isfinite(table).any(axis=0).all():
        return impossible

    def pick_at(price: float) -> tuple[Counts, float, float]:
        total = table + price * shares
        pick = np.argmin(total, axis=0)
        if not must_serve and need > 0:
            gain = total[1:].min(axis=0) - total[0]
            forced = np.argsort(gain, kind="stable")[:need]
            pick[forced] = 1 + np.argmin(total[1:, forced], axis=0)
        used = float(shares[pick, clients].sum())
        return pick, used, float(total[pick, clients].sum()) - price * num_rbs

    pick, used, bound = pick_at(0.0)
    if used <= num_rbs * (1 + 1e-12):
        return pick, float(table[pick, clients].sum())
    low, high = 0.0, 1e-6 + float(np.ptp(table[np.isfinite(table)])) / num_rbs
    fitting = None
    for _ in range(60):
        if fitting is None:
            price = high
            high *= 4
        else:
            price = 0.5 * (low + high)
        pick, used, dual = pick_at(price)
        bound = max(bound, dual)
        if used <= num_rbs * (1 + 1e-12):
            fitting, high = pick, price
            if high - low <= 1e-9 * high:
                break
        else:
            low = price
    if fitting is None or not np.isfinite(table[fitting, clients].sum()):
        return impossible
    return fitting, min(bound, float(table[fitting, clients].sum()))
