"""Whole decisions: never worse from block to block, close to the optimum, valid in every corner; on 5G NR, too."""

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from problems import every_count, overlapping, plain_objective, plain_violation, random_problem

from asfl.costs.modelled import in_time, round_cost
from asfl.costs.round import Decision, check_decision
from asfl.optimize import Problem, Queues, Solution, next_queues, ooe_bcd, solve_jointly
from asfl.optimize.blocks import power_for_energy
from asfl.optimize.terms import plan_terms

seeds = st.integers(0, 10**6)
forms = st.sampled_from(["drift", "per_round_budgets"])
readings = st.sampled_from(["corrected", "printed"])
solvers = pytest.mark.parametrize("solver", [ooe_bcd, solve_jointly])


def assert_valid(solution: Solution) -> None:
    problem, decision = solution.problem, solution.decision
    check_decision(
        decision,
        problem.round.profile.num_layers,
        problem.round.radio.num_rbs,
        problem.round.radio.max_tx_power_w,
    )
    assert decision.scheduled.sum() >= problem.min_participants
    assert np.isfinite(solution.objective)
    assert solution.objective == pytest.approx(plain_objective(problem, decision), rel=1e-7, abs=1e-7)
    assert solution.feasible == (plain_violation(problem, decision) <= 1e-8)
    assert bool(solution.missed_budgets()) != solution.feasible


@given(seeds, forms, readings, st.integers(1, 6), st.integers(1, 6), st.integers(2, 5), st.integers(0, 4))
def test_decisions_are_valid_and_the_descent_never_rises(
    seed: int, form: str, reading: str, clients: int, num_rbs: int, layers: int, slices: int
) -> None:
    problem = overlapping(random_problem(seed, clients, num_rbs, layers, form=form, equations=reading), slices)
    solution = ooe_bcd(problem)
    assert_valid(solution)
    if form == "drift":
        values = [value for _, value in solution.trace]
        assert all(after <= before + 1e-9 * max(1, abs(before)) for before, after in pairwise(values))
        assert values[-1] == solution.objective


@given(seeds, st.sampled_from(["corrected", "printed"]), st.sampled_from(["(1-s)^2", "s"]), st.integers(0, 3))
@settings(max_examples=20)
def test_the_joint_solver_is_within_a_percent_of_brute_force(seed: int, reading: str, weight: str, slices: int) -> None:
    """Brute force over cuts, counts and a fine grid of powers, two clients; with barriers or without (`slices`)."""
    problem = random_problem(seed, clients=2, num_rbs=2, layers=3, equations=reading, error_weight=weight)
    problem = overlapping(problem, slices)
    ladder = 1.5 * np.geomspace(1e-4, 1, 24)
    best = np.inf
    for counts in every_count(problem):
        pairs = product(*(ladder if count else ladder[-1:] for count in counts))
        for pair in pairs:
            for cut in problem.round.profile.cuts.tolist():
                best = min(best, plain_objective(problem, Decision(cut, counts, np.array(pair))))
    solution = solve_jointly(problem)
    assert_valid(solution)
    assert solution.objective <= best + 0.01 * abs(best)
    assert solution.objective <= ooe_bcd(problem).objective + 1e-12


@given(seeds)
@settings(max_examples=15)
def test_the_joint_solver_keeps_budgets_that_can_be_kept(seed: int) -> None:
    problem = random_problem(seed, clients=2, num_rbs=3, layers=3, form="per_round_budgets", min_participants=2)
    solution = solve_jointly(problem)
    assert_valid(solution)
    ladder = 1.5 * np.geomspace(1e-4, 1, 16)
    least = min(
        plain_violation(problem, Decision(cut, counts, np.array(pair)))
        for counts in every_count(problem)
        for pair in product(ladder, ladder)
        for cut in problem.round.profile.cuts.tolist()
    )
    assert plain_violation(problem, solution.decision) <= least + 0.01


DEGENERATE: dict[str, dict[str, Any]] = {
    "one client": {"clients": 1},
    "one block": {"num_rbs": 1, "min_participants": 1},
    "one of each": {"clients": 1, "num_rbs": 1, "min_participants": 1},
    "many clients, few blocks": {"clients": 40, "num_rbs": 3, "min_participants": 3},
    "two layers": {"layers": 2},
    "no budgets": {"delay_budget_s": 0.0, "energy_budget_j": 0.0},
    "huge V": {"penalty_weight": 1e12},
    "no V": {"penalty_weight": 0.0},
    "no memory": {"queue_rule": "printed", "queue_memory": 0.0},
    "only memory": {"queue_rule": "printed", "queue_memory": 1.0},
    "huge budgets": {"delay_budget_s": 1e9, "energy_budget_j": 1e9},
}


