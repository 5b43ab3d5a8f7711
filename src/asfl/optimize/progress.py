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

from asfl.optimize.problem import Prices, Problem, Rules
from asfl.optimize.solution import Solution

Floats = NDArray[np.float64]

MEMORY = 0.95
"""How much the rounds before count after another one: what progress costs changes with the noise."""
FIRST_PRICE = 4.0
"""Where the search for θ begins: a round of the fair policy costs 1 for its delay and 1 for its energy, and half of
what arrives is noise."""
FIRST_PASSES, PASSES = 8, 3
CLOSE = 0.05
"""Slopes and prices this near to where they were are good enough."""


@dataclass(frozen=True)
class Rate:
    """What progress has cost so far."""

    cost: float = 0.0
    progress: float = 0.0
    arrivals: float = 0.0
    """Of the latest round, expected."""

    def prices(self, rules: Rules, num_clients: int) -> Prices:
        """Seconds and joules in units of what the fair policy takes, so that both weigh the same unless told."""
        theta = self.cost / self.progress if self.progress > 0 else np.nan
        per_j = np.full(num_clients, rules.energy_price / (num_clients * rules.energy_budget_j))
        return Prices(1.0 / rules.delay_budget_s, per_j, theta, self.arrivals or 0.5 * num_clients)

    def after(self, problem: Problem, delay_s: float, energy_j: Floats, arrivals: float, drift: float) -> "Rate":
        """After a round with these costs, in which so many mini-batches' worth arrived."""
        assert problem.prices is not None
        cost = problem.prices.cost(delay_s, energy_j)
        progress = max(problem.progress.of(arrivals) - drift, 0.0)
        return Rate(MEMORY * self.cost + cost, MEMORY * self.progress + progress, max(arrivals, 0.5))


def effective_arrivals(solution: Solution) -> float:
    """A: mini-batches expected to arrive, less what their bits cost."""
    beyond, decision = solution.problem.learning.beyond, solution.decision
    worth = 1.0 if beyond is None else beyond.worth(np.broadcast_to(decision.bits, decision.rb_count.shape))
    return float((decision.scheduled * (1 - solution.expected.packet_error_rate) * worth).sum())


class Solve(Protocol):
    """A solver; it may begin where another solution is."""

    def __call__(self, problem: Problem, *, start: Solution | None = None) -> Solution: ...


def solve_by_rate(problem: Problem, solve: Solve) -> Solution:
    """Decide by progress per cost. `solve` decides for given slopes."""
    prices = problem.prices
    assert prices is not None
    first = np.isnan(prices.per_progress)
    theta, arrivals = FIRST_PRICE if first else prices.per_progress, prices.arrivals
    best: tuple[float, Solution] | None = None
    solution: Solution | None = None
    for _ in range(FIRST_PASSES if first else PASSES):
        priced = replace(problem, prices=replace(prices, per_progress=theta, arrivals=arrivals))
        solution = solve(priced, start=solution)
        reached = effective_arrivals(solution)
        value = net_cost(solution, reached)
        cost = prices.cost(float(solution.expected.delay_s), solution.expected.energy_j)
        if first or best is None or value < best[0]:
            best = value, solution
        price = cost / max(problem.progress.of(reached), 1e-9) if first else theta
        if abs(reached - arrivals) <= CLOSE * arrivals and abs(price - theta) <= CLOSE * theta:
            break
        theta, arrivals = price, max(reached, 0.5)
    assert best is not None
    return best[1]


def net_cost(solution: Solution, arrivals: float) -> float:
    """The objective with progress itself instead of its slope."""
    problem = solution.problem
    assert problem.prices is not None
    lost = problem.price_of_arrival * (problem.round.num_clients - arrivals)
    return solution.objective - lost - problem.prices.per_progress * problem.progress.of(arrivals)
