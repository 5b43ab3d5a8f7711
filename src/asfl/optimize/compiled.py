"""The deadline search (`asfl.optimize.search`), compiled by Numba. Sums go over clients in order, ties to the first.

What is compiled is kept beside this file, or in the user's cache folder, for the next process.
"""

import heapq
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

PRICE_STEPS = 12
"""How often the price of server load is adapted once the deadlines of a box are known."""
BLOCK_PRICES = 30
"""Prices per block tried, at most."""
MET = 1e-12
"""Relative difference at which a choice and its bound are the same."""

Delay = tuple[bool, float, float, float]
"""A `Penalty`."""


F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """By Numba when it is first called; compiled again in every process where no folder can keep it."""
    try:
        return cast("F", njit(cache=True)(function))
    except RuntimeError:
        return cast("F", njit(function))


BOX = np.dtype(
    [
        ("cut", np.int64),
        ("low", np.float64, 3),
        ("high", np.float64, 3),
        ("price", np.float64),
        ("price_steps", np.int64),
        ("waits", np.float64, 3),
        ("separable", np.float64),
        ("load_s", np.float64),
    ]
)


@compiled
def _at(delay: Delay, amount: float) -> float:
    is_drift, a, b, c = delay
    if is_drift:
        following = max(b + a * amount, 0.0)
        return 0.5 * following * following - c
    return max(amount - b, 0.0) * a / c


@compiled
def _slope(delay: Delay, amount: float) -> float:
    is_drift, a, b, c = delay
    if is_drift:
        return max(b + a * amount, 0.0) * a
    return a / c if amount >= b else 0.0


@compiled
def _support(delay: Delay, low: float, price: float) -> float:
    is_drift, a, b, _ = delay
    if is_drift and a == 0:
        return _at(delay, low)
    amount = max(low, (price / a - b) / a if is_drift else b)
    return _at(delay, amount) - price * (amount - low)


@compiled
def _choose(priced: Any, blocks: Any, supply: Any, cost: Any, power: Any, pick: Any) -> float:
    """Fills `pick` [N] from priced candidates [O, N]; returns a bound of their cost, infinite where there is no choice.

    `cost` and `power` [1 + L, N] are for scratch.
    """
    options, clients = priced.shape
    if len(blocks) == 0:  # each client its best
        pick[:] = 0
        best = priced[0].copy()
        for o in range(1, options):
            for n in range(clients):
                better = priced[o, n] < best[n]
                best[n] = priced[o, n] if better else best[n]
                pick[n] = o if better else pick[n]
        total = best[0]
        for n in range(1, clients):
            total += best[n]
        return float(total)
    powers, num_rbs, min_served, programmable = supply
    if powers == 1:
        return float(allocate(priced, blocks, num_rbs, min_served, programmable, pick))
    cost[0] = priced[0]
    power[:] = 0
    for row in range(1, len(blocks)):
        first = 1 + (row - 1) * powers
        cost[row] = priced[first]
        for j in range(1, powers):
            for n in range(clients):
                better = priced[first + j, n] < cost[row, n]
                cost[row, n] = priced[first + j, n] if better else cost[row, n]
                power[row, n] = j if better else power[row, n]
    bound = allocate(cost, blocks, num_rbs, min_served, programmable, pick)
    for n in range(clients):
        row = pick[n]
        pick[n] = 1 + (row - 1) * powers + power[row, n] if row > 0 else 0
    return float(bound)


