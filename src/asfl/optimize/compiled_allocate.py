"""`asfl.optimize.allocate`, compiled by Numba: the same choices, and the same sums in the same order, for one case."""

from typing import Any

import numpy as np
from numba import njit

from asfl.optimize.allocate import MET, PRICE_STEPS


@njit(cache=True)
def allocate(cost: Any, blocks: Any, num_rbs: int, min_served: int, programmable: bool, rows: Any) -> float:
    """Fills `rows` [N] from costs [1 + L, N]; returns a lower bound of any choice's cost."""
    clients = cost.shape[1]
    if len(blocks) == 2 and blocks[1] == 1:
        _pick_singles(cost, num_rbs, min_served, rows)
        served = rows.sum()
        return _spent(cost, rows) if min_served <= served <= num_rbs else np.inf
    if min_served >= clients:
        cost[0] = np.inf
        min_served = 0
    bound = _by_price(cost, blocks, num_rbs, min_served, rows)
    if programmable:
        total = _spent(cost, rows)
        if total - bound > MET * max(1.0, abs(total)):
            _by_programming(cost, blocks, num_rbs, min_served, rows)
            bound = _spent(cost, rows)
    return bound


@njit(cache=True)
def _spent(cost: Any, rows: Any) -> float:
    total = cost[rows[0], 0]
    for n in range(1, len(rows)):
        total += cost[rows[n], n]
    return float(total)


@njit(cache=True)
def _used(blocks: Any, rows: Any) -> int:
    used = 0
    for n in range(len(rows)):
        used += blocks[rows[n]]
    return used


@njit(cache=True)
def _pick_singles(cost: Any, num_rbs: int, min_served: int, rows: Any) -> None:
    gain = np.where(cost[1] < np.inf, cost[1] - cost[0], np.inf)
    clients = len(gain)
    rows[:] = 0
    if num_rbs <= min_served < clients:
        _mark_least(gain, num_rbs, rows)
    else:
        order = np.argsort(gain, kind="mergesort")
        for rank in range(clients):
            n = order[rank]
            if rank < min_served or (gain[n] < 0 and rank < num_rbs):
                rows[n] = 1


@njit(cache=True)
def _mark_least(values: Any, number: int, marks: Any) -> None:
    last = np.partition(values, number - 1)[number - 1]
    left = number - (values < last).sum()
    for n in range(len(values)):
        if values[n] < last:
            marks[n] = 1
        elif values[n] == last and left > 0:
            marks[n] = 1
            left -= 1


@njit(cache=True)
def _by_price(cost: Any, blocks: Any, num_rbs: int, min_served: int, rows: Any) -> float:
    clients = cost.shape[1]
    found, takes = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    best, gain = np.zeros(clients), np.zeros(clients)
    _take_at(0.0, cost, blocks, min_served, rows, takes, best, gain)
    low_used, low_spent = _used(blocks, rows), _spent(cost, rows)
    if low_spent == np.inf:
        return np.inf
    bound = low_spent
    if low_used > num_rbs:
        least, most = np.inf, -np.inf
        for row in range(len(blocks)):
            for n in range(clients):
                value = cost[row, n] if cost[row, n] < np.inf else 0.0
                least, most = min(least, value), max(most, value)
        _take_at(2.0 * (most - least) + 1e-9, cost, blocks, min_served, rows, takes, best, gain)
        high_used, high_spent = _used(blocks, rows), _spent(cost, rows)
        if high_used > num_rbs or high_spent == np.inf:
            return np.inf
        for _ in range(PRICE_STEPS):
            price = (high_spent - low_spent) / (low_used - high_used)
            meet = low_spent + price * (low_used - num_rbs)
            _take_at(price, cost, blocks, min_served, found, takes, best, gain)
            used, spent = _used(blocks, found), _spent(cost, found)
            dual = spent + price * (used - num_rbs)
            bound = max(bound, dual)
            if used <= num_rbs:
                rows[:] = found
                high_used, high_spent = used, spent
            else:
                low_used, low_spent = used, spent
            if dual >= meet - MET * max(1.0, abs(meet)) or used == num_rbs:
                break
    _give_the_rest(cost, blocks, num_rbs, rows)
    return min(bound, _spent(cost, rows))


@njit(cache=True)
def _take_at(
    price: float, cost: Any, blocks: Any, min_served: int, rows: Any, takes: Any, best: Any, gain: Any
) -> None:
    """Fills `rows`; the last three are for scratch."""
    clients = cost.shape[1]
    best[:] = np.inf
    rows[:] = 1
    for row in range(1, len(blocks)):
        toll = price * blocks[row]
        for n in range(clients):
            value = cost[row, n] + toll
            better = value < best[n]
            best[n] = value if better else best[n]
            rows[n] = row if better else rows[n]
    willing = 0
    for n in range(clients):
        gain[n] = best[n] - cost[0, n] if best[n] < np.inf else np.inf
        takes[n] = gain[n] < 0
        willing += takes[n]
    if willing < min_served:
        _mark_least(gain, min_served, takes)
    for n in range(clients):
        if not takes[n]:
            rows[n] = 0


@njit(cache=True)
def _give_the_rest(cost: Any, blocks: Any, num_rbs: int, rows: Any) -> None:
    left = num_rbs - _used(blocks, rows)
    while left > 0:
        most, best_row, client = 0.0, 0, 0
        for row in range(1, len(blocks)):
            for n in range(len(rows)):
                more = blocks[row] - blocks[rows[n]]
                if 0 < more <= left:
                    each = (cost[rows[n], n] - cost[row, n]) / more
                    if each > most:
                        most, best_row, client = each, row, n
        if most == 0.0:
            break
        left -= blocks[best_row] - blocks[rows[client]]
        rows[client] = best_row


@njit(cache=True)
def _by_programming(cost: Any, blocks: Any, num_rbs: int, min_served: int, chosen: Any) -> None:
    rows, clients = cost.shape
    need = min_served
    values = np.full((clients + 1, need + 1, num_rbs + 1), np.inf)
    values[0, 0, 0] = 0.0
    given = np.zeros((clients, need + 1, num_rbs + 1), np.int64)
    for n in range(clients):
        for served in range(need + 1):
            after, of_client = values[n + 1, served], given[n, served]
            idle = values[n, served]
            origin = values[n, served - 1] if served > 0 else idle
            if 0 < served == need:
                origin = np.minimum(origin, idle)
            for row in range(rows - 1, -1, -1):
                if row > 0 and served == 0 and need > 0:
                    continue  # nobody is served yet
                price, taken, before = cost[row, n], blocks[row], origin if row > 0 else idle
                if price < np.inf:
                    for used in range(taken, num_rbs + 1):
                        reached = before[used - taken] + price
                        better = reached < after[used]
                        after[used] = reached if better else after[used]
                        of_client[used] = row if better else of_client[used]
    served, used = need, int(values[clients, need].argmin())
    for n in range(clients - 1, -1, -1):
        row = chosen[n] = given[n, served, used]
        used -= blocks[row]
        if need > 0 and row > 0 and not (served == need and values[n, need, used] < values[n, need - 1, used]):
            served = max(served - 1, 0)
