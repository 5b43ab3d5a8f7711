"""The search for a decision whose round is a timeline (`asfl.costs.timeline`), compiled by Numba.

A timeline has no three deadlines to branch on: what a client may take depends on when the server can use its packet and
how long the round goes on after the answer. So the search improves a choice. Around its schedule every client has two
windows: its packets may come so much later before anything else waits for them, and what follows the answer may take so
much longer before the round does. All windows are made wider or narrower together, by `dr` before the server and `dq`
behind it; each client takes the cheapest candidate that fits, and the resource blocks are shared as in the search for
stages; the choice that makes the round best, scheduled anew, is kept. Steps shrink until nothing is gained.
"""

from typing import Any

import numpy as np

from asfl.costs.timeline import compiled_schedule
from asfl.optimize.compiled import _at, _choose, _slope, compiled

schedule = compiled_schedule()
FIRST_STEP, LAST_STEP = 0.4, 0.002
"""Of the round's delay: how much windows are moved at first and at last."""


@compiled
def _seconds(pick: Any, parts: Any, graph: Any, into: Any) -> float:
    """Fills `into` [K] with the steps' seconds; returns the server's."""
    part, client, share = graph[0], graph[1], graph[2]
    served, totals = 0.0, np.zeros(len(parts))
    for n in range(len(pick)):
        for row in range(len(parts)):
            totals[row] += parts[row, pick[n], n]
        served += parts[5, pick[n], n] + parts[6, pick[n], n]
    for k in range(len(part)):
        n = client[k]
        into[k] = share[k] * (totals[part[k]] if n < 0 else parts[part[k], pick[n], n])
    return served


@compiled
def _delay_cost(parts: Any, pick: Any, graph: Any, servers: int, delay: Any, seconds: Any) -> float:
    """What the delay of a choice costs; `seconds` [K] is for scratch."""
    _seconds(pick, parts, graph, seconds)
    begin = schedule(seconds, graph[3], graph[4], graph[5], servers)
    return float(_at(delay, (begin + seconds).max()))


@compiled
def _windows(parts: Any, pick: Any, graph: Any, begin: Any, seconds: Any, before: Any, behind: Any) -> Any:
    """Fills how late each candidate [O, N] is before the server and behind it; delay, and the server's part of it."""
    part, client, share, resource, first, after = graph
    steps, options = len(part), len(before)
    delay = 0.0
    for k in range(steps):
        delay = max(delay, begin[k] + seconds[k])
    latest = np.full(steps, delay)  # when a step has to end
    order = np.argsort(begin, kind="mergesort")
    next_served = -1
    # Steps of the server follow each other in the order of the schedule; all others only what they need.
    critical = 0.0
    for place in range(steps - 1, -1, -1):
        k = order[place]
        if resource[k] == 3:
            if next_served >= 0:
                latest[k] = min(latest[k], latest[next_served] - seconds[next_served])
            next_served = k
            if latest[k] <= begin[k] + seconds[k] + 1e-9 * delay:
                critical += seconds[k]
        for i in range(first[k], first[k + 1]):
            latest[after[i]] = min(latest[after[i]], latest[k] - seconds[k])
    before[:] = -np.inf
    behind[:] = -np.inf
    end = np.zeros(steps)
    for o in range(options):
        for k in range(steps):
            n = client[k]
            if n < 0 or resource[k] == 3:
                end[k] = begin[k] + seconds[k]
                continue
            ready = 0.0
            for i in range(first[k], first[k + 1]):
                ready = max(ready, end[after[i]])
            end[k] = ready + share[k] * parts[part[k], o, n]
            if part[k] <= 4:
                before[o, n] = max(before[o, n], end[k] - latest[k])
            else:
                behind[o, n] = max(behind[o, n], end[k] - latest[k])
    return delay, critical


@compiled
def improve(
    parts: Any, cost: Any, graph: Any, servers: int, once: float, delay: Any, blocks: Any, supply: Any, starts: Any,
    steps: Any,
) -> Any:  # fmt: skip
    """The best choice found from the best of `starts` [S, N] on, and its value. `parts` [10, O, N], `cost` [O, N]."""
    options, clients = cost.shape
    seconds = np.zeros(len(graph[0]))
    pick, best, value = starts[0].copy(), starts[0].copy(), np.inf
    priced, before, behind = np.empty((options, clients)), np.empty((options, clients)), np.empty((options, clients))
    by_count, power = np.empty((len(blocks), clients)), np.zeros((len(blocks), clients), np.int64)
    first_step, last_step = steps
    for begin_at in range(len(starts)):
        found = once + _delay_cost(parts, starts[begin_at], graph, servers, delay, seconds)
        for n in range(clients):
            found += cost[starts[begin_at, n], n]
        if found < value:
            best[:], value = starts[begin_at], found
    step, tried = first_step, 0
    while step >= last_step:
        served_s = _seconds(best, parts, graph, seconds)
        begin = schedule(seconds, graph[3], graph[4], graph[5], servers)
        delay_s, critical = _windows(parts, best, graph, begin, seconds, before, behind)
        share = critical / served_s if served_s > 0 else 1.0
        slope = _slope(delay, delay_s)
        improved = False
        for earlier in (0.0, -1.0, -0.5, 0.5, 1.0):
            for sooner in (0.0, -1.0, -0.5, 0.5, 1.0):
                dr, dq = earlier * step * delay_s, sooner * step * delay_s
                for o in range(options):
                    for n in range(clients):
                        late = before[o, n] > dr + 1e-12 * delay_s or behind[o, n] > dq + 1e-12 * delay_s
                        priced[o, n] = (
                            np.inf if late else cost[o, n] + slope * share * (parts[5, o, n] + parts[6, o, n])
                        )
                if _choose(priced, blocks, supply, by_count, power, pick) == np.inf:
                    continue
                tried += 1
                found = once + _delay_cost(parts, pick, graph, servers, delay, seconds)
                for n in range(clients):
                    found += cost[pick[n], n]
                if found < value - 1e-12 * abs(value):
                    value, improved = found, True
                    best[:] = pick
        if not improved:
            step *= 0.4
        if step < last_step and _swap(parts, cost, graph, servers, once, delay, blocks, supply, best, value):
            value = once + _delay_cost(parts, best, graph, servers, delay, seconds)
            for n in range(clients):
                value += cost[best[n], n]
            step = 0.05
    return best, value, tried


@compiled
def _swap(
    parts: Any, cost: Any, graph: Any, servers: int, once: float, delay: Any, blocks: Any, supply: Any, best: Any,
    value: float,
) -> bool:  # fmt: skip
    """Change one client's candidate as long as that is better; whether anything was."""
    options, clients = cost.shape
    powers, num_rbs, min_served, _ = supply
    limited = len(blocks) > 0
    seconds, pick = np.zeros(len(graph[0])), best.copy()
    improved = False
    for a in range(clients):
        for o in range(options):
            pick[:] = best
            pick[a] = o
            spent, used, served = once, 0, 0
            for n in range(clients):
                spent += cost[pick[n], n]
                if limited and pick[n] > 0:
                    used += blocks[1 + (pick[n] - 1) // powers]
                    served += 1
            if o == best[a] or (limited and (used > num_rbs or served < min_served)) or spent >= value:
                continue
            found = spent + _delay_cost(parts, pick, graph, servers, delay, seconds)
            if found < value - 1e-9 * abs(value):
                value, improved = found, True
                best[:] = pick
    return improved
