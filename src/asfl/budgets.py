"""Budgets that are achievable: what a plain fair policy needs in a median round.

The printed budgets (20 s, 0.5 J) fit one model, one batch size and one radio, if any. `"auto"` budgets come from
the scenario itself: every client gets the same share K/N of the resource blocks at full power, and each sampled round
takes the one cut with the smallest sum of delay and mean energy, both relative to their medians over cuts. The budget
is a quantile over rounds of that delay, and over rounds and clients of that energy.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.costs import cost_of_all_cuts
from asfl.world import World

SAMPLED_ROUNDS = 200
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Budgets:
    """What a round may cost on average: γ for the round, δ for each client."""

    delay_s: float
    energy_j: float


def resolve_budgets(world: World) -> Budgets:
    """The configured budgets, with "auto" replaced by what the fair policy achieves."""
    delay, energy = world.config.decision.delay_budget_s, world.config.decision.energy_budget_j
    if delay == "auto" or energy == "auto":
        achievable = achievable_budgets(world)
        delay = achievable.delay_s if delay == "auto" else delay
        energy = achievable.energy_j if energy == "auto" else energy
    return Budgets(delay, energy)


def fairest_cut(delay_s: Floats, energy_j: Floats) -> NDArray[np.intp]:
    """[...] the place of the cut with the smallest sum of delay [..., cuts] and mean energy [..., cuts, clients].

    Both are relative to their medians over cuts.
    """
    mean_energy = energy_j.mean(axis=-1)
    relative_delay = delay_s / np.median(delay_s, axis=-1, keepdims=True)
    relative_energy = mean_energy / np.median(mean_energy, axis=-1, keepdims=True)
    return np.asarray(np.argmin(relative_delay + relative_energy, axis=-1))


def achievable_budgets(world: World) -> Budgets:
    num_clients, radio = world.config.scenario.clients, world.config.radio
    fair_share = np.full(num_clients, radio.num_rbs / num_clients)
    full_power = np.full(num_clients, radio.max_tx_power_w)
    rounds = np.arange(SAMPLED_ROUNDS)
    costs = [cost_of_all_cuts(world.begin_round(index), fair_share, full_power) for index in rounds.tolist()]
    delay = np.array([cost.delay_s for cost in costs])  # [rounds, cuts]
    energy = np.array([cost.energy_j for cost in costs])  # [rounds, cuts, clients]
    best = fairest_cut(delay, energy)
    quantile = world.config.decision.auto_budget_quantile
    return Budgets(
        delay_s=float(np.quantile(delay[rounds, best], quantile)),
        energy_j=float(np.quantile(energy[rounds, best], quantile)),
    )
