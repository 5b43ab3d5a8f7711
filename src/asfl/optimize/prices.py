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
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BeforeValidator, Field, PlainSerializer

from asfl.config.fields import NonNegative, Share
from asfl.config.shapes import Each, Float, Floats
from asfl.costs.world import Charge, RemainingBudget
from asfl.optimize.rules import Rules

MEMORY = 0.95
"""How much the rounds before count after another one: what progress costs changes with the noise."""
FIRST_ARRIVAL = 0.8
"""How likely each client is taken to arrive when the search for slopes begins. A few mini-batches alone are worth
nothing at a step size meant for many: from there the search would stay with no client."""
GRIP = 16.0
"""Stronger, and clients are avoided only because they have just taken part; weaker, and more is left at the end. Chosen
by the progress in the demo's world with three kinds of batteries, 60 to 170 rounds."""
FREE = 1e-6
"""What a resource costs at least, in the same unit: of two rounds that are equal otherwise, the thriftier is better."""
TYPICAL_COST = 2.0
"""Of a round, in the unit of prices: as without total budgets, 1 for its delay and 1 for its energy."""


@dataclass(frozen=True)
class Progress:
    """What a step is worth that is made with the mean gradient of A mini-batches, at a step size that stays.

        p(A) = 2 x − x² (1 + B / A),      x = A₀ / (A₀ + B)

    as a share of what the exact gradient at its own best step would bring: a quadratic model of the loss (McCandlish et
    al., "An Empirical Model of Large-Batch Training", (2.5)), with the step size x that is best for A₀ mini-batches, as
    a learning rate is that was tuned with all clients taking part. Few mini-batches at that step size are worth less
    than their number says, since noise takes back what the signal brings.

    Where the server makes a step with every mini-batch, mixed from all that arrived (`mixed`), steps of the same size
    add up: p(A) = A / A₀.
    """

    usual: float
    """A₀."""
    noise_scale: float
    """B."""
    mixed: bool = False

    @property
    def step(self) -> float:
        """x."""
        return self.usual / (self.usual + self.noise_scale)

    def of(self, arrivals: ArrayLike) -> Floats:
        """p(A); nothing at all happens without arrivals."""
        number = np.asarray(arrivals, float)
        if self.mixed:
            return number / self.usual
        parts = np.where(number > 0, self.noise_scale / np.where(number > 0, number, 1.0), 0.0)
        return np.where(number > 0, self.step * (2.0 - self.step * (1.0 + parts)), 0.0)

    def expected(self, arrival: Floats) -> float:
        """E p(A), where mini-batches arrive with these probabilities [N], independently."""
        if self.mixed or len(arrival) > FEW:
            return float(self.of(arrival.sum()))
        return float(self.of(np.arange(len(arrival) + 1)) @ _distribution(arrival))

    def slopes(self, arrival: Floats) -> Floats:
        """[N] what it is worth that a client arrives for sure instead of not at all: E p(A' + 1) − E p(A').

        A' are the others. E p(A) is linear in each of these probabilities, so for one client alone this is exact.
        """
        if self.mixed:
            return np.full(len(arrival), 1.0 / self.usual)
        if len(arrival) > FEW:
            total = max(float(arrival.sum()), 0.5)
            return np.full(len(arrival), self.step**2 * self.noise_scale / total**2)
        gained = np.diff(self.of(np.arange(len(arrival) + 1)))
        others = np.where(np.eye(len(arrival), dtype=np.bool_), 0.0, arrival)  # row n: without client n
        return np.array([gained @ chances[:-1] for chances in _distribution(others)])


FEW = 64
"""Up to so many clients, the number that arrives is taken as the random variable that it is; beyond, as its mean."""


def _distribution(arrival: Floats) -> Floats:
    """[..., N+1] of how many arrive, of [..., N]: Poisson binomial."""
    chances = np.zeros((*arrival.shape[:-1], arrival.shape[-1] + 1))
    chances[..., 0] = 1.0
    for one in np.moveaxis(arrival, -1, 0)[..., None]:
        chances[..., 1:] += one * (chances[..., :-1] - chances[..., 1:])
        chances[..., :1] *= 1.0 - one
    return chances


@dataclass(frozen=True, eq=False)
class Prices:
    """What a second, a joule and the progress of a round are worth, where progress per cost is what counts."""

    per_s: NonNegative
    per_j: Annotated[Float[Floats, "clients"], Each(NonNegative)]
    per_progress: Annotated[
        float,
        Field(allow_inf_nan=True),
        BeforeValidator(lambda price: np.nan if price is None else price),
        PlainSerializer(lambda price: None if np.isnan(price) else price),
    ]
    """θ: what progress has cost so far, so that a round is worth more or less than that; NaN: nothing is known yet."""
    arrival: Annotated[Float[Floats, "clients"], Each(Share)]
    """How likely mini-batches arrive, about: `Progress.slopes` then say what one more is worth."""

    def cost(self, delay_s: float, energy_j: Floats) -> float:
        """Of a round."""
        return self.per_s * delay_s + float((self.per_j * energy_j).sum())


@dataclass(frozen=True)
class ProgressCost:
    """What progress has cost so far: the ratio that Dinkelbach's method follows."""

    cost: float = 0.0
    progress: float = 0.0

    def prices(self, rules: Rules, num_clients: int) -> Prices:
        """Seconds and joules in units of what the fair policy takes, so that both weigh the same unless told."""
        theta = self.cost / self.progress if self.progress > 0 else np.nan
        per_j = np.full(num_clients, rules.energy_price / (num_clients * rules.energy_budget_j))
        return Prices(1.0 / rules.delay_budget_s, per_j, theta, np.full(num_clients, FIRST_ARRIVAL))

    def after(self, cost: float, progress: float) -> "ProgressCost":
        """After a round."""
        return ProgressCost(MEMORY * self.cost + cost, MEMORY * self.progress + progress)


@dataclass(frozen=True, eq=False)
class RecentUse:
    """What rounds took of each resource, [2 + N]: seconds, rounds, joules; remembered as in `ProgressCost`."""

    used: Floats

    @classmethod
    def fresh(cls, num_clients: int) -> "RecentUse":
        return cls(np.zeros(2 + num_clients))

    def after(self, charge: Charge) -> "RecentUse":
        return RecentUse(MEMORY * self.used + np.concatenate([[charge.delay_s, 1.0], charge.energy_j]))


def lasting_prices(
    rate: ProgressCost, pace: RecentUse, reserves: RemainingBudget, rules: Rules, round_index: int
) -> Prices:
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