@solvers
@pytest.mark.parametrize("form", ["drift", "per_round_budgets"])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_rounds(solver: Any, form: str, case: str) -> None:
    for seed in range(3):
        assert_valid(solver(random_problem(seed, form=form, **DEGENERATE[case])))


@solvers
@pytest.mark.parametrize("previous_cut", [None, 1, 3])
@pytest.mark.parametrize("form", ["drift", "per_round_budgets"])
def test_dead_links_are_left_out(solver: Any, form: str, previous_cut: int | None) -> None:
    problem = random_problem(5, clients=4, num_rbs=4, form=form, min_participants=4)
    problem = replace(problem, round=replace(problem.round, previous_cut=previous_cut))
    gain = problem.round.channel_gain.copy()
    gain[[0, 2]] = 0.0
    some = solver(replace(problem, round=replace(problem.round, channel_gain=gain)))
    assert_valid(some)
    assert not some.decision.scheduled[[0, 2]].any()
    assert some.decision.scheduled[[1, 3]].all()
    nobody = solver(replace(problem, round=replace(problem.round, channel_gain=np.zeros(4))))
    assert_valid(nobody)
    assert not nobody.decision.scheduled.any()


@solvers
def test_equal_clients_can_be_told_apart(solver: Any) -> None:
    problem = random_problem(1, clients=5, num_rbs=3, min_participants=3)
    same = np.full(5, 1e-13)
    round_ = replace(problem.round, path_gain=same, channel_gain=same, cpu_hz=np.full(5, 1e9))
    assert_valid(solver(replace(problem, round=round_, queues=Queues.empty(5))))


def test_impossible_budgets_are_named() -> None:
    problem = random_problem(2, clients=3, num_rbs=3, min_participants=3, delay_budget_s=1e-9, energy_budget_j=1e-9)
    for form in ("drift", "per_round_budgets"):
        solution = ooe_bcd(replace(problem, rules=problem.rules.model_copy(update={"form": form})))
        assert not solution.feasible
        missed = solution.missed_budgets()
        assert missed["delay_s"] == pytest.approx(float(solution.expected.delay_s) - 1e-9)
        assert set(missed["energy_j"]) == {0, 1, 2}


@given(seeds)
@settings(max_examples=20)
def test_restrictions_are_kept(seed: int) -> None:
    problem = random_problem(seed, min_participants=1)
    power, counts = np.array([0.1, 0.2, 1.5]), np.array([1.0, 0.0, 2.0])
    assert ooe_bcd(problem, cuts=[2]).decision.cut == 2
    given_power = ooe_bcd(problem, tx_power_w=power).decision
    assert (given_power.tx_power_w == np.where(given_power.scheduled, power, 0.0)).all()
    assert (ooe_bcd(problem, rb_count=counts).decision.rb_count == counts).all()


def test_same_problem_same_decision() -> None:
    first, second = (ooe_bcd(random_problem(9, clients=6, num_rbs=4)) for _ in range(2))
    assert first.objective == second.objective
    assert (first.decision.tx_power_w == second.decision.tx_power_w).all()


@given(
    st.lists(st.floats(-1, 5), min_size=1, max_size=40),
    st.integers(0, 100).map(lambda percent: percent / 100),
    st.sampled_from(["printed", "standard"]),
)
def test_queues_are_their_definition(excess: list[float], memory: float, rule: Any) -> None:
    budgets: dict[str, Any] = {"delay_budget_s": 1.0, "energy_budget_j": 1.0, "participation_floor": 0.4}
    problem = random_problem(1, clients=1, num_rbs=1, queue_rule=rule, queue_memory=memory, **budgets)
    queues, plain = Queues.empty(1), 0.0
    for over in excess:
        queues = next_queues(replace(problem, queues=queues), 1 + over, np.array([1 + over]), np.array([True]))
        plain = max(memory * plain + (1 - memory) * over, 0) if rule == "printed" else max(plain + over, 0)
        assert queues.delay == pytest.approx(plain)
        assert queues.energy[0] == pytest.approx(plain)
        assert queues.participation[0] == 0
        if rule == "printed":  # Lemma 4
            assert queues.delay <= max(abs(value) for value in excess) + 1e-12


