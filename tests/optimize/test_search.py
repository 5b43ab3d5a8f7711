"""The deadline search compiled by Numba and by NumPy: the same boxes, so the same result, bit for bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from problems import every_count, plain_objective, random_problem

from asfl.costs.decision import Decision
from asfl.optimize import grid, ooe_bcd, search, solve_jointly
from asfl.optimize.allocate import Supply
from asfl.optimize.deadlines import Choices, SearchResult, search_plainly
from asfl.optimize.grid import Grid, best_on_grid
from asfl.optimize.problem import Problem
from asfl.optimize.terms import Candidates, CutTerms

compiled = pytest.importorskip("asfl.optimize.compiled", reason="needs asfl[fast]")
seeds = st.integers(0, 10**6)
POWERS = (1.0, 0.3, 0.05)


def _grid(problem: Problem, coarseness: int = 1) -> Grid:
    return Grid.of(problem, 1.5 * np.multiply.outer(POWERS, np.ones(problem.round.num_clients)), coarseness)


def _assert_same(first: SearchResult | None, second: SearchResult | None) -> None:
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.pick.tolist() == second.pick.tolist()
        assert first.bounds.tolist() == second.bounds.tolist()
        for name in ("cut_index", "value", "lower_bound", "boxes"):
            assert getattr(first, name) == getattr(second, name), name


@given(
    seeds,
    st.sampled_from(
        [(3, 4, None), (6, 4, None), (6, 4, 4), (9, 9, 9), (7, 12, 7), (7, 12, 0), (12, 20, 12), (5, 6, 2), (20, 60, 3)]
    ),
    st.sampled_from(["drift", "per_round_budgets"]),
    st.sampled_from([1e-2, 1e-7]),
    st.booleans(),
)
def test_compiled_and_plain_search_are_the_same(
    seed: int, size: tuple[int, int, int | None], form: str, tolerance: float, has_start: bool
) -> None:
    clients, num_rbs, need = size
    rules: dict[str, Any] = {} if need is None else {"min_participants": need}
    problem = random_problem(seed, clients, num_rbs, form=form, **rules)
    terms = CutTerms.of(problem.round, problem.round.profile.cuts)
    choices = _grid(problem, coarseness=8 if num_rbs > 20 else 1).choices(terms)
    start = np.where(np.arange(clients) < num_rbs, 1 + seed % len(POWERS), 0) if has_start else None
    searches = [
        search_method(choices, problem.delay_penalty, start, tolerance, 200, 1.0)
        for search_method in (search_plainly, compiled.search_compiled)
    ]
    _assert_same(*searches)
    if searches[0] is not None:  # nothing is below the best, but something below a little more
        for share in (-1e-3, 1e-3):
            at_most = searches[0].value + share * max(1.0, abs(searches[0].value))
            _assert_same(
                search_plainly(choices, problem.delay_penalty, None, 1e-2, 200, 1.0, at_most),
                compiled.search_compiled(choices, problem.delay_penalty, None, 1e-2, 200, 1.0, at_most),
            )


@given(seeds, st.integers(1, 40), st.integers(1, 12), st.sampled_from(["free", "singles", "counts"]))
def test_ties_and_impossible_candidates_are_the_same(seed: int, clients: int, num_rbs: int, kind: str) -> None:
    """Times, arrivals and costs of few values, some infinite: where the argmin decides, both take the first."""
    rng = np.random.default_rng(seed)
    options = 2 if kind == "singles" else 4
    cost = rng.integers(-2, 3, (2, options, clients)).astype(float)
    cost[rng.random(cost.shape) < 0.1] = np.inf
    cost[:, 0] = np.where(np.isfinite(cost[:, 0]), cost[:, 0], 0.0)
    stage_s = rng.integers(0, 4, (3, 2, options, clients)).astype(float)
    if kind != "free":
        stage_s[:, :, 0] = 0.0  # to sit out takes no time
    candidates = Candidates(stage_s, rng.random((options, clients)), cost)
    counts = np.array([1] if kind == "singles" else [1, 2, 4])
    supply = None if kind == "free" else Supply(num_rbs, int(rng.integers(0, min(clients, num_rbs) + 1)), counts)
    choices = Choices(candidates, np.ones(2), np.zeros((2, 3)), supply, rng.random(2))
    delay = random_problem(seed).delay_penalty
    _assert_same(
        search_plainly(choices, delay, None, 1e-6, 300, 1.0),
        compiled.search_compiled(choices, delay, None, 1e-6, 300, 1.0),
    )


@given(seeds, st.sampled_from([(3, 4), (8, 5), (4, 12)]), st.sampled_from(["drift", "per_round_budgets"]))
@settings(max_examples=20)
def test_decisions_are_the_same(seed: int, size: tuple[int, int], form: str) -> None:
    problem = random_problem(seed, *size, form=form)
    for solver in (ooe_bcd, solve_jointly):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "PAYS_AFTER_S", np.inf)
            plain = solver(problem)
            patch.setattr(search, "PAYS_AFTER_S", -1.0)
            fast = solver(problem)
        assert fast.trace == plain.trace
        assert fast.lower_bound == plain.lower_bound
        for name in ("cut", "rb_count", "tx_power_w"):
            assert np.array_equal(getattr(fast.decision, name), getattr(plain.decision, name))


def test_the_compiled_search_is_used_once_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_searched_s", 0.0)
    calls: list[object] = []
    monkeypatch.setattr(compiled, "search_compiled", lambda *_: calls.append(1))
    ooe_bcd(random_problem(1))
    assert not calls
    monkeypatch.undo()
    monkeypatch.setattr(search, "_searched_s", 0.0)
    assert search.compile_search()
    assert search._searched_s >= search.PAYS_AFTER_S


def test_without_numba_there_is_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_compiled", lambda: None)
    assert not search.compile_search()
    monkeypatch.setattr(search, "PAYS_AFTER_S", -1.0)
    assert np.isfinite(ooe_bcd(random_problem(1)).objective)


@given(seeds, st.sampled_from(["corrected", "printed"]), st.sampled_from(["drift", "per_round_budgets"]))
def test_cuts_that_are_left_out_cannot_be_best(seed: int, reading: str, form: str) -> None:
    problem = random_problem(seed, clients=3, num_rbs=6, layers=6, equations=reading, form=form)
    terms, tried = CutTerms.of(problem.round, problem.round.profile.cuts), _grid(problem)
    bounds = tried.bounds(terms)
    for index in range(len(terms.cuts)):
        found = search_plainly(tried.choices(terms.only(index)), problem.delay_penalty, None, 1e-9, 5_000, 1.0)
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
        patch.setattr(grid, "PRUNED_ABOVE", 0)
        pruned = best_on_grid(problem, terms, tried.powers, 1e-9)
    assert (everything is None) == (pruned is None)
    if everything is not None and pruned is not None:
        assert pruned[0] == everything[0]
        assert np.array_equal(pruned[1], everything[1])
        assert np.array_equal(pruned[2], everything[2])
