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
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.penalties import DelayPenalty

Floats = NDArray[np.float64]
Pick = NDArray[np.int64]

Deadlines = tuple[float, float, float]

Choose = Callable[[Floats], tuple[Pick, Floats]]
"""Costs of every candidate [G, O, N] in G cases (infinite: not allowed) -> candidate of each client [G, N], and a lower
bound [G] of the cost of any choice: its own cost if the choice is exact, infinite if there is none."""

BATCH = 16
"""Boxes evaluated together, so that they share NumPy's overhead; more would be split that need not be."""
BATCH_ELEMENTS = 60_000
"""Fewer boxes where the tables are large: about this many entries at a time."""
PRICE_STEPS = 12
"""How often the price of server load is adapted once the deadlines of a box are known."""


@dataclass(frozen=True, eq=False)
class StageTables:
    """The candidates of C cuts; a candidate may stand for "sits out": no time, no arrival."""

    tables: Floats
    """[C, 5, O, N]: the client's time in the three stages, its arrival and its cost, for every candidate."""
    server_s: Floats
    """[C] S: the server's time for one client that arrived."""
    least_waits: Floats
    """[C, 3] deadlines that no choice can beat."""
    choose: Choose

    def totals(self, cuts: Pick, picks: Pick) -> tuple[list[list[float]], list[float], list[float]]:
        """Deadlines [G, 3], server load in seconds [G] and cost [G] of choices [G, N] at cuts [G]."""
        chosen = self.tables[cuts[:, None], :, picks, np.arange(picks.shape[1])]  # [G, N, 5]
        waits, sums = chosen[:, :, :3].max(axis=1), chosen[:, :, 3:].sum(axis=1)
        return waits.tolist(), (self.server_s[cuts] * sums[:, 0]).tolist(), sums[:, 1].tolist()


@dataclass(frozen=True, eq=False)
class SearchResult:
    cut_index: int
    pick: Pick
    """[N] candidate of each client."""
    value: float
    lower_bound: float
    boxes: int
    """How many boxes were evaluated."""


class _Case(NamedTuple):
    """A box to be evaluated."""

    cut_index: int
    low: Deadlines
    high: Deadlines
    price: float
    price_steps: int = 0


class _Box(NamedTuple):
    """An evaluated box that may hold something better."""

    case: _Case
    waits: list[float]
    """[3] deadlines of the separable solution under `high`."""
    separable: float
    """Lower bound of its cost with the load priced at the case's price."""
    load_s: float