@compiled
def search(
    stage_s: Any,
    load: Any,
    cost: Any,
    server_s: Any,
    least_waits: Any,
    once: Any,
    delay: Any,
    blocks: Any,
    supply: Any,
    start: Any,
    accuracy: Any,
    limits: Any,
) -> Any:
    """The fields of a `SearchResult`; `start` may be empty."""
    (tolerance, least_scale, at_most), (batch, max_boxes) = accuracy, limits
    cuts, (options, clients) = len(server_s), load.shape
    best_cut, best_value, closed_bounds = -1, at_most, np.full(cuts, np.inf)
    best_pick, pick = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    priced = np.empty((options, clients))
    by_count, power = np.empty((len(blocks), clients)), np.zeros((len(blocks), clients), np.int64)
    heap = [(0.0, 0)]
    heap.clear()
    kept, known = np.zeros(256, BOX), 0  # every box that was pushed, in order; the heap refers to them
    todo = np.zeros(max(cuts, batch) + 1, BOX)  # the last is for scratch
    box, upper = todo[-1], todo[-1]  # Numba's records don't keep their array alive; `todo` lives as long as the search
    first_load_s = 0.0
    evaluated = 0
    if len(start) > 0:
        waits, loaded, spent = _totals(stage_s, load, cost, 0, start)
        first_load_s = server_s[0] * loaded
        value = _at(delay, waits[0] + waits[1] + waits[2] + first_load_s) + (spent + once[0])
        if value < best_value:
            best_cut, best_pick, best_value = 0, start.copy(), value
    for cut in range(cuts):
        low = least_waits[cut]
        todo[cut].cut = cut
        todo[cut].low[:] = low
        todo[cut].high[:] = np.inf
        todo[cut].price = _slope(delay, low[0] + low[1] + low[2] + first_load_s)
        todo[cut].price_steps = 0
    count = cuts
    while count > 0:
        for index in range(count):
            box = todo[index]
            cut = box.cut
            price = box.price * server_s[cut]
            for o in range(options):
                for n in range(clients):
                    priced[o, n] = cost[cut, o, n] + price * load[o, n]
            for stage in range(3):
                latest = box.high[stage]
                if latest < np.inf:
                    for o in range(options):
                        for n in range(clients):
                            priced[o, n] = np.inf if stage_s[stage, cut, o, n] > latest else priced[o, n]
            bound = _choose(priced, blocks, supply, by_count, power, pick) + once[cut]
            evaluated += 1
            if bound == np.inf:
                continue
            waits, loaded, spent = _totals(stage_s, load, cost, cut, pick)
            box.waits[:] = waits
            box.load_s = server_s[cut] * loaded
            box.separable = bound
            value = _at(delay, waits[0] + waits[1] + waits[2] + box.load_s) + (spent + once[cut])
            if value < best_value:
                best_cut, best_value = cut, value
                best_pick[:] = pick
            kept, known = _push(
                heap, kept, known, box, delay, closed_bounds, _enough(best_value, tolerance, least_scale)
            )
        count = 0
        if evaluated >= max_boxes:
            break
        enough = _enough(best_value, tolerance, least_scale)
        while len(heap) > 0 and count < batch:
            bound, row = heapq.heappop(heap)
            if bound >= enough:
                heap.append((bound, row))
                break
            box = kept[row]
            stage = 0
            for other in range(1, 3):
                if box.waits[other] - box.low[other] > box.waits[stage] - box.low[stage]:
                    stage = other
            gap = box.waits[stage] - box.low[stage]
            wanted = _slope(delay, box.low[0] + box.low[1] + box.low[2] + box.load_s)
            lower = todo[count]
            lower.cut = box.cut
            lower.low[:] = box.low
            lower.high[:] = box.high
            if gap > 1e-9 * box.waits[stage]:
                middle = box.low[stage] + 0.5 * gap
                lower.high[stage] = middle
                lower.price = wanted
                lower.price_steps = 0
                count += 1
                upper.cut = box.cut
                upper.low[:] = box.low
                upper.low[stage] = middle
                upper.high[:] = box.high
                upper.price = box.price
                upper.price_steps = box.price_steps
                upper.waits[:] = box.waits
                upper.separable = box.separable
                upper.load_s = box.load_s
                kept, known = _push(heap, kept, known, upper, delay, closed_bounds, enough)
            elif box.price_steps < PRICE_STEPS and abs(wanted - box.price) > 1e-9 * max(wanted, box.price):
                lower.price = wanted if box.price_steps < 2 else 0.5 * (wanted + box.price)
                lower.price_steps = box.price_steps + 1
                count += 1
            else:
                closed_bounds[box.cut] = min(closed_bounds[box.cut], bound)
    for bound, row in heap:
        cut = kept[row].cut
        closed_bounds[cut] = min(closed_bounds[cut], bound)
    return best_cut, best_pick, best_value, closed_bounds, evaluated


@compiled
def _enough(best_value: float, tolerance: float, least_scale: float) -> float:
    """A bound from which on a box can't be better by more than the tolerance."""
    return best_value - tolerance * max(least_scale, abs(best_value))


@compiled
def _totals(stage_s: Any, load: Any, cost: Any, cut: int, pick: Any) -> Any:
    """Deadlines [3], load and cost of a choice, added up in the order of the clients."""
    waits = np.zeros(3)
    loaded, spent = 0.0, 0.0
    for n in range(len(pick)):
        o = pick[n]
        for stage in range(3):
            waits[stage] = max(waits[stage], stage_s[stage, cut, o, n])
        loaded += load[o, n]
        spent += cost[cut, o, n]
    return waits, loaded, spent


@compiled
def _push(heap: Any, kept: Any, known: int, box: Any, delay: Any, closed_bounds: Any, enough: float) -> Any:
    bound = _support(delay, box.low[0] + box.low[1] + box.low[2], box.price) + box.separable
    if bound >= enough:
        closed_bounds[box.cut] = min(closed_bounds[box.cut], bound)
        return kept, known
    if known == len(kept):
        more = np.zeros(2 * known, BOX)
        more[:known] = kept
        kept = more
    kept[known] = box
    heapq.heappush(heap, (bound, known))
    return kept, known + 1


@compiled
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


@compiled
def _spent(cost: Any, rows: Any) -> float:
    total = cost[rows[0], 0]
    for n in range(1, len(rows)):
        total += cost[rows[n], n]
    return float(total)


@compiled
def _used(blocks: Any, rows: Any) -> int:
    used = 0
    for n in range(len(rows)):
        used += blocks[rows[n]]
    return used


@compiled
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


@compiled
def _mark_least(values: Any, number: int, marks: Any) -> None:
    last = np.partition(values, number - 1)[number - 1]
    left = number - (values < last).sum()
    for n in range(len(values)):
        if values[n] < last:
            marks[n] = 1
        elif values[n] == last and left > 0:
            marks[n] = 1
            left -= 1


@compiled
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
        for _ in range(BLOCK_PRICES):
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


@compiled
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


@compiled
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


@compiled
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
                    continue  # no client is served yet
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
