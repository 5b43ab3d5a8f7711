"""Progress per cost: what a round is worth when seconds and joules have a price, instead of budgets for each round.

    max  Σ_r progress_r / Σ_r cost_r,     cost = w_T T + Σ_n w_E,n E_n,     progress = p(A) − drift

A ratio of sums is maximised by making, in every round, cost − θ · progress as small as possible, with θ the ratio of
the sums so far (Dinkelbach; in Neely's terms, the renewal form of drift plus penalty). Progress p(A) (`Progress`) is
concave in A, the mini-batches that arrive, and the solvers want costs by client: so it is priced at its slope, and the
slope follows the solution until it stays.

**Total budgets.** Prices then make a total time and batteries last exactly as long as the training does:

    max  Σ_r progress_r     such that     Σ_r T_r ≤ T_total,     Σ_r E_n,r ≤ B_n,     rounds ≤ R

With a multiplier for each constraint, the Lagrangian falls apart into rounds:

    Σ_r [progress_r − λ T_r − Σ_n μ_n E_n,r − ν]  +  λ T_total + Σ_n μ_n B_n + ν R.

So a round minimises λ T + Σ_n μ_n E_n − progress: what is solved here, with λ and μ instead of fixed
prices. Only their ratios to θ, the price of progress, count; so what is left to find are two things.

**How scarce each of the N + 2 resources is.** At the optimum a resource that isn't used up has the price 0, and all the
others end together. With f_k, the share of resource k that is left,

    price_k ∝ weight_k · exp(−GRIP · f_k) / total_k,     weight: 1 for time and rounds, 1/N for each battery,

does both: one that is behind the others by a share of 1/GRIP has become e times as dear, one that is ahead by a few of
these is free. This is the multiplicative-weights rule for packing (Plotkin, Shmoys and Tardos; Badanidiyuru, Kleinberg
and Slivkins, "Bandits with Knapsacks"). Nothing has to be remembered: prices follow from what is left. A round that
takes its share of everything costs as much for its delay as for all its energies, as with fixed prices.

**What progress is worth.** Where the number of rounds is free, the last round bought is worth its price, so that

    θ = (λ T̄ + Σ_n μ_n Ē_n + ν) / (mean progress),

means being over recent rounds. Rounds are a resource like the others, each takes one of R: where time and batteries are
plenty, ν alone is left, and rounds make all the progress they can.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from asfl.config.shapes import Floats
from asfl.costs.account import Charge
from asfl.costs.reserves import Reserves
from asfl.optimize.prices import Prices
from asfl.optimize.problem import Problem, Rules, Solution

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


GRIP = 16.0
"""Stronger, and clients are avoided only because they have just taken part; weaker, and more is left at the end. Chosen
by the progress in the demo's world with three kinds of batteries, 60 to 170 rounds."""
FREE = 1e-6
"""What a resource costs at least, in the same unit: of two rounds that are equal otherwise, the thriftier is better."""
TYPICAL_COST = 2.0
"""Of a round, in the unit of prices: as without total budgets, 1 for its delay and 1 for its energy."""


@dataclass(frozen=True, eq=False)
class Pace:
    """What rounds took of each resource, [2 + N]: seconds, rounds, joules; remembered as progress is in `Rate`."""

    used: Floats

    @classmethod
    def fresh(cls, num_clients: int) -> "Pace":
        return cls(np.zeros(2 + num_clients))

    def after(self, charge: Charge) -> "Pace":
        return Pace(MEMORY * self.used + np.concatenate([[charge.delay_s, 1.0], charge.energy_j]))


def lasting_prices(rate: Rate, pace: Pace, reserves: Reserves, rules: Rules, round_index: int) -> Prices:
    """Of a second, of each client's joules and of progress, when this round begins."""
    clients = len(reserves.battery_j)
    total = np.concatenate([[reserves.time_s, reserves.rounds], reserves.battery_j])
    left = np.concatenate([[reserves.time_left_s, reserves.rounds - round_index], reserves.battery_left_j])
    scarce = np.isfinite(total) & (left > 0)
    share = np.divide(left, total, out=np.ones_like(total), where=scarce)
    weight = np.concatenate([[1.0, 1.0], np.full(clients, 1 / clients)]) * np.exp(GRIP * (share[scarce].min() - share))
    fair = np.concatenate([[rules.delay_budget_s, 1.0], np.full(clients, rules.energy_budget_j)])
    used = pace.used / pace.used[1] if pace.used[1] > 0 else fair
    price = np.where(scarce, weight / total, 0.0)
    price = price * TYPICAL_COST / float((price * used).sum()) + FREE / fair
    theta = TYPICAL_COST * pace.used[1] / rate.progress if rate.progress > 0 else np.nan
    return replace(rate.prices(rules, clients), per_s=float(price[0]), per_j=price[2:], per_progress=theta)
