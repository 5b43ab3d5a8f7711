"""The deadline search against every choice there is; and what is compiled, in processes that can't keep it."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from problems import every_count, plain_objective, random_problem

from asfl.config.shapes import Floats
from asfl.costs.round import Decision
from asfl.optimize.blocks import Grid, best_on_grid
from asfl.optimize.compiled import compiled
from asfl.optimize.problem import Penalty, Problem
from asfl.optimize.search import Choices, Pick, SearchResult, Supply, search_deadlines
from asfl.optimize.terms import Candidates, plan_terms

seeds = st.integers(0, 10**6)
POWERS = (1.0, 0.3, 0.05)


def _grid(problem: Problem, coarseness: int = 1) -> Grid:
    return Grid.of(problem, 1.5 * np.multiply.outer(POWERS, np.ones(problem.round.num_clients)), coarseness)


def _values(choices: Choices, delay: Penalty, cut: int, picks: Pick) -> Floats:
    """[L] the objective of picks [L, N] at a cut; infinite where blocks don't suffice or too few are served."""
    candidates, supply, clients = choices.candidates, choices.supply, np.arange(picks.shape[1])
    waits = candidates.stage_s[:, cut, picks, clients].max(axis=2).sum(axis=0)
    load_s = choices.server_s[cut] * candidates.load[picks, clients].sum(axis=1)
    cost = candidates.cost[cut, picks, clients].sum(axis=1) + choices.once[cut]
    fits = np.ones(len(picks), dtype=bool)
    if supply is not None:
        blocks = np.concatenate([[0], np.repeat(supply.counts, supply.powers)])[picks]
        fits = (blocks.sum(axis=1) <= supply.num_rbs) & ((blocks > 0).sum(axis=1) >= supply.min_served)
    possible = fits & (cost < np.inf)
    return np.where(possible, delay.value(np.where(possible, waits + load_s, 0.0)) + cost, np.inf)


def _assert_best(choices: Choices, delay: Penalty, found: SearchResult | None, tolerance: float, picks: Pick) -> None:
    """The search's answer against picks [L, N], all of them or some."""
    best = np.array([_values(choices, delay, cut, picks).min() for cut in range(len(choices.server_s))])
    if found is None:
        assert np.isinf(best).all()
        return
    (value,) = _values(choices, delay, found.cut_index, found.pick[None])
    slack = 1e-9 * max(1.0, abs(found.value))
    assert found.value == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert found.lower_bound <= best.min() + slack
    assert found.value <= best.min() + tolerance * max(1.0, abs(found.value)) + slack
    assert (np.minimum(found.bounds, found.value - tolerance * max(1.0, abs(found.value))) <= best + slack).all()


def _all_or_some(options: int, clients: int, seed: int) -> Pick:
    if options**clients <= 30_000:
        return np.array(list(product(range(options), repeat=clients)))
    return np.random.default_rng(seed).integers(0, options, (3_000, clients))


@given(
    seeds,
    st.sampled_from([(3, 4, None), (3, 5, 3), (4, 3, 3), (2, 6, 0), (2, 6, 2), (4, 2, 2), (9, 9, 9), (12, 20, 12)]),
    st.sampled_from(["drift", "per_round_budgets"]),
    st.sampled_from([1e-2, 1e-6]),
    st.booleans(),
)
def test_nothing_is_better_than_what_the_search_finds(
    seed: int, size: tuple[int, int, int | None], form: str, tolerance: float, has_start: bool
) -> None:
    clients, num_rbs, need = size
    rules: dict[str, Any] = {} if need is None else {"min_participants": need}
    problem = random_problem(seed, clients, num_rbs, form=form, **rules)
    delay = problem.objective.delay_penalty
    choices = _grid(problem, coarseness=8).choices(plan_terms(problem))
    start = np.where(np.arange(clients) < num_rbs, 1 + seed % len(POWERS), 0) if has_start else None
    picks = _all_or_some(len(choices.candidates.load), clients, seed)
    found = search_deadlines(choices, delay, start, tolerance)
    _assert_best(choices, delay, found, tolerance, picks)
    if found is not None:  # nothing is below the best by more than the tolerance
        at_most = found.value - 2 * tolerance * max(1.0, abs(found.value))
        assert search_deadlines(choices, delay, None, tolerance, at_most=at_most) is None


@given(seeds, st.integers(1, 6), st.integers(1, 12), st.sampled_from(["free", "singles", "counts"]))
def test_ties_and_impossible_candidates(seed: int, clients: int, num_rbs: int, kind: str) -> None:
    """Times, arrivals and costs of few values, some infinite."""
    rng = np.random.default_rng(seed)
    options = 2 if kind == "singles" else 4
    cost = rng.integers(-2, 3, (2, options, clients)).astype(float)
    cost[rng.random(cost.shape) < 0.1] = np.inf
    cost[:, 0] = np.where(np.isfinite(cost[:, 0]), cost[:, 0], 0.0)
    stage_s = rng.integers(0, 4, (3, 2, options, clients)).astype(float)
    if kind != "free":
        stage_s[:, :, 0] = 0.0  # to sit out takes no time
    counts = np.array([1] if kind == "singles" else [1, 2, 4])
    supply = None if kind == "free" else Supply(num_rbs, int(rng.integers(0, min(clients, num_rbs) + 1)), counts)
    candidates = Candidates(stage_s, rng.random((options, clients)), cost)
    choices = Choices(candidates, np.ones(2), np.zeros((2, 3)), supply, rng.random(2))
    delay = random_problem(seed).objective.delay_penalty
    found = search_deadlines(choices, delay, None, 1e-6)
    _assert_best(choices, delay, found, 1e-6, _all_or_some(options, clients, seed))


def test_where_no_folder_keeps_what_is_compiled_it_is_compiled_for_this_process() -> None:
    unkept: Any = eval("lambda x: x + 1")  # of no file, so it has no folder either
    assert compiled(unkept)(2) == 3


@given(seeds, st.sampled_from(["corrected", "printed"]), st.sampled_from(["drift", "per_round_budgets"]))
def test_cuts_that_are_left_out_cannot_be_best(seed: int, reading: str, form: str) -> None:
    problem = random_problem(seed, clients=3, num_rbs=6, layers=6, equations=reading, form=form)
    terms, tried = plan_terms(problem), _grid(problem)
    bounds = tried.bounds(terms)
    for index in range(len(terms.cuts)):
        found = search_deadlines(tried.choices(terms.only(index)), problem.objective.delay_penalty, None, 1e-9, 5_000)
        if found is not None:
            assert bounds[index] <= found.value + 1e-9 * max(1.0, abs(found.value))
    if form == "drift" and problem.min_participants:
        counts = np.array(next(iter(every_count(problem))))
        for index, cut in enumerate(terms.cuts.tolist()):
            for power in POWERS:
                value = plain_objective(problem, Decision(cut, counts, np.full(3, 1.5 * power)))
                assert bounds[index] <= value + 1e-9 * max(1.0, abs(value))
    with pytest.MonkeyPatch.context() as patch:
        everything = best_on_grid(problem, terms, tried.powers, 1e-9)
        patch.setattr("asfl.optimize.blocks.PRUNED_ABOVE", 0)
        pruned = best_on_grid(problem, terms, tried.powers, 1e-9)
    assert (everything is None) == (pruned is None)
    if everything is not None and pruned is not None:
        assert pruned[0] == everything[0]
        assert np.array_equal(pruned[1], everything[1])
        assert np.array_equal(pruned[2], everything[2])
