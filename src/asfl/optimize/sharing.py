"""RB block with time sharing: counts are real numbers, so all clients can be served however few blocks there are.

The sum constraint is priced: each client takes the share with the least cost + price · share, and the price is raised
until the shares fit. That is exact for continuous shares of convex costs, and for the others a bound from below that
the deadline search reports. The grid of shares is refined around the solution.
"""

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.deadlines import StageProblem, search_deadlines
from asfl.optimize.problem import Problem
from asfl.optimize.rbs import stages_with_sitting_out
from asfl.optimize.terms import CutTerms, Links

Floats = NDArray[np.float64]

GRID = 25
ZOOMS = 4
TOLERANCE = 1e-6


def best_shares(problem: Problem, terms: CutTerms, cut_index: int, tx_power_w: Floats, current: Floats) -> Floats:
    """Real counts [N], Σ ≤ K, that minimise the block objective; never worse than `current`."""
    num_rbs, clients = problem.round.radio.num_rbs, problem.round.num_clients
    fair = np.full(clients, num_rbs / clients)
    ratio = 2.0 ** (8 / (GRID - 1))
    centre = np.where(current > 0, current, fair)
    best = current
    for zoom in range(ZOOMS + 1):
        points = GRID if zoom == 0 else 9
        steps = ratio ** (np.arange(points) - points // 2)
        grid = np.concatenate([centre[None], np.minimum(centre * steps[:, None], num_rbs)])
        best = _best_on_grid(problem, terms, cut_index, tx_power_w, grid, best)
        centre = np.where(best > 0, best, centre)
        ratio = ratio**0.35
    return best


def _best_on_grid(
    problem: Problem, terms: CutTerms, cut_index: int, tx_power_w: Floats, grid: Floats, current: Floats
) -> Floats:
    """Best shares from each client's column of `grid` [G, N], row 0 being the current share of clients served now."""
    links = Links.of(problem.round, grid, tx_power_w)
    stages = stages_with_sitting_out(problem, terms, cut_index, links)
    shares = np.concatenate([np.zeros((1, grid.shape[1])), grid])
    num_rbs, need = problem.round.radio.num_rbs, problem.min_participants

    def choose(priced: Floats) -> tuple[NDArray[np.int64], float] | None:
        return _fit_by_price(priced, shares, float(num_rbs), need)

    stages = StageProblem(
        stages.stage_s, stages.arrival, stages.cost, stages.server_s, stages.least_waits, choose
    )
    start = np.where(current > 0, 1, 0)
    found = search_deadlines([stages], problem.delay_penalty, (0, start), TOLERANCE, max_boxes=400)
    return current if found is None else shares[found.pick, np.arange(grid.shape[1])]


def _fit_by_price(
    priced: Floats, shares: Floats, num_rbs: float, need: int
) -> tuple[NDArray[np.int64], float] | None:
    """Candidates whose shares fit into `num_rbs`, by bisection on the price of a block; and the best dual bound."""
    clients = np.arange(priced.shape[1])
    must_serve = need >= priced.shape[1] or bool((~np.isfinite(priced[0])).all())
    table = priced.copy()
    if must_serve:
        table[0] = np.inf
    if not np.isfinite(table).any(axis=0).all():
        return None

    def pick_at(price: float) -> tuple[NDArray[np.int64], float, float]:
        total = table + price * shares
        pick = np.argmin(total, axis=0)
        if not must_serve and need > 0:
            gain = total[1:].min(axis=0) - total[0]
            forced = np.argsort(gain, kind="stable")[:need]
            pick[forced] = 1 + np.argmin(total[1:, forced], axis=0)
        used = float(shares[pick, clients].sum())
        return pick, used, float(total[pick, clients].sum()) - price * num_rbs

    pick, used, bound = pick_at(0.0)
    if used <= num_rbs * (1 + 1e-12):
        return pick, float(table[pick, clients].sum())
    low, high = 0.0, 1e-6 + float(np.ptp(table[np.isfinite(table)])) / num_rbs
    fitting = None
    for _ in range(60):
        if fitting is None:
            price = high
            high *= 4
        else:
            price = 0.5 * (low + high)
        pick, used, dual = pick_at(price)
        bound = max(bound, dual)
        if used <= num_rbs * (1 + 1e-12):
            fitting, high = pick, price
            if high - low <= 1e-9 * high:
                break
        else:
            low = price
    if fitting is None or not np.isfinite(table[fitting, clients].sum()):
        return None
    return fitting, min(bound, float(table[fitting, clients].sum()))