def test_nobody_is_starved() -> None:
    """A client far away gets its long-run share although every round would be cheaper without it."""
    base = random_problem(4, clients=4, num_rbs=2, min_participants=2, participation_floor=0.25, penalty_weight=1.0)
    gain = np.array([1e-11, 1e-11, 1e-11, 3e-15])
    round_ = replace(base.round, path_gain=gain, channel_gain=gain, previous_cut=None)
    for floor, starved in ((0.25, False), (0.0, True)):
        queues, served = Queues.empty(4), np.zeros(4)
        rules = base.rules.model_copy(update={"participation_floor": floor})
        for _ in range(80):
            problem = Problem(round_, base.learning, queues, rules)
            decision = ooe_bcd(problem).decision
            served += decision.scheduled
            owed = next_queues(problem, 0.0, np.zeros(4), decision.scheduled).participation
            queues = Queues(0.0, np.zeros(4), owed)
        assert (served[3] / 80 < 0.05) if starved else (served[3] / 80 > 0.15)


@pytest.mark.parametrize("seed", range(6))
def test_nobody_is_scheduled_who_cannot_be_done_in_time(seed: int) -> None:
    """With an outage the solvers choose among those who finish before it, as brute force over counts does."""
    problem = random_problem(seed, clients=3, num_rbs=4, min_participants=1)
    plain = ooe_bcd(problem)
    outage_s = float(plain.expected.uplink_stage_delay_s) * 0.9
    limited = replace(problem, round=replace(problem.round, outage_s=outage_s))
    power = np.full(3, problem.round.radio.max_tx_power_w)
    decisions = [
        Decision(cut, count, power) for cut in problem.round.profile.cuts.tolist() for count in every_count(limited)
    ]
    done = [one for one in decisions if in_time(limited.round, one)[one.scheduled].all()]
    if not done:
        return
    for solver in (ooe_bcd, solve_jointly):
        found = solver(limited)
        assert in_time(limited.round, found.decision)[found.decision.scheduled].all()
        assert found.objective == pytest.approx(plain_objective(limited, found.decision))
        if solver is solve_jointly:
            best = min(plain_objective(limited, one) for one in done)
            assert found.objective <= best + 0.01 * max(abs(best), 0.05)


def test_an_outage_that_nobody_can_meet_changes_no_decision() -> None:
    problem = random_problem(3, min_participants=2)
    hopeless = replace(problem, round=replace(problem.round, outage_s=1e-9))
    found, plain = ooe_bcd(hopeless), ooe_bcd(problem)
    assert found.decision.cut == plain.decision.cut
    np.testing.assert_array_equal(found.decision.rb_count, plain.decision.rb_count)
    assert found.expected.delay_s <= 3e-9 + float(found.expected.server_delay_s.sum())


def test_small_powers_are_found_where_energy_is_short() -> None:
    """Where every watt counts, the descent must be able to start low: it is as good as the joint solver."""
    worst = 0.0
    for seed in range(12):
        problem = random_problem(seed, clients=2, num_rbs=2)
        rules = problem.rules.model_copy(update={"energy_budget_j": problem.rules.energy_budget_j * 0.02})
        queues = replace(problem.queues, energy=problem.queues.energy + 20)
        short = replace(problem, rules=rules, queues=queues)
        bcd, joint = ooe_bcd(short).objective, solve_jointly(short).objective
        worst = max(worst, (bcd - joint) / max(abs(joint), 0.05))
    assert worst < 0.03


# ---------------------------------------------------------------------- 5G NR
def nr_problem(seed: int, **rules: Any) -> Problem:
    problem = random_problem(seed, clients=4, num_rbs=5, **rules)
    radio = problem.round.radio.model_copy(update={"link": "nr"})
    return replace(problem, round=replace(problem.round, radio=radio, fitted_link=True))


@pytest.mark.parametrize("seed", range(8))
def test_on_5g_nr_the_descent_never_rises_and_means_what_it_says(seed: int) -> None:
    problem = nr_problem(seed)
    solution = ooe_bcd(problem)
    values = [value for _, value in solution.trace]
    assert all(after <= before + 1e-9 * max(1, abs(before)) for before, after in pairwise(values))
    assert solution.objective == pytest.approx(plain_objective(problem, solution.decision), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_affordable_power_spends_the_budget(seed: int) -> None:
    problem = nr_problem(seed, form="per_round_budgets")
    terms, count = plan_terms(problem), np.ones(4)
    power = power_for_energy(problem, terms.only(0), count, np.asarray(problem.rules.energy_budget_j))
    decision = ooe_bcd(problem, rb_count=count, tx_power_w=power).decision
    spent = round_cost(problem.round, replace(decision, cut=int(terms.cuts[0]), tx_power_w=power)).energy_j
    top = problem.round.radio.max_tx_power_w
    inside = (power > 0) & (power < top)
    assert (spent[power > 0] <= problem.rules.energy_budget_j * (1 + 1e-6)).all()
    assert spent[inside] == pytest.approx(problem.rules.energy_budget_j, rel=1e-3)
