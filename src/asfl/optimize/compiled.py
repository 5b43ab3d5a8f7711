"""The deadline search, compiled by Numba: the same boxes in the same order, and the same sums, as `deadlines`.

Needs the extra `asfl[fast]`; `search` imports it once that pays. Blocks shared in time, counts by price, and several
blocks for each of only some clients stay with NumPy.
"""

import heapq
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from asfl.optimize.allocate import ENUMERABLE, all_allocations, is_programmable, number_of_allocations
from asfl.optimize.deadlines import PRICE_STEPS, Choices, Pick, SearchResult
from asfl.optimize.penalties import DelayPenalty, Numbers

FREE, SINGLES, ENUMERATED, PROGRAMMED = range(4)
"""How a candidate is chosen: each client its best; one block or none; all allocations; dynamic programming."""

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


NO_PICK = np.zeros(0, np.int64)
NO_ALLOCATIONS = np.zeros((0, 0), np.int64)
NO_ALLOCATIONS.flags.writeable = False  # as those that are enumerated: one type, compiled once


def covers(choices: Choices) -> bool:
    """Whether the compiled search knows how candidates are chosen here."""
    return _kind(choices)[0] is not None


def search_compiled(
    choices: Choices,
    delay: DelayPenalty,
    start: Pick | None,
    tolerance: float,
    max_boxes: int,
    least_scale: float,
) -> SearchResult | None:
    """`asfl.optimize.search.search_deadlines`, compiled."""
    kind, allocations = _kind(choices)
    candidates, supply = choices.candidates, choices.supply
    limits = (1, 0, 0) if supply is None else (supply.powers, supply.num_rbs, supply.min_served)
    found = SearchResult(
        *_search(
            candidates.stage_s,
            candidates.arrival,
            candidates.cost,
            choices.server_s,
            np.ascontiguousarray(choices.least_waits),
            choices.once,
            delay.numbers,
            (kind, *limits),
            allocations,
            NO_PICK if start is None else start,
            (float(tolerance), float(least_scale)),
            (choices.batch, max_boxes),
        )
    )
    return found if np.isfinite(found.value) else None


def _kind(choices: Choices) -> tuple[int | None, NDArray[np.int64]]:
    """How a candidate is chosen, and all allocations where they are tried."""
    supply, (options, clients) = choices.supply, choices.candidates.arrival.shape
    if supply is None:
        return FREE, NO_ALLOCATIONS
    if supply.shares is not None:
        return None, NO_ALLOCATIONS
    num_rbs, need, most = supply.num_rbs, supply.min_served, (options - 1) // supply.powers
    if most == 1:
        return SINGLES, NO_ALLOCATIONS
    if number_of_allocations(clients, num_rbs, need) <= ENUMERABLE:
        return ENUMERATED, all_allocations(clients, num_rbs, need)
    known = need in (0, clients) and is_programmable(1 + most, clients, num_rbs, need)
    return PROGRAMMED if known else None, NO_ALLOCATIONS


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
def _pick_singles(cost: Any, num_rbs: int, min_served: int, counts: Any) -> None:
    gain = np.where(cost[1] < np.inf, cost[1] - cost[0], np.inf)
    clients = len(gain)
    counts[:] = 0
    if num_rbs <= min_served < clients:
        last = np.partition(gain, num_rbs - 1)[num_rbs - 1]
        left = num_rbs - (gain < last).sum()
        for n in range(clients):
            if gain[n] < last:
                counts[n] = 1
            elif gain[n] == last and left > 0:
                counts[n] = 1
                left -= 1
    else:
        order = np.argsort(gain, kind="mergesort")
        for rank in range(clients):
            n = order[rank]
            if rank < min_served or (gain[n] < 0 and rank < num_rbs):
                counts[n] = 1


@njit(cache=True)
def _by_trying_all(cost: Any, allocations: Any, counts: Any) -> None:
    best, best_total = 0, np.inf
    for row in range(len(allocations)):
        total = cost[allocations[row, 0], 0]
        for n in range(1, len(counts)):
            total += cost[allocations[row, n], n]
        if total < best_total:
            best, best_total = row, total
    counts[:] = allocations[best]


@njit(cache=True)
def _by_programming(cost: Any, num_rbs: int, counts: Any) -> None:
    choices, clients = cost.shape
    value = np.full(num_rbs + 1, np.inf)
    value[0] = 0.0
    given = np.zeros((clients, num_rbs + 1), np.int64)
    for n in range(clients):
        after, of_client = np.full(num_rbs + 1, np.inf), given[n]
        for blocks in range(choices - 1, -1, -1):
            price = cost[blocks, n]
            if price < np.inf:
                for used in range(blocks, num_rbs + 1):
                    reached = value[used - blocks] + price
                    better = reached < after[used]
                    after[used] = reached if better else after[used]
                    of_client[used] = blocks if better else of_client[used]
        value = after
    used = int(value.argmin())
    for n in range(clients - 1, -1, -1):
        counts[n] = given[n, used]
        used = max(used - counts[n], 0)


