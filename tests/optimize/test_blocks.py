"""Every block is optimal for its subproblem: against brute force, a fine grid, and a mixed-integer solver."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from problems import every_count, plain_block_value, plain_objective, random_problem

from asfl.costs.round import Decision
from asfl.optimize.blocks import (
    all_allocations,
    best_powers,
    best_rb_counts,
    number_of_allocations,
    objective_of_cuts,
    power_for_energy,
)
from asfl.optimize.compiled import allocate
from asfl.optimize.problem import Problem
from asfl.optimize.terms import CutTerms, plan_terms

seeds = st.integers(0, 10**6)
forms = st.sampled_from(["drift", "per_round_budgets"])
readings = st.sampled_from(["corrected", "printed"])
weights = st.sampled_from(["(1-s)^2", "s^2", "s"])


def _terms(problem: Problem) -> CutTerms:
    return plan_terms(problem)


def _some_powers(problem: Problem, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.01, 1.5, problem.round.num_clients)


@given(seeds, readings, weights, st.sampled_from(["sent", "signed"]))
def test_the_fast_objective_is_the_plain_one(seed: int, reading: str, weight: str, resplit: str) -> None:
    problem = random_problem(seed, equations=reading, error_weight=weight, resplit_energy=resplit)
    power = _some_powers(problem, seed)
    for counts in list(every_count(problem))[:: max(1, seed % 7)][:6]:
        fast = objective_of_cuts(problem, _terms(problem), counts, power)
        plain = [plain_objective(problem, Decision(int(cut), counts, power)) for cut in problem.round.profile.cuts]
        np.testing.assert_allclose(fast, plain, rtol=1e-9, atol=1e-9)


@given(seeds, forms, readings, weights, st.booleans())
def test_rb_block_is_brute_force(seed: int, form: str, reading: str, weight: str, enumerate_small: bool) -> None:
    """By enumeration and by the deadline search; within hard budgets the least violation comes first."""
    problem = random_problem(seed, form=form, equations=reading, error_weight=weight)
    terms, power = _terms(problem), _some_powers(problem, seed)
    candidates = list(every_count(problem))
    index = seed % len(terms.cuts)
    cut = int(terms.cuts[index])
    found = best_rb_counts(problem, terms.only(index), power, candidates[0], enumerate_small=enumerate_small)
    assert any((found == counts).all() for counts in candidates)
    values = [plain_block_value(problem, Decision(cut, counts, power)) for counts in candidates]
    least_violation = min(violation for violation, _ in values)
    best = min(rest for violation, rest in values if violation <= least_violation + 1e-7)
    violation, rest = plain_block_value(problem, Decision(cut, found, power))
    assert violation <= least_violation + 1e-5
    if violation >= least_violation - 1e-9:
        assert rest <= best + 1e-5 * max(1, abs(best))


@given(seeds)
def test_rb_block_is_the_mixed_integer_optimum(seed: int) -> None:
    """The paper's way: problem (49) with CVXPY and a mixed-integer solver gives the same optimum."""
    problem = random_problem(seed, clients=4, num_rbs=5, form="per_round_budgets", min_participants=2)
    terms, power = _terms(problem), _some_powers(problem, seed)
    index = seed % len(terms.cuts)
    cut = int(terms.cuts[index])
    expected = _rbs_by_cvxpy(problem, cut, power)
    found = best_rb_counts(problem, terms.only(index), power, next(every_count(problem)))
    violation, rest = plain_block_value(problem, Decision(cut, found, power))
    if expected is None:  # no allocation keeps the budgets: the block still answers, with the least violation
        assert violation > 0
    else:
        assert violation <= 1e-9
        assert rest == pytest.approx(expected, rel=1e-5, abs=1e-6)


def _rbs_by_cvxpy(problem: Problem, cut: int, power: np.ndarray) -> float | None:
    from benchmarks.rbs_by_cvxpy import solve

    return solve(problem, cut, power)


@given(seeds, forms, readings)
@settings(max_examples=12)
def test_power_block_is_a_fine_grid(seed: int, form: str, reading: str) -> None:
    problem = random_problem(
        seed, clients=2, num_rbs=3, form=form, equations=reading, error_weight="s", min_participants=1
    )
    terms, counts = _terms(problem), np.array([2.0, 1.0])
    index = seed % len(terms.cuts)
    cut = int(terms.cuts[index])
    found = best_powers(problem, terms.only(index), counts, np.array([0.3, 0.7]))
    assert ((found >= 0) & (found <= 1.5)).all()
    ladder = 1.5 * np.geomspace(1e-4, 1, 30)
    values = [plain_block_value(problem, Decision(cut, counts, np.array(pair))) for pair in product(ladder, ladder)]
    least_violation = min(violation for violation, _ in values)
    violation, rest = plain_block_value(problem, Decision(cut, counts, found))
    assert violation <= least_violation + 2e-3
    as_good = [rest for over, rest in values if over <= violation + 1e-12]
    assert all(rest <= best + 1e-2 * max(1.0, abs(best)) for best in as_good)


