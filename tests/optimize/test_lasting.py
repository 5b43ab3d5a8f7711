"""Prices that last: their laws, and what they buy against fixed prices."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asfl.config import load_config
from asfl.costs.modelled import ASFL, round_cost
from asfl.costs.round import Decision
from asfl.costs.world import Budgets, RemainingBudget, World
from asfl.optimize.problem import TYPICAL_COST, Prices, Progress, ProgressCost, RecentUse, Rules, lasting_prices
from asfl.runs.play import play
from asfl.runs.records import RoundRecord
from asfl.runs.state import SyntheticLearning
from asfl.schemes import scheme_named
from asfl.schemes.base import budgets_of

RULES = Rules.of(load_config("demo").config.decision, 3, 3, Budgets(2.0, 0.5))
PACE = RecentUse(np.array([30.0, 10.0, 1.0, 2.0, 3.0]))
RATE = ProgressCost(cost=20.0, progress=5.0)
shares = st.floats(0.01, 1.0)


def left_of(time: float, *batteries: float, rounds: int = 10**6) -> RemainingBudget:
    total = np.array([10.0, 10.0, 10.0])
    return RemainingBudget(100.0, total, 100.0 * time, total * batteries, rounds)


def prices_of(reserves: RemainingBudget) -> Prices:
    return lasting_prices(RATE, PACE, reserves, RULES, 0)


@given(shares, shares, shares, shares)
@settings(max_examples=50)
def test_what_runs_out_sooner_is_dearer_and_a_usual_round_costs_the_usual(
    time: float, a: float, b: float, c: float
) -> None:
    reserves = left_of(time, a, b, c)
    prices = prices_of(reserves)
    mean_s, mean_j = PACE.used[0] / PACE.used[1], PACE.used[2:] / PACE.used[1]
    assert prices.cost(mean_s, mean_j) <= TYPICAL_COST * (1 + 1e-3)
    assert prices.per_progress == pytest.approx(TYPICAL_COST * 10 / 5)
    assert prices.per_s > 0
    assert (prices.per_j > 0).all()
    order = np.argsort([a, b, c], kind="stable")
    assert (np.diff(prices.per_j[order]) <= 1e-12).all()  # batteries are equal, so less left is dearer
    scarcer = prices_of(left_of(time, 0.5 * a, b, c))
    assert scarcer.per_j[0] / scarcer.per_j[1] >= prices.per_j[0] / prices.per_j[1]


def test_what_is_plenty_or_has_no_limit_is_free() -> None:
    plenty = prices_of(left_of(0.1, 1.0, 0.1, 0.1))
    assert plenty.per_j[0] < 1e-4 * plenty.per_j[1]
    only_time = prices_of(RemainingBudget(100.0, np.full(3, np.inf), 50.0, np.full(3, np.inf), 10**6))
    assert (only_time.per_j < 1e-4 * only_time.per_s).all()
    only_batteries = prices_of(RemainingBudget(np.inf, np.full(3, 10.0), np.inf, np.full(3, 5.0), 10**6))
    assert only_batteries.per_s < 1e-4 * only_batteries.per_j.min()


def test_few_rounds_make_everything_else_cheap_beside_progress() -> None:
    many, few = prices_of(left_of(1.0, 1.0, 1.0, 1.0)), prices_of(left_of(1.0, 1.0, 1.0, 1.0, rounds=10))
    assert few.per_s / few.per_progress < 0.5 * many.per_s / many.per_progress


def test_pace_is_what_recent_rounds_took() -> None:
    world = World.of(load_config("demo").config)
    round_ = world.begin_round(0)
    cost = round_cost(round_, Decision(2, np.ones(6), np.ones(6)), np.ones(6), ASFL)
    twice = RecentUse.fresh(6).after(float(cost.delay_s), cost.energy_j).after(float(cost.delay_s), cost.energy_j)
    np.testing.assert_allclose(twice.used / twice.used[1], np.concatenate([[cost.delay_s, 1.0], cost.energy_j]))


# ---------------------------------------------------------------------- against fixed prices
TOTAL_S = 30.0
NOISE = 4.0
"""B in these rounds. With one as large as clients with unlike data have, the few that such small batteries leave bring
nothing at the tuned step size, whatever the prices are (docs/schemes.md)."""
WORLDS = {"equal": [2.5] * 6, "unequal": [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]}


@cache
def with_prices(batteries: str, energy_price: float | None) -> list[RoundRecord]:
    """Rounds of `asfl:rate=on` until the budget is used up, with fixed prices or (None) with ones that last."""
    given = ["training.rounds=1000", f"budget.total_delay_s={TOTAL_S}", f"budget.battery_j={WORLDS[batteries]}"]
    # What is compared is progress from arrivals, so that alone may count: rounds that also pay for less drift buy less.
    given += ["decision.drift_weight=0", f"decision.energy_price={energy_price or 1.0}"]
    config = load_config("demo", given).config
    world, scheme = World.of(config), scheme_named("asfl:rate=on")
    fresh = SyntheticLearning.fresh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyntheticLearning, "fresh", lambda *which: replace(fresh(*which), noise_scale=NOISE))
        if energy_price is not None:
            patch.setattr(
                "asfl.runs.round.lasting_prices",
                lambda rate, pace, reserves, rules, index: rate.prices(rules, len(reserves.battery_j)),
            )
        return list(play(world, scheme, 1000, budgets_of(world, scheme)))


def progress(rounds: list[RoundRecord]) -> float:
    return float(Progress(6.0, NOISE).of([one.arrived_count for one in rounds]).sum())


def test_time_and_batteries_end_together() -> None:
    """Of all batteries together; who is nearest may have more left, since it can't do more than take part."""
    last = with_prices("equal", None)[-1]
    assert last.time_left_s is not None
    assert last.time_left_s <= 0.1 * TOTAL_S
    assert last.battery_left_j is not None
    assert np.mean(last.battery_left_j) <= 0.1 * 2.5
    assert np.median(last.battery_left_j) <= 0.05 * 2.5


@pytest.mark.parametrize("batteries", WORLDS)
def test_more_progress_than_with_prices_that_know_no_budget(batteries: str) -> None:
    """1 is the default; 3, about the best with equal batteries, is an oracle: nobody knows it before the end."""
    ours = progress(with_prices(batteries, None))
    fixed = {price: progress(with_prices(batteries, price)) for price in (1.0, 3.0)}
    assert ours > 1.05 * fixed[1.0]
    assert ours > 0.95 * max(fixed.values())
