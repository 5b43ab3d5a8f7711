"""RB block with time sharing: counts are real numbers, so all clients can be served however few blocks there are.

The sum constraint is priced: each client takes the share with the least cost + price · share, and the price is raised
until the shares fit. That is exact for continuous shares of convex costs, and for the others a bound from below that
the deadline search reports. The grid of shares is refined around the solution.
"""

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.allocate import Supply
from asfl.optimize.deadlines import Choices
from asfl.optimize.grid import least_waits
from asfl.optimize.problem import Problem
from asfl.optimize.search import search_deadlines
from asfl.optimize.terms import Candidates, CutTerms, Links

Floats = NDArray[np.float64]

GRID = 37
ZOOMS = 4
MAX_BOXES = 300
"""Per grid: real shares leave many near-equal deadlines, and the next grid looks closer anyway."""
TOLERANCE = 1e-4


def best_shares(problem: Problem, here: CutTerms, tx_power_w: Floats, current: Floats) -> Floats:
    """Real counts [N], Σ ≤ K, that minimise the block objective; never worse than `current`."""
    num_rbs, clients = problem.round.radio.num_rbs, problem.round.num_clients
    fair = np.full(clients, num_rbs / clients)
    ratio = 2.0 ** (16 / (GRID - 1))  # from 1/256 of a fair share on: who needs least needs next to nothing
    centre = np.where(current > 0, current, fair)
    best = current
    for zoom in range(ZOOMS + 1):
        points = GRID if zoom == 0 else 9
        steps = ratio ** (np.arange(points) - points // 2)
        grid = np.concatenate([centre[None], np.minimum(centre * steps[:, None], num_rbs)])
        best = _best_on_grid(problem, here, tx_power_w, grid, best)
        centre = np.where(best > 0, best, centre)
        ratio = ratio**0.35
    return best


def _best_on_grid(problem: Problem, here: CutTerms, tx_power_w: Floats, grid: Floats, current: Floats) -> Floats:
    """Best shares from each client's column of `grid` [G, N], row 0 being the current share of clients served now."""
    links = Links.of(problem.round, grid, tx_power_w)
    candidates = Candidates.of(problem, here, links, problem.energy_penalty, sitting_out=True)
    shares = np.concatenate([np.zeros((1, grid.shape[1])), grid])
    supply = Supply(problem.round.radio.num_rbs, problem.min_participants, np.zeros(0, np.int64), shares=shares)
    choices = Choices(candidates, here.server_s, least_waits(problem, candidates), supply, once=np.zeros(1))
    start = np.where(current > 0, 1, 0)
    found = search_deadlines(choices, problem.delay_penalty, start, TOLERANCE, max_boxes=MAX_BOXES)
    return current if found is None else shares[found.pick, np.arange(grid.shape[1])]
