"""What is left of total budgets: never negative, used in order, and nobody is served from an empty battery."""

import numpy as np
from hypothesis import given, settings, strategies as st
from worlds import rounds_with_decisions

from asfl.config import load_config
from asfl.costs.modelled import round_cost
from asfl.costs.round import Decision, Round
from asfl.costs.world import RemainingBudget


def reserves(time_s: float, battery_j: float, clients: int) -> RemainingBudget:
    batteries = np.full(clients, battery_j)
    return RemainingBudget(time_s, batteries, time_s, batteries, rounds=10)


def test_without_a_budget_there_are_no_reserves() -> None:
    assert RemainingBudget.of(load_config("demo").config) is None


def test_one_number_is_for_every_client_and_a_list_for_each() -> None:
    same = RemainingBudget.of(load_config("demo", ["budget.battery_j=5 kJ"]).config)
    each = RemainingBudget.of(
        load_config("demo", ["budget.battery_j=[1, 2, 3, 4, 5, 6]", "budget.total_delay_s=1 h"]).config
    )
    assert same is not None
    assert each is not None
    assert same.battery_left_j.tolist() == [5000.0] * 6
    assert np.isinf(same.time_left_s)
    assert each.battery_left_j.tolist() == [1, 2, 3, 4, 5, 6]
    assert each.time_left_s == 3600


@given(rounds_with_decisions(), st.floats(1e-3, 1e3), st.floats(1e-6, 1e2))
@settings(max_examples=60)
def test_a_round_takes_what_is_left_and_no_more(
    given_: tuple[Round, Decision], time_s: float, battery_j: float
) -> None:
    round_, decision = given_
    cost = round_cost(round_, decision, decision.scheduled)
    before = reserves(time_s, battery_j, round_.num_clients)
    cut_off = before.cut_off(cost)
    np.testing.assert_allclose(cut_off.delay_s, min(float(cost.delay_s), time_s), rtol=1e-12)
    np.testing.assert_allclose(cut_off.energy_j, np.minimum(cost.energy_j, battery_j), rtol=1e-12, atol=1e-300)
    assert before.outlast(cost).tolist() == [
        float(cost.delay_s) <= time_s and energy <= battery_j for energy in cost.energy_j.tolist()
    ]
    after = before.after(cut_off)
    assert after.time_left_s >= 0
    assert (after.battery_left_j >= 0).all()
    assert after.empty[cost.energy_j >= battery_j].all()
    assert after.used_up == (float(cost.delay_s) >= time_s * (1 - 1e-9) or bool(after.empty.all()))


@given(rounds_with_decisions())
@settings(max_examples=20)
def test_without_a_limit_nothing_changes(given_: tuple[Round, Decision]) -> None:
    round_, decision = given_
    cost = round_cost(round_, decision, decision.scheduled)
    before = reserves(np.inf, np.inf, round_.num_clients)
    cut_off = before.cut_off(cost)
    np.testing.assert_array_equal(cut_off.energy_j, cost.energy_j)
    assert cut_off.delay_s == cost.delay_s
    assert not before.after(cut_off).used_up


@given(rounds_with_decisions(), st.integers(0, 10**6))
@settings(max_examples=20)
def test_empty_clients_are_unreachable_and_get_no_blocks(given_: tuple[Round, Decision], seed: int) -> None:
    round_, decision = given_
    left = np.random.default_rng(seed).choice([0.0, 1.0], round_.num_clients)
    some_empty = RemainingBudget(np.inf, np.ones(round_.num_clients), np.inf, left, rounds=10)
    assert (some_empty.reachable(round_).channel_gain[left == 0] == 0).all()
    np.testing.assert_array_equal(some_empty.without_empty(decision).rb_count, decision.rb_count * left)
