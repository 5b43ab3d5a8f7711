"""Give out resource blocks when every client's cost depends on its own count only.

    min Σ_n cost[k_n, n]   subject to   Σ k_n ≤ K,   at least P clients with k_n ≥ 1

Exact: by sorting when nobody may have more than one block, else by dynamic programming over clients, with the blocks
used so far (and the clients served so far, if P asks for some) as state.
"""

from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

ENUMERABLE = 2_000
"""Below this many allocations, trying them all is fastest, and exact whatever the objective."""


def allocate(cost: Floats, num_rbs: int, min_served: int) -> tuple[Counts, float] | None:
    """Best counts [N] and their cost, for cost [1 + most, N] with the cost of k blocks in row k; None if impossible."""
    single = cost.shape[0] == 2
    counts = _pick_singles(cost, num_rbs, min_served) if single else _by_programming(cost, num_rbs, min_served)
    if counts is None:
        return None
    total = float(cost[counts, np.arange(cost.shape[1])].sum())
    return (counts, total) if np.isfinite(total) else None


def _pick_singles(cost: Floats, num_rbs: int, min_served: int) -> Counts:
    """Nobody gets more than one block: serve those who gain most by it, at least `min_served`."""
    gain = np.where(np.isfinite(cost[1]), cost[1] - cost[0], np.inf)
    order = np.argsort(gain, kind="stable")
    worthwhile = int(np.searchsorted(gain[order], 0.0))
    served = order[: min(num_rbs, max(min_served, worthwhile))]
    counts = np.zeros(cost.shape[1], dtype=np.int64)
    counts[served] = 1
    return counts


def _by_programming(cost: Floats, num_rbs: int, min_served: int) -> Counts | None:
    """State: (clients served so far, capped at `min_served`; blocks used so far). Row k of `cost` uses k blocks."""
    choices, num_clients = cost.shape
    need = min_served
    value = np.full((need + 1, num_rbs + 1), np.inf)
    value[0, 0] = 0.0
    choice = np.zeros((num_clients, need + 1, num_rbs + 1), dtype=np.int64)
    came_from = np.zeros((num_clients, need + 1, num_rbs + 1), dtype=np.int64)
    for client in range(num_clients):
        # after[k, i, j]: best value of reaching (i served, j used) by giving this client k blocks.
        after = np.full((choices, need + 1, num_rbs + 1), np.inf)
        after[0] = value + cost[0, client]
        origin = np.broadcast_to(np.arange(need + 1)[:, None], value.shape)
        best_origin = np.broadcast_to(origin, after.shape).copy()
        for blocks in range(1, min(choices - 1, num_rbs) + 1):
            reached = value[:, : num_rbs + 1 - blocks] + cost[blocks, client]
            after[blocks, 1:, blocks:] = reached[:-1]
            best_origin[blocks, 1:, blocks:] = origin[:-1, blocks:]
            # Whoever has served enough already stays at the cap.
            at_cap = reached[-1] < after[blocks, -1, blocks:]
            after[blocks, -1, blocks:] = np.where(at_cap, reached[-1], after[blocks, -1, blocks:])
            best_origin[blocks, -1, blocks:] = np.where(at_cap, need, best_origin[blocks, -1, blocks:])
        choice[client] = np.argmin(after, axis=0)
        value = np.take_along_axis(after, choice[client][None], axis=0)[0]
        came_from[client] = np.take_along_axis(best_origin, choice[client][None], axis=0)[0]
    used = int(np.argmin(value[need]))
    if not np.isfinite(value[need, used]):
        return None
    counts, served = np.zeros(num_clients, dtype=np.int64), need
    for client in reversed(range(num_clients)):
        counts[client] = choice[client, served, used]
        served, used = int(came_from[client, served, used]), used - int(counts[client])
    return counts


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
