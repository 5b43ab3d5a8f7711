"""Progress per cost: the price that is paid for progress goes where the best ratio of all is (docs/theory.md)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asfl.config import load_config
from asfl.costs.round import Holdings
from asfl.costs.world import World
from asfl.optimize.bcd import net_cost, solve_by_rate, worth_arriving
from asfl.optimize.problem import Prices, Problem, Progress, ProgressCost, Rules, Solution
from asfl.runs.play import play
from asfl.runs.state import SyntheticLearning
from asfl.schemes import scheme_named
from asfl.schemes.base import budgets_of

ROUNDS, SETTLED = 70, 15


@given(st.integers(0, 10**6), st.integers(2, 6))
@settings(max_examples=20)
def test_theta_finds_the_best_ratio(seed: int, decisions: int) -> None:
    """Rounds with a few decisions each, (cost, progress): θ of the sums so far against the best of all fixed θ."""
    random = np.random.default_rng(seed)
    cost, worth = random.uniform(0.5, 3, (4000, decisions)), random.uniform(0.1, 1, (4000, decisions))
    rounds = np.arange(len(cost))

    def ratio(theta: float) -> float:
        chosen = (cost - theta * worth).argmin(axis=1)
        return float(cost[rounds, chosen].sum() / worth[rounds, chosen].sum())

    theta = 1.0
    for _ in range(30):  # Dinkelbach's method with all rounds at once
        theta = ratio(theta)
    spent = made = 1e-9
    for of_cost, of_worth in zip(cost, worth, strict=True):
        chosen = int((of_cost - spent / made * of_worth).argmin())
        spent, made = spent + of_cost[chosen], made + of_worth[chosen]
    assert spent / made == pytest.approx(theta, rel=0.03)
    assert spent / made >= theta - 1e-9


def _cost_per_progress(energy_price: float) -> float:
    """Of rounds played by `asfl:rate=on`, once settled."""
    config = load_config("demo", [f"decision.energy_price={energy_price}"]).config
    world, scheme = World.of(config), scheme_named("asfl:rate=on")
    budgets = budgets_of(world, scheme)
    played = list(play(world, scheme, ROUNDS, budgets))[SETTLED:]
    clients, usual = config.scenario.clients, min(config.scenario.clients, config.radio.num_rbs)
    model = Progress(float(usual), SyntheticLearning.noise_scale)
    cost = sum(
        one.delay_s / budgets.delay_s + energy_price * sum(one.energy_j) / (clients * budgets.energy_j)
        for one in played
    )
    made = sum(float(model.of(one.arrived_count)) for one in played)
    return float(cost / made) if made > 0 else np.inf


def test_no_fixed_price_of_progress_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rounds with θ held at other values: none costs clearly less per progress than the θ that follows.

    Nobody ever lacks a layer here, so that rounds don't depend on those before.
    """
    monkeypatch.setattr(Holdings, "after", lambda self, *_, **__: self)
    found = _cost_per_progress(1.0)

    def fixed(theta: float) -> float:
        own = ProgressCost.prices

        def prices(self: ProgressCost, rules: Rules, num_clients: int) -> Prices:
            return replace(own(self, rules, num_clients), per_progress=theta)

        with monkeypatch.context() as patch:
            patch.setattr(ProgressCost, "prices", prices)
            return _cost_per_progress(1.0)

    others = [fixed(found * factor) for factor in (0.5, 0.75, 1.5, 3.0)]
    assert found <= 1.05 * min(others)


def test_a_dearer_joule_saves_joules() -> None:
    config = load_config("demo", []).config
    spent = []
    for price in (0.1, 3.0):
        dear = config.model_copy(update={"decision": config.decision.model_copy(update={"energy_price": price})})
        world, scheme = World.of(dear), scheme_named("asfl:rate=on")
        played = list(play(world, scheme, 40, budgets_of(world, scheme)))
        arrived = sum(one.arrived_count for one in played)
        spent.append(sum(sum(one.energy_j) for one in played) / arrived)
    assert spent[1] < spent[0]


@pytest.mark.parametrize("noise", [4.0, 64.0])
def test_a_round_that_pays_for_itself_is_not_skipped(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes of a round in which nobody arrives say that the first to arrive is worth nothing; together they are."""
    skipped_in_vain = 0

    def watched(problem: Problem, solve: Callable[..., Solution]) -> Solution:
        nonlocal skipped_in_vain
        found = solve_by_rate(problem, solve)
        prices, arrival = problem.prices, worth_arriving(found)
        assert prices is not None
        if np.isfinite(prices.per_progress) and problem.objective.progress.expected(arrival) <= 0:
            together = replace(prices, arrival=np.full(len(arrival), 0.5))
            other = solve(replace(problem, prices=together))
            skipped_in_vain += net_cost(other, worth_arriving(other)) < net_cost(found, arrival)
        return found

    monkeypatch.setattr("asfl.optimize.bcd.solve_by_rate", watched)
    fresh = SyntheticLearning.fresh
    monkeypatch.setattr(SyntheticLearning, "fresh", lambda *which: replace(fresh(*which), noise_scale=noise))
    world, scheme = World.of(load_config("small-cifar10", []).config), scheme_named("asfl:rate=on")
    rounds = list(play(world, scheme, 10, budgets_of(world, scheme)))
    assert skipped_in_vain == 0
    assert len(rounds) == 10


@pytest.mark.parametrize("noise", [2.0, 64.0])
def test_the_first_round_takes_the_best_ratio_that_it_saw(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """No price of progress is known yet, so prices and decisions follow each other, and may swing between serving all
    and serving nobody."""

    def ratio(problem: Problem, found: Solution) -> float:
        assert problem.prices is not None
        cost = problem.prices.cost(float(found.expected.delay_s), found.expected.energy_j)
        return cost / max(problem.objective.progress.expected(worth_arriving(found)), 1e-9)

    seen = 0

    def watched(asked: Problem, solve: Callable[..., Solution]) -> Solution:
        nonlocal seen
        assert asked.prices is not None
        tried: list[float] = []

        def solved(problem: Problem, *, start: Solution | None = None) -> Solution:
            found = solve(problem, start=start)
            tried.append(ratio(asked, found))
            return found

        found = solve_by_rate(asked, solved)
        if np.isnan(asked.prices.per_progress):
            assert ratio(asked, found) == min(tried) < 1e6
            seen += 1
        return found

    monkeypatch.setattr("asfl.optimize.bcd.solve_by_rate", watched)
    fresh = SyntheticLearning.fresh
    monkeypatch.setattr(SyntheticLearning, "fresh", lambda *which: replace(fresh(*which), noise_scale=noise))
    world, scheme = World.of(load_config("small-cifar10", []).config), scheme_named("asfl-plus")
    list(play(world, scheme, 2, budgets_of(world, scheme)))
    assert seen
