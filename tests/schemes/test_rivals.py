"""What all rivals have in common; AdaptSFL, HASFL and baselines with 8 bits against trying everything."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from problems import random_problem
from worlds import paper_round, problem_of

from asfl.costs import modelled as costs
from asfl.costs.modelled import round_cost
from asfl.costs.round import MOST_BATCHES, Decision, Holdings, Round
from asfl.optimize import Problem
from asfl.schemes import adaptsfl, hasfl, scheme_named
from asfl.schemes.base import asfl_decision, check, decided_by, random_powers

SEEDS = st.integers(0, 2**20)
RIVALS = ("acc-sfl", "epsl", "adaptsfl", "hasfl")


def problem_for(seed: int, index: int = 0, clients: int = 3) -> Problem:
    problem = random_problem(seed, clients=clients, num_rbs=5, layers=5)
    return replace(problem, round=replace(problem.round, index=index))


def small_round(seed: int, clients: int = 2) -> Round:
    return replace(random_problem(seed, clients, 4, layers=4).round, previous_cut=None)


def assert_valid(problem: Problem, name: str) -> Decision:
    """Twice the same valid decision, for the clients that ASFL would serve."""
    scheme = scheme_named(name)
    decision, again = (decided_by(scheme, problem, 3).decision for _ in range(2))
    check(decision, problem, scheme)
    np.testing.assert_array_equal(decision.scheduled, asfl_decision(problem).scheduled)
    for field in ("cut", "rb_count", "tx_power_w", "batch", "synced"):
        np.testing.assert_array_equal(getattr(decision, field), getattr(again, field))
    full_power_w = decision.scheduled * problem.round.radio.max_tx_power_w
    np.testing.assert_array_equal(decision.tx_power_w, random_powers(problem, 3) if name == "acc-sfl" else full_power_w)
    return decision


@pytest.mark.parametrize("name", RIVALS)
@given(st.data())
@settings(max_examples=20)
def test_decisions_are_valid_repeatable_and_serve_the_clients_that_asfl_would(name: str, data: st.DataObject) -> None:
    """Not a random draw, which would send them through fades that ASFL avoids; without gain a client sits out."""
    problem = problem_for(data.draw(SEEDS))
    assert_valid(problem, name)
    reachable = np.array([data.draw(st.booleans()) for _ in range(3)])
    deaf = replace(problem.round, channel_gain=np.where(reachable, problem.round.channel_gain, 0.0))
    rules = problem.rules.model_copy(update={"min_participants": 1})
    decision = assert_valid(replace(problem, round=deaf, rules=rules), name)
    assert not decision.scheduled[~reachable].any()
    assert decision.scheduled.any() == reachable.any()


@pytest.mark.parametrize("name", RIVALS)
def test_extreme_rounds(name: str) -> None:
    """One client takes all blocks, one block goes to one client, and a client that is hardly heard breaks nothing."""
    if name in ("acc-sfl", "epsl"):
        assert assert_valid(problem_of(paper_round(1, 5, 0)), name).rb_count.tolist() == [5]
    assert sorted(assert_valid(problem_of(paper_round(4, 1, 0)), name).rb_count) == [0, 0, 0, 1]
    for gain in (1e-300, 1e-30):
        round_ = paper_round(3, 5, 0, previous_cut=9)
        hardly = replace(round_, channel_gain=np.array([gain, *round_.channel_gain[1:]]))
        assert assert_valid(problem_of(hardly), name).scheduled[1:].any()


# ---------------------------------------------------------------------- 8 bits
@given(SEEDS)
@settings(max_examples=20)
def test_8_bits_change_the_bits_and_the_best_cut_only(seed: int) -> None:
    problem = problem_for(seed)
    reference = asfl_decision(problem)
    for name in ("fedavg:bits=8", "sfl-best:bits=8"):
        decided = decided_by(scheme_named(name), problem, 1)
        assert decided.decision.bits == 8
        assert decided.reference is not None
        assert decided.reference.bits == 32
        np.testing.assert_array_equal(decided.decision.rb_count, reference.rb_count)
    delays = [
        float(round_cost(problem.round, replace(reference, cut=cut, bits=8), exchange=costs.SFL).delay_s)
        for cut in problem.round.profile.cuts.tolist()
    ]
    found = round_cost(problem.round, decided.decision, exchange=costs.SFL).delay_s
    assert float(found) == pytest.approx(min(delays))


# ---------------------------------------------------------------------- AdaptSFL
@given(SEEDS, st.floats(0.1, 30), st.floats(0, 0.1))
@settings(max_examples=20)
def test_adaptsfl_times_are_the_formula_in_loops(seed: int, noise_scale: float, drift_weight: float) -> None:
    round_, counts = small_round(seed), np.array([2.0, 1.0])
    power, everybody = np.full(2, round_.radio.max_tx_power_w), np.ones(2)
    found = adaptsfl.training_times(round_, counts, noise_scale, drift_weight)
    bits = round_.profile.param_bits
    for row, cut in enumerate(round_.profile.cuts.tolist()):
        decision = Decision(cut, counts, power)
        split, exchange = (
            float(round_cost(round_, decision, everybody, exchange).delay_s) for exchange in (costs.ASFL, costs.SFL)
        )
        for column, interval in enumerate(adaptsfl.INTERVALS.tolist()):
            lost = drift_weight * interval**2 * bits[:cut].sum() / bits.sum() if interval > 1 else 0.0
            progress = 2 / (2 + noise_scale) - lost
            mean_s = ((interval - 1) * split + exchange) / interval
            assert found[row, column] == pytest.approx(mean_s / progress if progress > 0 else np.inf)


@given(SEEDS)
@settings(max_examples=20)
def test_adaptsfl_is_no_longer_than_any_cut_and_interval_with_even_blocks(seed: int) -> None:
    round_ = small_round(seed)
    best = adaptsfl.shortest_training(round_, 2.0, 0.02)
    assert best.training_s <= adaptsfl.training_times(round_, np.full(2, 2.0), 2.0, 0.02).min() * (1 + 1e-9)
    stays = adaptsfl.shortest_training(round_, 2.0, 0.02, cut=3)
    assert stays.cut == 3
    assert stays.training_s >= best.training_s * (1 - 1e-9) or best.cut == 3


@given(SEEDS)
@settings(max_examples=8)
def test_adaptsfl_averages_on_a_grid_and_moves_the_cut_only_when_sides_are_equal(seed: int) -> None:
    scheme, problem = scheme_named("adaptsfl"), problem_for(seed)
    held = Holdings(np.zeros((3, 5)), np.array([True, True, False, False, False]))
    apart = replace(problem.round, holdings=held, previous_cut=2)
    decisions = [
        decided_by(scheme, replace(problem, round=replace(apart, index=index)), 1).decision for index in range(65)
    ]
    assert all(decision.cut == 2 or not decision.scheduled.any() for decision in decisions)
    synced = [index + 1 for index, decision in enumerate(decisions) if decision.synced]
    if decisions[0].scheduled.any():
        assert synced == list(range(synced[0], 65, synced[0]))
        assert {decisions[index - 1].synced for index in synced} == {2}


# ---------------------------------------------------------------------- HASFL
@given(SEEDS, st.floats(0.1, 30))
@settings(max_examples=10)
def test_hasfl_cuts_and_batches_equal_trying_everything(seed: int, noise_scale: float) -> None:
    round_, counts = small_round(seed), np.array([2.0, 1.0])
    found = hasfl.cuts_and_batches(round_, counts, noise_scale)
    cuts, sizes = round_.profile.cuts.tolist(), hasfl.allowed_batches(round_).tolist()
    best = min(
        hasfl.training_time(round_, replace(found, cut=np.array(cut), batch=np.array(batch)), noise_scale)
        for cut in product(cuts, repeat=2)
        for batch in product(sizes, repeat=2)
    )
    assert hasfl.training_time(round_, found, noise_scale) == pytest.approx(best, rel=1e-9)


def test_hasfl_batches_follow_the_noise_and_the_processors() -> None:
    round_ = small_round(4)
    exact, noisy = (hasfl.shortest_training(round_, noise).batch for noise in (1e-6, 1e3))
    assert exact is not None
    assert noisy is not None
    assert (exact == hasfl.allowed_batches(round_)[0]).all()  # without noise, samples are only work
    assert noisy.mean() > exact.mean()
    slow = replace(round_, cpu_hz=np.array([1e7, 2e9]), channel_gain=np.full(2, 1e-9))
    batch = hasfl.shortest_training(slow, 20.0).batch
    assert batch is not None
    assert batch[0] < batch[1]


def test_sizes_of_mini_batches() -> None:
    round_ = replace(small_round(0), charged_samples=96.0, local_steps=3)
    sizes = hasfl.allowed_batches(round_)
    assert round_.batch_size == 32
    assert {8, 32, 128} <= set(sizes.tolist())
    assert sizes.max() <= MOST_BATCHES * 32
    one = hasfl.allowed_batches(replace(round_, charged_samples=1.0, local_steps=1))
    assert one.min() == 1