class _Search:
    def __init__(self, stages: StageTables, delay: DelayPenalty, tolerance: float, least_scale: float) -> None:
        self.stages, self.delay = stages, delay
        self.tolerance, self.least_scale = tolerance, least_scale
        self.best_cut, self.best_pick, self.best_value = -1, np.zeros(0, dtype=np.int64), np.inf
        self.heap: list[tuple[float, int, _Box]] = []
        self.order = count()
        self.boxes = 0
        self.closed_bound = np.inf  # the least bound of a box that was given up, within the tolerance or not
        self.batch = min(BATCH, max(1, BATCH_ELEMENTS // stages.tables[0].size))

    def remember(self, cut_index: int, pick: Pick, waits: list[float], load_s: float, cost: float) -> None:
        value = self.delay.at(sum(waits) + load_s) + cost
        if value < self.best_value:
            self.best_cut, self.best_pick, self.best_value = cut_index, pick, value

    def evaluate(self, cases: list[_Case]) -> None:
        """Solve the separable problems of these boxes, and keep the boxes that may hold something better."""
        stages = self.stages
        cuts = np.array([case.cut_index for case in cases])
        prices = np.array([case.price for case in cases]) * stages.server_s[cuts]
        priced = stages.tables[cuts, 4] + prices[:, None, None] * stages.tables[cuts, 3]
        for stage in range(3):
            high = np.array([case.high[stage] for case in cases])
            if high.min() < np.inf:
                priced[stages.tables[cuts, stage] > high[:, None, None]] = np.inf
        picks, bounds = stages.choose(priced)
        self.boxes += len(cases)
        for case, pick, bound, waits, load_s, cost in zip(
            cases, picks, bounds.tolist(), *stages.totals(cuts, picks), strict=True
        ):
            if bound < np.inf:
                self.remember(case.cut_index, pick, waits, load_s, cost)
                self.push(_Box(case, waits, bound, load_s))

    def push(self, box: _Box) -> None:
        bound = self.delay.support(sum(box.case.low), box.case.price) + box.separable
        if self.is_done(bound):
            self.closed_bound = min(self.closed_bound, bound)
        else:
            heapq.heappush(self.heap, (bound, next(self.order), box))

    def is_done(self, bound: float) -> bool:
        return bound >= self.best_value - self.tolerance * max(self.least_scale, abs(self.best_value))

    def next_cases(self) -> list[_Case]:
        """Split the most promising boxes; empty when nothing can be better."""
        cases: list[_Case] = []
        while self.heap and len(cases) < self.batch:
            bound, order, box = heapq.heappop(self.heap)
            if self.is_done(bound):
                self.heap.append((bound, order, box))  # it still counts for the lower bound
                break
            if (case := self.split(bound, box)) is not None:
                cases.append(case)
        return cases

    def split(self, bound: float, box: _Box) -> _Case | None:
        """Halve a box where its deadline is least known; the lower half has to be solved, the upper is pushed back."""
        case = box.case
        gaps = [wait - low for wait, low in zip(box.waits, case.low, strict=True)]
        stage = gaps.index(max(gaps))
        wanted = self.delay.slope(sum(case.low) + box.load_s)
        if gaps[stage] > 1e-9 * box.waits[stage]:
            middle = case.low[stage] + 0.5 * gaps[stage]
            # Above the middle the same solution stays the separable optimum; only its bound rises.
            self.push(box._replace(case=case._replace(low=_with(case.low, stage, middle))))
            return _Case(case.cut_index, case.low, _with(case.high, stage, middle), wanted)
        if case.price_steps < PRICE_STEPS and abs(wanted - case.price) > 1e-9 * max(wanted, case.price):
            # The deadlines are known and only the tangent is loose: price the load nearer to the solution.
            price = wanted if case.price_steps < 2 else 0.5 * (wanted + case.price)
            return case._replace(price=price, price_steps=case.price_steps + 1)
        self.closed_bound = min(self.closed_bound, bound)
        return None


def _with(deadlines: Deadlines, stage: int, value: float) -> Deadlines:
    first, second, third = (value if index == stage else old for index, old in enumerate(deadlines))
    return first, second, third


def search_deadlines(
    stages: StageTables,
    delay: DelayPenalty,
    start: tuple[int, Pick] | None,
    tolerance: float,
    max_boxes: int = 20_000,
    least_scale: float = 1.0,
) -> SearchResult | None:
    """Best choice over all cuts of the tables, starting from a known choice if there is one; None if impossible.

    `tolerance` is relative to the value found, or to `least_scale` if that is larger.
    """
    search = _Search(stages, delay, tolerance, least_scale)
    load_s = 0.0
    if start is not None:
        cut_index, pick = start
        ((waits,), (load_s,), (cost,)) = stages.totals(np.array([cut_index]), pick[None])
        search.remember(cut_index, pick, waits, load_s, cost)
    everything = (np.inf, np.inf, np.inf)
    cases = [
        _Case(index, (first, second, third), everything, delay.slope(first + second + third + load_s))
        for index, (first, second, third) in enumerate(stages.least_waits.tolist())
    ]
    for first_case in range(0, len(cases), search.batch):
        search.evaluate(cases[first_case : first_case + search.batch])
    while search.boxes < max_boxes and (cases := search.next_cases()):
        search.evaluate(cases)
    if not np.isfinite(search.best_value):
        return None
    bounds = [search.best_value, search.closed_bound, *(entry[0] for entry in search.heap)]
    return SearchResult(search.best_cut, search.best_pick, search.best_value, min(bounds), search.boxes)
