"""Minimise delay penalty + Σ client costs when the round waits for its slowest client in each of three stages.

    min  Φ( max_n t¹ + max_n t² + max_n t³ + S Σ_n a_n ) + Σ_n c_n        over each client's choice of a candidate

Φ is convex and nondecreasing, so only two things couple the clients: three deadlines, and the server's load Σ a. The
search branches on the deadlines: inside a box low ≤ deadlines ≤ high, candidates slower than `high` are out, the
deadlines cost at least Φ at `low`, and Φ's tangent turns the load into a price per arrival, which leaves a problem that
is separable but for the resource blocks (`choose`). That gives a lower bound; the solution found there, with its true
deadlines, gives an upper one. Boxes that can't improve are dropped, and the search ends when none is left or the best
bound is within the tolerance: the result is optimal up to `tolerance`, and `lower_bound` proves it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.shapes import Float, Floats, Int, Ints
from asfl.costs.timeline import Shape, graph_of
from asfl.optimize.problem import Penalty
from asfl.optimize.terms import Candidates

Pick = NDArray[np.int64]

WINDOWS = (0.1, 0.005)
"""Where rounds overlap: by which shares of the delay windows are moved at first and at last."""
WIDE_WINDOWS = (0.4, 0.001)
"""For the joint solver."""

BATCH = 16
"""Boxes split before the search asks again which are the most promising."""
BATCH_ELEMENTS = 12_000
"""Fewer boxes where there are many candidates: about this many at a time."""
PROGRAMMABLE = 300_000
"""Beyond this many steps, dynamic programming doesn't close the gap that a price per block leaves."""


@dataclass(frozen=True, eq=False)
class Supply:
    """The blocks that candidates draw on. Candidate 0 takes none; candidate 1 + i·P + j takes counts[i] blocks."""

    num_rbs: int
    min_served: int
    counts: Int[Ints, "counts"]
    """Numbers of blocks that a client may have, rising."""
    powers: int = 1
    """P: how many candidates there are for each number of blocks."""


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
    shape: Callable[[float], Shape] | None = None
    """Where rounds overlap: the steps of a round in which so many packets arrive; at the only cut there is then."""
    servers: int = 1
    windows: tuple[float, float] = WINDOWS


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


def search_deadlines(
    choices: Choices,
    delay: Penalty,
    start: Pick | None,
    tolerance: float,
    max_boxes: int = 20_000,
    least_scale: float = 1.0,
    at_most: float = np.inf,
) -> SearchResult | None:
    """Best choice over all cuts, starting from a known choice at the first cut if there is one.

    `tolerance` is relative to the value found, or to `least_scale` if that is larger. None if there is no choice at
    all, or none below `at_most` by more than the tolerance.
    """
    from asfl.optimize import compiled  # Numba takes some tenths of a second to load

    candidates, supply = choices.candidates, choices.supply
    blocks, limits = np.zeros(0, np.int64), (1, 0, 0, False)
    if supply is not None:
        blocks = np.concatenate([[0], supply.counts])
        clients, num_rbs, min_served = candidates.load.shape[1], supply.num_rbs, supply.min_served
        steps = clients * len(blocks) * num_rbs * (1 + (min_served if min_served < clients else 0))
        limits = (supply.powers, num_rbs, min_served, steps <= PROGRAMMABLE)
    numbers = (delay.is_drift, float(delay.a), float(delay.b), float(delay.c))
    best_cut, *found = compiled.search(
        candidates.stage_s,
        candidates.load,
        candidates.cost,
        choices.server_s,
        np.ascontiguousarray(choices.least_waits),
        choices.once,
        numbers,
        blocks,
        limits,
        np.zeros(0, np.int64) if start is None else start,
        (float(tolerance), float(least_scale), float(at_most)),
        (min(BATCH, max(1, BATCH_ELEMENTS // candidates.load.size)), max_boxes),
    )
    result = SearchResult(best_cut, *found) if best_cut >= 0 else None
    if choices.shape is None or candidates.parts is None:
        return result
    return _on_timeline(choices, numbers, start, result, blocks, limits)


def _on_timeline(
    choices: Choices, delay: Any, start: Pick | None, stages: SearchResult | None, blocks: Pick, limits: Any
) -> SearchResult | None:
    """The best choice found where rounds overlap, from `start` or, if it is better, from the best with barriers."""
    from asfl.optimize.overlap import improve

    candidates = choices.candidates
    assert choices.shape is not None
    assert candidates.parts is not None
    begins = [pick for pick in (start, None if stages is None else stages.pick) if pick is not None]
    if not begins:
        return None
    arrived = candidates.load[begins[0], np.arange(len(begins[0]))].sum()
    graph = graph_of(choices.shape(float(arrived))).arrays
    pick, value, tried = improve(
        candidates.parts[:, 0], candidates.cost[0], graph, choices.servers, choices.once[0], delay, blocks,
        limits, np.stack(begins), choices.windows,
    )  # fmt: skip
    return SearchResult(0, pick, value, np.full(1, -np.inf), tried)


def compile_search() -> None:
    """Compile the search now: seconds, the first time on a machine. A controller that can't pause calls this first."""
    nothing = Candidates(np.zeros((3, 1, 1, 1)), np.zeros((1, 1)), np.zeros((1, 1, 1)))
    search_deadlines(
        Choices(nothing, np.zeros(1), np.zeros((1, 3)), None, np.zeros(1)), Penalty(False, 1.0, 1.0, 1.0), None, 1.0
    )
