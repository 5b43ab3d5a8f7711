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
    least, most, cheapest = np.ones(clients, np.int64), np.ones(clients, np.int64), cost[1].copy()
    for row in range(2, len(blocks)):
        for n in range(clients):
            value = cost[row, n]
            least[n] = row if (cheapest[n] == np.inf) & (value < np.inf) else least[n]
            better = value < cheapest[n]
            cheapest[n] = value if better else cheapest[n]
            most[n] = row if better else most[n]
    serving, found, gain = np.zeros(clients, np.int64), np.zeros(clients, np.int64), np.zeros(clients)
    low_used, low_spent = _take_at(0.0, most, cost, blocks, min_served, rows, gain)
    if low_spent == np.inf:
        return np.inf
    bound = low_spent
    if low_used > num_rbs:
        lowest, highest = np.inf, -np.inf
        for n in range(clients):
            for value in (cost[0, n], cost[least[n], n], cost[most[n], n]):
                value = value if value < np.inf else 0.0
                lowest, highest = min(lowest, value), max(highest, value)
        enormous = 2.0 * (highest - lowest) + 1e-9
        high_used, high_spent = _take_at(enormous, least, cost, blocks, min_served, rows, gain)
        if high_used > num_rbs or high_spent == np.inf:
            return np.inf
        for _ in range(PRICE_STEPS):
            price = (high_spent - low_spent) / (low_used - high_used)
            meet = low_spent + price * (low_used - num_rbs)
            for n in range(clients):
                best, serving[n] = np.inf, least[n]
                for row in range(least[n], most[n] + 1):
                    value = cost[row, n] + price * blocks[row]
                    if value < best:
                        best, serving[n] = value, row
            used, spent = _take_at(price, serving, cost, blocks, min_served, found, gain)
            dual = spent + price * (used - num_rbs)
            bound = max(bound, dual)
            if used <= num_rbs:
                least[:], rows[:] = serving, found
                high_used, high_spent = used, spent
            else:
                most[:] = serving
                low_used, low_spent = used, spent
            if dual >= meet - MET * max(1.0, abs(meet)) or used == num_rbs:
                break
    _give_the_rest(cost, blocks, num_rbs, rows)
    return float(min(bound, _spent(cost, rows)))


@njit(cache=True)
def _take_at(price: float, serving: Any, cost: Any, blocks: Any, min_served: int, rows: Any, gain: Any) -> Any:
    """Fills `rows`; returns their blocks and cost. `gain` is for scratch."""
    willing = 0
    for n in range(len(rows)):
        value = cost[serving[n], n]
        gain[n] = value + price * blocks[serving[n]] - cost[0, n] if value < np.inf else np.inf
        rows[n] = gain[n] < 0
        willing += rows[n]
    if willing < min_served:
        rows[:] = 0
        _mark_least(gain, min_served, rows)
    for n in range(len(rows)):
        rows[n] *= serving[n]
    return _used(blocks, rows), _spent(cost, rows)


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
