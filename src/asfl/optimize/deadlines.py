"""Minimise delay penalty + Σ client costs when the round waits for its slowest client in each of three stages.

    min  Φ( max_n t¹ + max_n t² + max_n t³ + S Σ_n a_n ) + Σ_n c_n        over each client's choice of a candidate

Φ is convex and nondecreasing, so only two things couple the clients: three deadlines, and the server's load Σ a. The
search branches on the deadlines: inside a box low ≤ deadlines ≤ high, candidates slower than `high` are out, the
deadlines cost at least Φ at `low`, and Φ's tangent turns the load into a price per arrival, which leaves a problem that
is separable but for the resource blocks (`choose`). That gives a lower bound; the solution found there, with its true
deadlines, gives an upper one. Boxes that can't improve are dropped, and the search ends when none is left or the best
bound is within the tolerance: the result is optimal up to `tolerance`, and `lower_bound` proves it.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.penalties import Penalty

Floats = NDArray[np.float64]
Pick = NDArray[np.int64]

Choose = Callable[[Floats], tuple[Pick, float] | None]
"""Cost of every candidate [O, N] (infinite: not allowed) -> candidate of each client [N] and a lower bound of the
cost of any choice (its own cost, if the choice is exact); None if there is no allowed choice."""

PRICE_STEPS = 12
"""How often the price of server load is adapted once the deadlines of a box are known."""


@dataclass(frozen=True, eq=False)
class StageProblem:
    """One cut's candidates; a candidate may stand for "sits out": no time, no arrival."""

    stage_s: Floats
    """[3, O, N]"""
    arrival: Floats
    """[O, N]"""
    cost: Floats
    """[O, N]"""
    server_s: float
    """S: the server's time for one client that arrived."""
    least_waits: Floats
    """[3] deadlines that no choice can beat."""
    choose: Choose

    def totals(self, pick: Pick) -> tuple[Floats, float, float]:
        """Deadlines [3], server load in seconds and cost of a choice."""
        clients = np.arange(len(pick))
        load_s = self.server_s * float(self.arrival[pick, clients].sum())
        return self.stage_s[:, pick, clients].max(axis=1, initial=0.0), load_s, float(self.cost[pick, clients].sum())


@dataclass(frozen=True, eq=False)
class SearchResult:
    problem_index: int
    """Which of the stage problems (cuts) holds the best choice."""
    pick: Pick
    value: float
    lower_bound: float
    boxes: int
    """How many boxes were evaluated."""


@dataclass(frozen=True, eq=False)
class _Box:
    problem_index: int
    low: Floats
    high: Floats
    """[3]"""
    waits: Floats
    """[3] deadlines of the separable solution under `high`."""
    separable: float
    """Lower bound of its cost with the load priced at `price`."""
    price: float
    load_s: float
    price_steps: int = 0


class _Search:
    def __init__(self, problems: list[StageProblem], delay: Penalty, tolerance: float) -> None:
        self.problems, self.delay, self.tolerance = problems, delay, tolerance
        self.best_index, self.best_pick, self.best_value = -1, np.zeros(0, dtype=np.int64), np.inf
        self.heap: list[tuple[float, int, _Box]] = []
        self.order = count()
        self.boxes = 0
        self.closed_bound = np.inf  # the least bound of a box that was given up with a loose tangent

    def improve(self, index: int, pick: Pick) -> tuple[Floats, float]:
        """Remember a choice if it is the best so far; its deadlines and load."""
        waits, load_s, cost = self.problems[index].totals(pick)
        value = float(self.delay.value(float(waits.sum()) + load_s)) + cost
        if value < self.best_value:
            self.best_index, self.best_pick, self.best_value = index, pick, value
        return waits, load_s

    def evaluate(self, index: int, low: Floats, high: Floats, price: float, price_steps: int = 0) -> None:
        problem = self.problems[index]
        priced = problem.cost + (price * problem.server_s) * problem.arrival
        if np.isfinite(high).any():
            priced = np.where((problem.stage_s <= high[:, None, None]).all(axis=0), priced, np.inf)
        self.boxes += 1
        chosen = problem.choose(priced)
        if chosen is not None:
            pick, separable = chosen
            waits, load_s = self.improve(index, pick)
            self.push(_Box(index, low, high, waits, separable, price, load_s, price_steps))

    def push(self, box: _Box) -> None:
        bound = self.delay.support(float(box.low.sum()), box.price) + box.separable
        if not self.is_done(bound):
            heapq.heappush(self.heap, (bound, next(self.order), box))

    def is_done(self, bound: float) -> bool:
        return bound >= self.best_value - self.tolerance * max(1.0, abs(self.best_value))

    def split(self, bound: float, box: _Box) -> None:
        gap = box.waits - box.low
        stage = int(np.argmax(gap))
        if gap[stage] > 1e-9 * box.waits[stage]:
            middle, below = box.low.copy(), box.high.copy()
            middle[stage] = below[stage] = 0.5 * (box.low[stage] + box.waits[stage])
            price = self.delay.slope(float(box.low.sum()) + box.load_s)
            self.evaluate(box.problem_index, box.low, below, price)
            # Above the middle the same solution stays the separable optimum; only its bound rises.
            self.push(replace(box, low=middle))
            return
        # The deadlines are known and only the tangent is loose: price the load nearer to where the solution is.
        wanted = self.delay.slope(float(box.low.sum()) + box.load_s)
        if box.price_steps < PRICE_STEPS and abs(wanted - box.price) > 1e-9 * max(wanted, box.price):
            steps = box.price_steps + 1
            price = wanted if steps <= 2 else 0.5 * (wanted + box.price)
            self.evaluate(box.problem_index, box.low, box.high, price, steps)
        else:
            self.closed_bound = min(self.closed_bound, bound)


def search_deadlines(
    problems: list[StageProblem],
    delay: Penalty,
    start: tuple[int, Pick] | None,
    tolerance: float,
    max_boxes: int = 5_000,
) -> SearchResult | None:
    """Best choice over all stage problems, starting from a known choice if there is one; None if all are impossible."""
    search = _Search(problems, delay, tolerance)
    load_s = 0.0
    if start is not None:
        _, load_s = search.improve(*start)
    for index, problem in enumerate(problems):
        price = delay.slope(float(problem.least_waits.sum()) + load_s)
        search.evaluate(index, problem.least_waits, np.full(3, np.inf), price)
    while search.heap and search.boxes < max_boxes:
        bound, _, box = heapq.heappop(search.heap)
        if search.is_done(bound):
            search.heap.append((bound, 0, box))
            break
        search.split(bound, box)
    if not np.isfinite(search.best_value):
        return None
    bounds = [search.best_value, search.closed_bound, *(entry[0] for entry in search.heap)]
    return SearchResult(search.best_index, search.best_pick, search.best_value, min(bounds), search.boxes)
