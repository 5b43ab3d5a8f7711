"""Blocks that differ: whose each is, against every assignment there is."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from problems import plain_block_value, random_problem

from asfl.costs.modelled import round_cost
from asfl.costs.round import Decision
from asfl.optimize import Problem, assign, ooe_bcd
from asfl.optimize.blocks import best_rb_counts
from asfl.optimize.terms import terms_of


def selective(seed: int, clients: int = 3, num_rbs: int = 4, **rules: Any) -> Problem:
    """Every block fades on its own."""
    problem = random_problem(seed, clients=clients, num_rbs=num_rbs, **rules)
    gains = problem.round.path_gain[:, None] * np.random.default_rng(seed).exponential(size=(clients, num_rbs))
    return replace(problem, round=replace(problem.round, block_gain=gains, channel_gain=gains.mean(axis=1)))


def value_of(problem: Problem, decision: Decision, mask: np.ndarray) -> tuple[float, float]:
    round_ = replace(problem.round, blocks=mask)
    counted = replace(decision, rb_count=mask.sum(axis=1).astype(float))
    return plain_block_value(replace(problem, round=round_), counted)


def every_mask(problem: Problem) -> list[np.ndarray]:
    clients, blocks = problem.round.num_clients, problem.round.radio.num_rbs
    masks = [np.arange(clients)[:, None] == np.array(owners) for owners in product(range(clients + 1), repeat=blocks)]
    return [mask for mask in masks if mask.any(axis=1).sum() >= problem.min_participants]


@pytest.mark.parametrize("seed", range(6))
def test_small_rounds_are_exact(seed: int) -> None:
    problem = selective(seed, form=["drift", "per_round_budgets"][seed % 2])
    decision = Decision(1 + seed % 3, np.ones(3), np.array([0.3, 1.0, 1.5]))
    found = assign.best_blocks(problem, terms_of(problem, decision), decision)
    best = min(value_of(problem, decision, mask) for mask in every_mask(problem))
    got = value_of(problem, decision, found)
    assert got[0] == pytest.approx(best[0], rel=1e-6, abs=1e-9)
    if got[0] <= best[0] + 1e-9:
        assert got[1] == pytest.approx(best[1], rel=1e-6, abs=1e-6)


def test_moves_come_near_the_best_and_say_how_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rounds without enumeration; the relaxed counts are a bound from below."""
    gaps = []
    monkeypatch.setattr(assign, "ENUMERABLE", 0)
    for seed in range(8):
        problem = selective(seed)
        start = Decision(1, np.array([2.0, 1.0, 1.0]), np.full(3, 1.0))
        here = terms_of(problem, start)
        counts = best_rb_counts(problem, here, start.tx_power_w, start.rb_count)
        bound = plain_block_value(problem, replace(start, rb_count=counts))[1]
        found = assign.best_blocks(problem, here, replace(start, rb_count=counts))
        got = value_of(problem, start, found)[1]
        best = min(value_of(problem, start, mask)[1] for mask in every_mask(problem))
        assert best - 1e-9 <= got
        assert bound <= best + 1e-6 * abs(best) + 1e-9
        gaps.append((got - best) / max(1.0, abs(best)))
    assert np.mean(gaps) < 0.01


@pytest.mark.parametrize("seed", range(6))
def test_decisions_assign_each_block_once_and_never_get_worse(seed: int) -> None:
    problem = selective(seed, clients=5, num_rbs=6)
    solution = ooe_bcd(problem)
    blocks = solution.decision.blocks
    assert blocks is not None
    assert (blocks.sum(axis=0) <= 1).all()
    assert (blocks.sum(axis=1) == solution.decision.rb_count).all()
    assert (solution.decision.rb_mask == blocks).all()
    assert solution.decision.scheduled.sum() >= problem.min_participants
    mean = replace(problem.round, block_gain=None)
    blind = ooe_bcd(replace(problem, round=mean)).decision
    # Whoever decides by means and then takes the blocks as they come is no better off.
    given = assign.assigned(problem.round, blind)
    there = replace(problem, round=replace(problem.round, blocks=given.blocks))
    blindly = plain_block_value(there, given)[1]
    assert solution.objective <= blindly + 0.02 * max(1.0, abs(blindly))


def test_equal_blocks_are_the_flat_channel() -> None:
    problem = random_problem(4, clients=4, num_rbs=4)
    round_ = problem.round
    gains = np.repeat(round_.channel_gain[:, None], 4, axis=1)
    same = replace(round_, block_gain=gains)
    decision = Decision(2, np.array([2.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.5, 0.2, 0.0]))
    flat, selective_ = round_cost(round_, decision), round_cost(same, decision)
    assert selective_.delay_s == pytest.approx(float(flat.delay_s), rel=1e-12)
    assert selective_.energy_j == pytest.approx(flat.energy_j, rel=1e-12)
    assert selective_.packet_error_rate == pytest.approx(flat.packet_error_rate, rel=1e-9)


@pytest.mark.parametrize("known", [True, False])
def test_rates_and_errors_are_sums_over_blocks(known: bool) -> None:
    problem = selective(3)
    round_ = replace(problem.round, gain_is_known=known)
    mask = np.array([[True, False, True, False], [False, True, False, False], [False, False, False, False]])
    there = replace(round_, blocks=mask)
    count, power = mask.sum(axis=1).astype(float), np.array([0.7, 1.1, 0.0])
    noise_w = round_.radio.rb_bandwidth_hz * round_.radio.noise_psd_w_per_hz
    gains = round_.block_gain
    assert gains is not None
    first = 1e6 * sum(np.log2(1 + 0.7 * gains[0, b] / (2 * noise_w)) for b in (0, 2))
    assert there.uplink_rate_bps(count, power)[:2] == pytest.approx(
        [first, 1e6 * np.log2(1 + 1.1 * gains[1, 1] / noise_w)]
    )
    if known:
        lost = 1 - np.exp(-2 * noise_w / 0.7 * (1 / gains[0, 0] + 1 / gains[0, 2]) / 2)
        assert there.packet_error_rate(count, power)[0] == pytest.approx(lost)
