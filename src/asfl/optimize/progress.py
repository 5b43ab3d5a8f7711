"""Progress per cost: what a round is worth when seconds and joules have a price, instead of budgets for each round.

    max  Σ_r progress_r / Σ_r cost_r,     cost = w_T T + Σ_n w_E,n E_n,     progress = p(A) − drift

A ratio of sums is maximised by making, in every round, cost − θ · progress as small as possible, with θ the ratio of
the sums so far (Dinkelbach; in Neely's terms, the renewal form of drift plus penalty). Progress p(A) (`Progress`) is
concave in A, the mini-batches that arrive, and the solvers want costs by client: so it is priced at its slope, and the
slope follows the solution until it stays.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.prices import Prices
from asfl.optimize.problem import Problem, Rules
from asfl.optimize.solution import Solution

Floats = NDArray[np.float64]

MEMORY = 0.95
"""How much the rounds before count after another one: what progress costs changes with the noise."""
FIRST_PRICE = 4.0
"""Where the search for θ begins: a round of the fair policy costs 1 for its delay and 1 for its energy, and half of
what arrives is noise."""
FIRST_ARRIVAL = 0.8
"""How likely everybody is taken to arrive when the search for slopes begins. A few mini-batches alone are worth nothing
at a step size meant for many: from there the search would stay with nobody."""
FIRST_PASSES, PASSES = 8, 3
CLOSE = 0.05
"""Slopes and prices this near to where they were are good enough."""


@dataclass(frozen=True)
class Rate:
    """What progress has cost so far."""

    cost: float = 0.0
    progress: float = 0.0

    def prices(self, rules: Rules, num_clients: int) -> Prices:
        """Seconds and joules in units of what the fair policy takes, so that both weigh the same unless told."""
        theta = self.cost / self.progress if self.progress > 0 else np.nan
        per_j = np.full(num_clients, rules.energy_price / (num_clients * rules.energy_budget_j))
        return Prices(1.0 / rules.delay_budget_s, per_j, theta, np.full(num_clients, FIRST_ARRIVAL))

    def after(
        self, problem: Problem, delay_s: float, energy_j: Floats, arrivals: float, drift: float, cut: int
    ) -> "Rate":
        """After a round with these costs and this cut, in which so many mini-batches' worth arrived."""
        assert problem.prices is not None
        cost = problem.prices.cost(delay_s, energy_j)
        progress = max(float(problem.progress_of_cut[cut] * problem.progress.of(arrivals)) - drift, 0.0)
        return Rate(MEMORY * self.cost + cost, MEMORY * self.progress + progress)


def worth_arriving(solution: Solution) -> Floats:
    """[N] how likely each client's mini-batch arrives, less what its bits cost."""
    beyond, decision = solution.problem.learning.beyond, solution.decision
    worth = 1.0 if beyond is None else beyond.worth(np.broadcast_to(decision.bits, decision.rb_count.shape))
    return np.asarray(decision.scheduled * (1 - solution.expected.packet_error_rate) * worth)


class Solve(Protocol):
    """A solver; it may begin where another solution is."""

    def __call__(self, problem: Problem, *, start: Solution | None = None) -> Solution: ...


def solve_by_rate(problem: Problem, solve: Solve) -> Solution:
    """Decide by progress per cost. `solve` decides for given slopes."""
    prices = problem.prices
    assert prices is not None
    first = np.isnan(prices.per_progress)
    theta, arrival = FIRST_PRICE if first else prices.per_progress, prices.arrival
    best: tuple[float, Solution] | None = None
    solution: Solution | None = None
    for _ in range(FIRST_PASSES if first else PASSES):
        priced = replace(problem, prices=replace(prices, per_progress=theta, arrival=arrival))
        solution = solve(priced, start=solution)
        reached = worth_arriving(solution)
        cost = prices.cost(float(solution.expected.delay_s), solution.expected.energy_j)
        progress = expected_progress(solution, reached)
        price = cost / max(progress, 1e-9) if first else theta
        value = price if first else net_cost(solution, reached)
        if best is None or value < best[0]:
            best = value, solution
        if np.abs(reached - arrival).max() <= CLOSE and abs(price - theta) <= CLOSE * theta:
            break
        # Where nobody arrives the first one is worth nothing, and the search would stay there: half the way, then.
        theta, arrival = price, reached if progress > 0 else 0.5 * (reached + arrival)
    assert best is not None
    return best[1]


def expected_progress(solution: Solution, arrival: Floats) -> float:
    """Of a decision; less what layers on clients don't learn."""
    problem, deepest = solution.problem, int(np.max(solution.decision.cut))
    return float(problem.progress_of_cut[deepest]) * problem.progress.expected(arrival)


def net_cost(solution: Solution, arrival: Floats) -> float:
    """The objective with progress itself instead of its slopes."""
    problem = solution.problem
    assert problem.prices is not None
    lost = float((problem.price_of_arrival * (1.0 - arrival)).sum())
    lost += float(problem.idle_cost_of_cut[int(np.max(solution.decision.cut))])
    return solution.objective - lost - problem.prices.per_progress * expected_progress(solution, arrival)
