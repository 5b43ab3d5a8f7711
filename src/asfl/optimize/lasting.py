"""Prices that make a total time and batteries last exactly as long as the training does.

    max  Σ_r progress_r     such that     Σ_r T_r ≤ T_total,     Σ_r E_n,r ≤ B_n,     rounds ≤ R

With a multiplier for each constraint, the Lagrangian falls apart into rounds:

    Σ_r [progress_r − λ T_r − Σ_n μ_n E_n,r − ν]  +  λ T_total + Σ_n μ_n B_n + ν R.

So a round minimises λ T + Σ_n μ_n E_n − progress: what `asfl.optimize.progress` does, with λ and μ instead of fixed
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

import numpy as np
from numpy.typing import NDArray

from asfl.costs.account import Charge
from asfl.costs.reserves import Reserves
from asfl.optimize.prices import Prices
from asfl.optimize.problem import Rules
from asfl.optimize.progress import MEMORY, Rate

Floats = NDArray[np.float64]

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
