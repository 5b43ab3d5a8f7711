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
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asfl.config.shapes import Float, Floats, Int, Ints
from asfl.optimize.allocate import Supply, choose, in_order
from asfl.optimize.penalties import DelayPenalty
from asfl.optimize.terms import Candidates

Pick = NDArray[np.int64]

Deadlines = tuple[float, float, float]
NEVER: Deadlines = (np.inf, np.inf, np.inf)

BATCH = 16
"""Boxes evaluated together, so that they share NumPy's overhead; more would be split that need not be."""
BATCH_ELEMENTS = 12_000
"""Fewer boxes where there are many candidates: about this many at a time."""
PRICE_STEPS = 12
"""How often the price of server load is adapted once the deadlines of a box are known."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What the search chooses from: a cut, and a candidate for every client."""

    candidates: Candidates
    """Of links [O, N] at C cuts."""
    server_s: Float[Floats, "cuts"]
    """S: the server's time for one client that arrived."""
    least_waits: Float[Floats, "cuts 3"]
    """Deadlines that no choice can beat."""
    supply: Supply | None
    """The resource blocks that candidates take; None: they are given already."""
    once: Float[Floats, "cuts"]
    """What a cut costs whatever else is chosen."""

    @property
    def batch(self) -> int:
        """How many boxes the search looks at before it asks again which are the most promising."""
        return min(BATCH, max(1, BATCH_ELEMENTS // self.candidates.load.size))


@dataclass(frozen=True, eq=False)
class SearchResult:
    cut_index: int
    pick: Int[Ints, "clients"]
    """The candidate of each client."""
    value: float
    bounds: Float[Floats, "cuts"]
    """No choice at a cut is better than its bound, or the bound is out of reach of the value found."""
    boxes: int
    """How many boxes were evaluated."""

    @property
    def lower_bound(self) -> float:
        return min(self.value, float(self.bounds.min()))


class _Box(NamedTuple):
    """Deadlines between `low` and `high` at one cut, with the server's load at a price."""

    cut_index: int
    low: Deadlines
    high: Deadlines
    price: float
    price_steps: int = 0
    waits: Deadlines = NEVER
    """Deadlines of the separable solution under `high`, once the box is evaluated."""
    separable: float = np.inf
    """Lower bound of its cost with the load priced."""
    load_s: float = 0.0


class _Search:
    def __init__(
        self, choices: Choices, delay: DelayPenalty, tolerance: float, least_scale: float, at_most: float
    ) -> None:
        self.choices, self.delay = choices, delay
        self.tolerance, self.least_scale = tolerance, least_scale
        self.best_cut, self.best_pick, self.best_value = -1, np.zeros(0, dtype=np.int64), at_most
        self.heap: list[tuple[float, int, _Box]] = []
        self.order = count()
        self.boxes = 0
        self.closed_bounds = [np.inf] * len(choices.server_s)  # by cut, of boxes given up, within the tolerance or not

    def totals(self, cuts: Pick, picks: Pick) -> tuple[list[list[float]], list[float], list[float]]:
        """Deadlines [G, 3], server load in seconds [G] and cost [G] of choices [G, N] at cuts [G]."""
        candidates, clients, of_case = self.choices.candidates, np.arange(picks.shape[1]), cuts[:, None]
        waits = candidates.stage_s[:, of_case, picks, clients].max(axis=2)
        load_s = self.choices.server_s[cuts] * in_order(candidates.load[picks, clients])
        cost = in_order(candidates.cost[of_case, picks, clients]) + self.choices.once[cuts]
        return waits.T.tolist(), load_s.tolist(), cost.tolist()

    def remember(self, cut_index: int, pick: Pick, waits: Deadlines, load_s: float, cost: float) -> None:
        value = self.delay.at(total(waits) + load_s) + cost
        if value < self.best_value:
            self.best_cut, self.best_pick, self.best_value = cut_index, pick, value

    def evaluate(self, boxes: list[_Box]) -> None:
        """Solve the separable problems of these boxes, and keep the boxes that may hold something better."""
        candidates = self.choices.candidates
        cuts = np.array([box.cut_index for box in boxes])
        tables = slice(None) if len(candidates.cost) == 1 else cuts
        prices = np.array([box.price for box in boxes]) * self.choices.server_s[cuts]
        priced = candidates.cost[tables] + prices[:, None, None] * candidates.load
        for stage in range(3):
            high = np.array([box.high[stage] for box in boxes])
            if high.min() < np.inf:
                priced[candidates.stage_s[stage, tables] > high[:, None, None]] = np.inf
        picks, bounds = choose(priced, self.choices.supply)
        self.boxes += len(boxes)
        for box, pick, bound, (first, second, third), load_s, cost in zip(
            boxes, picks, (bounds + self.choices.once[cuts]).tolist(), *self.totals(cuts, picks), strict=True
        ):
            if bound < np.inf:
                waits = first, second, third
                self.remember(box.cut_index, pick, waits, load_s, cost)
                self.push(box._replace(waits=waits, separable=bound, load_s=load_s))

    def push(self, box: _Box) -> None:
        bound = self.delay.support(total(box.low), box.price) + box.separable
        if self.is_done(bound):
            self.close(box, bound)
        else:
            heapq.heappush(self.heap, (bound, next(self.order), box))

    def is_done(self, bound: float) -> bool:
        return bound >= self.best_value - self.tolerance * max(self.least_scale, abs(self.best_value))

    def next_boxes(self) -> list[_Box]:
        """Split the most promising boxes; empty when nothing can be better."""
        boxes: list[_Box] = []
        while self.heap and len(boxes) < self.choices.batch:
            bound, order, box = heapq.heappop(self.heap)
            if self.is_done(bound):
                self.heap.append((bound, order, box))  # it still counts for the lower bound
                break
            if (part := self.split(bound, box)) is not None:
                boxes.append(part)
        return boxes

    def split(self, bound: float, box: _Box) -> _Box | None:
        """Halve a box where its deadline is least known; the lower half has to be solved, the upper is pushed back."""
        gaps = [wait - low for wait, low in zip(box.waits, box.low, strict=True)]
        stage = gaps.index(max(gaps))
        wanted = self.delay.slope(total(box.low) + box.load_s)
        if gaps[stage] > 1e-9 * box.waits[stage]:
            middle = box.low[stage] + 0.5 * gaps[stage]
            # Above the middle the same solution stays the separable optimum; only its bound rises.
            self.push(box._replace(low=_with(box.low, stage, middle)))
            return _Box(box.cut_index, box.low, _with(box.high, stage, middle), wanted)
        if box.price_steps < PRICE_STEPS and abs(wanted - box.price) > 1e-9 * max(wanted, box.price):
            # The deadlines are known and only the tangent is loose: price the load nearer to the solution.
            price = wanted if box.price_steps < 2 else 0.5 * (wanted + box.price)
            return _Box(box.cut_index, box.low, box.high, price, box.price_steps + 1)
        self.close(box, bound)
        return None

    def close(self, box: _Box, bound: float) -> None:
        self.closed_bounds[box.cut_index] = min(self.closed_bounds[box.cut_index], bound)


def total(deadlines: Deadlines) -> float:
    """Their sum, in this order on every Python (`sum` compensates since 3.12)."""
    return deadlines[0] + deadlines[1] + deadlines[2]


def _with(deadlines: Deadlines, stage: int, value: float) -> Deadlines:
    first, second, third = deadlines
    return ((value, second, third), (first, value, third), (first, second, value))[stage]


def search_plainly(
    choices: Choices,
    delay: DelayPenalty,
    start: Pick | None,
    tolerance: float,
    max_boxes: int,
    least_scale: float,
    at_most: float = np.inf,
) -> SearchResult | None:
    """`asfl.optimize.search.search_deadlines`, by NumPy."""
    search = _Search(choices, delay, tolerance, least_scale, at_most)
    load_s = 0.0
    if start is not None:
        ((first, second, third),), (load_s,), (cost,) = search.totals(np.array([0]), start[None])
        search.remember(0, start, (first, second, third), load_s, cost)
    boxes = [
        _Box(index, (first, second, third), NEVER, delay.slope(first + second + third + load_s))
        for index, (first, second, third) in enumerate(choices.least_waits.tolist())
    ]
    for first_box in range(0, len(boxes), choices.batch):
        search.evaluate(boxes[first_box : first_box + choices.batch])
    while search.boxes < max_boxes and (boxes := search.next_boxes()):
        search.evaluate(boxes)
    if search.best_cut < 0:
        return None
    for bound, _, box in search.heap:
        search.close(box, bound)
    return SearchResult(
        search.best_cut, search.best_pick, search.best_value, np.array(search.closed_bounds), search.boxes
    )