@given(seeds, readings)
def test_the_power_for_an_energy_uses_it_up(seed: int, reading: str) -> None:
    """E_n(p) at the root is the energy asked for, unless P^max or nothing at all is."""
    problem = random_problem(seed, equations=reading)
    terms, counts = _terms(problem), np.array([1.0, 2.0, 1.0])
    index = seed % len(terms.cuts)
    cut = int(terms.cuts[index])
    target = problem.rules.energy_budget_j

    def energy(power: np.ndarray) -> np.ndarray:
        from asfl.costs.modelled import round_cost

        return round_cost(problem.round, Decision(cut, counts, power)).energy_j

    root = power_for_energy(problem, terms.only(index), counts, np.full(3, target))
    at_root, at_top = energy(np.maximum(root, 1e-9)), energy(np.full(3, 1.5))
    for client in range(3):
        if at_top[client] <= target:
            assert root[client] == pytest.approx(1.5)
        elif root[client] > 1e-6:
            assert at_root[client] == pytest.approx(target, rel=1e-4)


@given(
    seeds,
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 4),
    st.sets(st.integers(1, 6), min_size=1),
    st.booleans(),
)
def test_allocations_are_brute_force(
    seed: int, clients: int, num_rbs: int, need: int, some: set[int], has_ties: bool
) -> None:
    """Any counts may be missing, but for one block; without programming there is a choice that fits and a bound."""
    counts = np.array([1, *sorted(k for k in some if 1 < k <= num_rbs)])
    blocks, rng, every_client = np.concatenate([[0], counts]), np.random.default_rng(seed), np.arange(clients)
    need = min(need, clients, num_rbs)
    cost = rng.normal(size=(3, len(blocks), clients))
    cost = np.round(cost) if has_ties else cost
    if need < clients:
        cost[1, 1:, 0] = np.inf  # the first client can't be served in case 1
    cost[2, 1:][rng.random(cost[2, 1:].shape) < 0.5] = np.inf
    tables = np.array(list(product(range(len(blocks)), repeat=clients)))
    tables = tables[(blocks[tables].sum(axis=1) <= num_rbs) & ((tables > 0).sum(axis=1) >= need)]
    for each in cost:
        expected = each[tables, every_client].sum(axis=1).min()
        for is_exact in (True, False):
            rows = np.zeros(clients, dtype=np.int64)
            bound = allocate(each.copy(), blocks, num_rbs, need, is_exact, rows)
            if not np.isfinite(expected):
                assert bound == np.inf
                continue
            assert blocks[rows].sum() <= num_rbs
            assert (rows > 0).sum() >= need
            assert bound <= expected + 1e-9
            if is_exact:
                assert each[rows, every_client].sum() == pytest.approx(expected)
                assert bound == pytest.approx(expected)


@given(seeds, st.integers(1, 4), st.integers(1, 6), st.integers(0, 4))
def test_all_allocations_are_all(seed: int, clients: int, num_rbs: int, need: int) -> None:
    every = all_allocations(clients, num_rbs, need)
    assert len(every) == number_of_allocations(clients, num_rbs, need) == len({*map(tuple, every.tolist())})
    assert (every.sum(axis=1) <= num_rbs).all()
    assert ((every > 0).sum(axis=1) >= need).all()


@given(seeds)
def test_a_ladder_of_counts_costs_little(seed: int) -> None:
    """As for a thousand clients, but with so many blocks for each that most counts are between the steps."""
    problem = random_problem(seed, clients=3, num_rbs=60, min_participants=1)
    terms, power = _terms(problem), _some_powers(problem, seed)
    index = seed % len(terms.cuts)
    values = []
    for finest in (64, 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("asfl.optimize.blocks.EVERY_COUNT", range(finest, finest + 1))
            counts = best_rb_counts(problem, terms.only(index), power, np.ones(3))
        assert counts.sum() <= 60
        values.append(plain_objective(problem, Decision(int(terms.cuts[index]), counts, power)))
    exact, rough = values
    assert exact - 1e-6 * max(1.0, abs(exact)) <= rough <= exact + 0.05 * max(1.0, abs(exact))


def test_blocks_never_leave_a_better_start() -> None:
    for seed in range(30):
        problem = random_problem(seed)
        terms, power = _terms(problem), _some_powers(problem, seed)
        for start in list(every_count(problem))[:5]:
            before = plain_objective(problem, Decision(1, start, power))
            counts = best_rb_counts(problem, terms.only(0), power, start, enumerate_small=False)
            after = plain_objective(problem, Decision(1, counts, power))
            powers = best_powers(problem, terms.only(0), counts, power, zooms=1)
            last = plain_objective(problem, Decision(1, counts, powers))
            slack = 1e-9 * max(1, abs(before))
            assert after <= before + slack
            assert last <= after + slack


def test_weights_of_the_printed_objective_differ() -> None:
    """(1 − s)² as printed rewards packet errors: less power looks better."""
    base = random_problem(3, equations="printed")
    counts, low, high = np.array([1.0, 1.0, 1.0]), np.full(3, 0.01), np.full(3, 1.5)
    only_objective = base.rules.model_copy(update={"queue_rule": "printed", "queue_memory": 1.0})
    for weight, prefers_errors in (("(1-s)^2", True), ("s^2", False), ("s", False)):
        problem = replace(base, rules=only_objective.model_copy(update={"error_weight": weight}))
        silent, loud = (plain_objective(problem, Decision(1, counts, power)) for power in (low, high))
        assert (silent < loud) is prefers_errors