@njit(cache=True)
def _choose(priced: Any, kind: int, powers: int, num_rbs: int, min_served: int, allocations: Any, pick: Any) -> float:
    """Fills `pick` [N] from priced candidates [O, N]; returns their cost, infinite where there is no choice."""
    options, clients = priced.shape
    if kind == FREE:
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
    most = (options - 1) // powers
    cost = np.empty((1 + most, clients))
    power = np.zeros((1 + most, clients), np.int64)
    cost[0] = priced[0]
    for count in range(1, 1 + most):
        first = 1 + (count - 1) * powers
        cost[count] = priced[first]
        for j in range(1, powers):
            for n in range(clients):
                better = priced[first + j, n] < cost[count, n]
                cost[count, n] = priced[first + j, n] if better else cost[count, n]
                power[count, n] = j if better else power[count, n]
    if kind == SINGLES:
        _pick_singles(cost, num_rbs, min_served, pick)
    elif kind == ENUMERATED:
        _by_trying_all(cost, allocations, pick)
    elif min_served > 0:  # everybody: what each gets beyond one block
        _by_programming(cost[1:], num_rbs - clients, pick)
        pick += 1
    else:
        _by_programming(cost, num_rbs, pick)
    total, taken, served = 0.0, 0, 0
    for n in range(clients):
        count = pick[n]
        total += cost[count, n]
        taken += count
        served += count > 0
        pick[n] = 1 + (count - 1) * powers + power[count, n] if count > 0 else 0
    return float(total) if taken <= num_rbs and served >= min_served else np.inf


@njit(cache=True)
def _search(
    stage_s: Any,
    arrival: Any,
    cost: Any,
    server_s: Any,
    least_waits: Any,
    once: Any,
    delay: Any,
    choice: Any,
    allocations: Any,
    start: Any,
    accuracy: Any,
    limits: Any,
) -> Any:
    """The fields of a `SearchResult`; `start` may be empty."""
    kind, powers, num_rbs, min_served = choice
    (tolerance, least_scale), (batch, max_boxes) = accuracy, limits
    cuts, (options, clients) = len(server_s), arrival.shape
    best_cut, best_value, closed_bound = -1, np.inf, np.inf
    best_pick, pick = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    priced = np.empty((options, clients))
    heap = [(0.0, 0)]
    heap.clear()
    kept, known = np.zeros(256, BOX), 0  # every box that was pushed, in order; the heap refers to them
    todo = np.zeros(max(cuts, batch), BOX)
    box, upper = np.zeros(1, BOX)[0], np.zeros(1, BOX)[0]
    first_load_s = 0.0
    evaluated = 0
    if len(start) > 0:
        waits, load, spent = _totals(stage_s, arrival, cost, 0, start)
        first_load_s = server_s[0] * load
        best_cut, best_pick = 0, start.copy()
        best_value = _at(delay, waits[0] + waits[1] + waits[2] + first_load_s) + (spent + once[0])
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
                    late = (
                        (stage_s[0, cut, o, n] > box.high[0])
                        | (stage_s[1, cut, o, n] > box.high[1])
                        | (stage_s[2, cut, o, n] > box.high[2])
                    )
                    priced[o, n] = np.inf if late else cost[cut, o, n] + price * arrival[o, n]
            bound = _choose(priced, kind, powers, num_rbs, min_served, allocations, pick) + once[cut]
            evaluated += 1
            if bound == np.inf:
                continue
            waits, load, spent = _totals(stage_s, arrival, cost, cut, pick)
            box.waits[:] = waits
            box.load_s = server_s[cut] * load
            box.separable = bound
            value = _at(delay, waits[0] + waits[1] + waits[2] + box.load_s) + (spent + once[cut])
            if value < best_value:
                best_cut, best_value = cut, value
                best_pick[:] = pick
            kept, known, closed_bound = _push(
                heap, kept, known, box, delay, closed_bound, _enough(best_value, tolerance, least_scale)
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
                kept, known, closed_bound = _push(heap, kept, known, upper, delay, closed_bound, enough)
            elif box.price_steps < PRICE_STEPS and abs(wanted - box.price) > 1e-9 * max(wanted, box.price):
                lower.price = wanted if box.price_steps < 2 else 0.5 * (wanted + box.price)
                lower.price_steps = box.price_steps + 1
                count += 1
            else:
                closed_bound = min(closed_bound, bound)
    lower_bound = min(best_value, closed_bound)
    for bound, _ in heap:
        lower_bound = min(lower_bound, bound)
    return best_cut, best_pick, best_value, lower_bound, evaluated


@njit(cache=True)
def _enough(best_value: float, tolerance: float, least_scale: float) -> float:
    """A bound from which on a box can't be better by more than the tolerance."""
    return best_value - tolerance * max(least_scale, abs(best_value))


@njit(cache=True)
def _totals(stage_s: Any, arrival: Any, cost: Any, cut: int, pick: Any) -> Any:
    """Deadlines [3], arrivals and cost of a choice, added up in the order of the clients."""
    waits = np.zeros(3)
    load, spent = 0.0, 0.0
    for n in range(len(pick)):
        o = pick[n]
        for stage in range(3):
            waits[stage] = max(waits[stage], stage_s[stage, cut, o, n])
        load += arrival[o, n]
        spent += cost[cut, o, n]
    return waits, load, spent


@njit(cache=True)
def _push(heap: Any, kept: Any, known: int, box: Any, delay: Any, closed_bound: float, enough: float) -> Any:
    bound = _support(delay, box.low[0] + box.low[1] + box.low[2], box.price) + box.separable
    if bound >= enough:
        return kept, known, min(closed_bound, bound)
    if known == len(kept):
        more = np.zeros(2 * known, BOX)
        more[:known] = kept
        kept = more
    kept[known] = box
    heapq.heappush(heap, (bound, known))
    return kept, known + 1, closed_bound
