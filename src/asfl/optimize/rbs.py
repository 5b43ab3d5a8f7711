"""RB block: the best counts for a given cut and given powers (paper's problem (49)).

Only how many blocks a client gets matters, because the channel is flat over blocks: N counts instead of the paper's
N·K binaries, and no mixed-integer solver. The printed complexity O(N^K) is that of trying every assignment. Also, the
printed (49) has no term that makes anybody be served; here at least `min_participants` are.
"""

from functools import lru_cache
from math import comb, lgamma, log

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.grid import Grid
from asfl.optimize.problem import Problem
from asfl.optimize.search import Choices, search_deadlines
from asfl.optimize.terms import CutTerms

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

ENUMERABLE = 2_000
"""Below this many allocations all are tried, which is exact whatever the objective."""
UNCOUNTED = 10**12

TOLERANCE = 1e-7
"""Relative tolerance of the deadline search; small instances are enumerated and exact."""
ROUGH_TOLERANCE = 1e-4
"""The same where there are so many clients or blocks that not every count is tried."""


def best_rb_counts(
    problem: Problem,
    here: CutTerms,
    tx_power_w: Floats,
    current: Floats,
    *,
    enumerate_small: bool = True,
) -> Floats:
    """Counts [N] that minimise the block objective; never worse than `current`."""
    grid = Grid.of(problem, tx_power_w[None])
    choices = grid.choices(here)
    num_rbs, clients, need = problem.round.radio.num_rbs, problem.round.num_clients, problem.min_participants
    if enumerate_small and number_of_allocations(clients, num_rbs, need) <= ENUMERABLE:
        best = _best_of_all(problem, choices, index_of_all_allocations(clients, num_rbs, need))
        return np.asarray(all_allocations(clients, num_rbs, need)[best], dtype=float)
    start = np.where(current > 0, 1 + np.searchsorted(grid.counts, current), 0)
    tolerance = TOLERANCE if grid.has_every_count else ROUGH_TOLERANCE
    found = search_deadlines(choices, problem.delay_penalty, start, tolerance)
    return current if found is None else np.concatenate([[0.0], grid.counts])[found.pick]


def _best_of_all(problem: Problem, choices: Choices, table_index: NDArray[np.int64]) -> int:
    """Try every allocation in one go: look all of them up [N, L], then sums and maxima over clients."""
    candidates = choices.candidates
    stage_s = candidates.stage_s.reshape(3, -1).take(table_index, axis=1)
    delay = stage_s.max(axis=1).sum(axis=0) + choices.server_s[0] * candidates.load.take(table_index).sum(axis=0)
    return int(np.argmin(problem.delay_penalty.value(delay) + candidates.cost.take(table_index).sum(axis=0)))


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
