"""The deadline search, compiled by Numba: the same boxes in the same order, and the same sums, as `deadlines`.

Needs the extra `asfl[fast]`; `search` imports it once that pays. Blocks shared in time stay with NumPy.
"""

import heapq
from typing import Any

import numpy as np
from numba import njit

from asfl.optimize.allocate import is_programmable
from asfl.optimize.compiled_allocate import allocate
from asfl.optimize.deadlines import PRICE_STEPS, Choices, Pick, SearchResult
from asfl.optimize.penalties import DelayPenalty, Numbers

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


NO_PICK = NO_COUNTS = np.zeros(0, np.int64)


def covers(choices: Choices) -> bool:
    """Whether the compiled search knows how candidates are chosen here."""
    return choices.supply is None or choices.supply.shares is None


def search_compiled(
    choices: Choices,
    delay: DelayPenalty,
    start: Pick | None,
    tolerance: float,
    max_boxes: int,
    least_scale: float,
    at_most: float = np.inf,
) -> SearchResult | None:
    """`asfl.optimize.search.search_deadlines`, compiled."""
    candidates, supply = choices.candidates, choices.supply
    blocks, limits = NO_COUNTS, (1, 0, 0, False)
    if supply is not None:
        num_rbs, need, clients = supply.num_rbs, supply.min_served, candidates.load.shape[1]
        blocks = np.concatenate([[0], supply.counts])
        programmable = is_programmable(len(blocks), clients, num_rbs, need if need < clients else 0)
        limits = (supply.powers, num_rbs, need, programmable)
    best_cut, *found = _search(
        candidates.stage_s,
        candidates.load,
        candidates.cost,
        choices.server_s,
        np.ascontiguousarray(choices.least_waits),
        choices.once,
        delay.numbers,
        blocks,
        limits,
        NO_PICK if start is None else start,
        (float(tolerance), float(least_scale), float(at_most)),
        (choices.batch, max_boxes),
    )
    return SearchResult(best_cut, *found) if best_cut >= 0 else None


@njit(cache=True)
def _at(delay: Numbers, amount: float) -> float:
    is_drift, a, b, c = delay
    if is_drift:
        following = max(b + a * amount, 0.0)
        return 0.5 * following * following - c
    return max(amount - b, 0.0) * a / c


@njit(cache=True)
def _slope(delay: Numbers, amount: float) -> float:
    is_drift, a, b, c = delay
    if is_drift:
        return max(b + a * amount, 0.0) * a
    return a / c if amount >= b else 0.0


@njit(cache=True)
def _support(delay: Numbers, low: float, price: float) -> float:
    is_drift, a, b, _ = delay
    if is_drift and a == 0:
        return _at(delay, low)
    amount = max(low, (price / a - b) / a if is_drift else b)
    return _at(delay, amount) - price * (amount - low)


@njit(cache=True)
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


@njit(cache=True)
def _search(
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


@njit(cache=True)
def _enough(best_value: float, tolerance: float, least_scale: float) -> float:
    """A bound from which on a box can't be better by more than the tolerance."""
    return best_value - tolerance * max(least_scale, abs(best_value))


@njit(cache=True)
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


@njit(cache=True)
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
