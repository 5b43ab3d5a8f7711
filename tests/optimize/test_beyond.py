"""Decisions beyond the paper: switched off they are ASFL; on, they follow their definitions, and brute force."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from problems import every_count, overlapping, plain_objective, random_problem

from asfl.config.shapes import Floats
from asfl.costs.modelled import ON_DEMAND, round_cost
from asfl.costs.round import Decision, Holdings, Overheads, check_decision
from asfl.optimize import Problem, ooe_bcd, solve_jointly
from asfl.optimize.bcd import net_cost, solve_by_rate, worth_arriving
from asfl.optimize.problem import TURN_PRICE, DriftAndNoise, Prices, Progress, ProgressCost, Switches

seeds = st.integers(0, 10**6)
switches = st.builds(Switches, **dict.fromkeys(("sync", "quant", "rate", "mix"), st.booleans()))


def beyond_problem(seed: int, switches: Switches, **sizes: Any) -> Problem:
    """A random problem in the middle of a run of `asfl-plus`."""
    problem, rng = random_problem(seed, equations="corrected", **sizes), np.random.default_rng(seed + 1)
    clients, layers = problem.round.num_clients, problem.round.profile.num_layers
    before = problem.round.previous_cut or 0
    held = np.arange(1, layers + 1) <= before
    beyond = DriftAndNoise(
        layer_drift=held * rng.exponential(3.0, layers),
        layer_debt=held * rng.exponential(10.0, layers),
        noise_scale=float(rng.uniform(0.5, 8)),
        precision_error={16: 1e-8, 8: 2e-4, 4: 0.05},
    )
    holdings = Holdings(rng.choice([0.0, 8.0, 32.0], (clients, layers)), held & (rng.random(layers) < 0.7))
    prices = None
    if switches.rate:
        scale = np.full(clients, 1 / (clients * problem.rules.energy_budget_j))
        prices = Prices(1 / problem.rules.delay_budget_s, scale, float(rng.uniform(1, 6)), rng.uniform(0.1, 1, clients))
    return replace(
        problem,
        round=replace(problem.round, holdings=holdings),
        learning=replace(problem.learning, beyond=beyond),
        rules=problem.rules.model_copy(
            update={"drift_weight": 0.05, "relative_floor": switches.rate and seed % 2 == 0}
        ),
        switches=switches,
        prices=prices,
    )


def slopes_plainly(usual: float, noise: float, arrival: Floats, *, mix: bool = False) -> Floats:
    """What each client's arrival adds to the mean of p(A), by going through all sets of clients that may arrive."""
    step = usual / (usual + noise)
    found = np.zeros(len(arrival))
    for here in product((0, 1), repeat=len(arrival)):
        for client in range(len(arrival)):
            others = [
                q if there else 1 - q for n, (q, there) in enumerate(zip(arrival, here, strict=True)) if n != client
            ]
            number = sum(here)
            progress = 2 * step - step**2 * (1 + noise / number) if number else 0.0
            if mix:
                progress = number / usual
            found[client] += (1 if here[client] else -1) * float(np.prod(others)) * progress
    return found


def plainly(problem: Problem, decision: Decision) -> float:
    """The objective from its definition: loops, and the costs of `asfl.costs`."""
    beyond, rules, prices = problem.learning.beyond, problem.rules, problem.prices
    assert beyond is not None
    cost = round_cost(problem.round, decision, None, replace(ON_DEMAND, reports=True, mixes=problem.switches.mix))
    layers, cut = len(beyond.layer_drift), int(np.max(decision.cut))
    weight = rules.penalty_weight if prices is None else prices.per_progress
    bits = np.broadcast_to(decision.bits, decision.rb_count.shape)
    lost_bits = np.array([beyond.lost_precision(int(each)) for each in bits])
    arrival = decision.scheduled * (1 - cost.packet_error_rate)
    noise, usual = beyond.noise_scale, min(len(arrival), problem.round.radio.num_rbs)
    if prices is None:
        value = plain_objective(replace(problem, rules=rules.model_copy(update={"drift_weight": 0.0})), decision)
        share = problem.learning.update_norm2 / (len(arrival) * problem.learning.update_scale)
        value += rules.penalty_weight * float((share * arrival * lost_bits).sum())
    else:
        value = prices.per_s * float(cost.delay_s) + float((prices.per_j * cost.energy_j).sum())
        slope = prices.per_progress * slopes_plainly(usual, noise, prices.arrival, mix=problem.switches.mix)
        value += float((slope * (1 - arrival * (1 - lost_bits))).sum())
        owed, floor = problem.queues.participation, rules.participation_floor
        if rules.relative_floor:
            floor *= float(decision.scheduled.mean())
        value += TURN_PRICE * float(slope.mean() * (owed * (floor - decision.scheduled)).sum())
    if problem.switches.sync:
        for m in range(cut):
            value += weight * rules.drift_weight / layers * beyond.layer_drift[m]
            if m >= decision.synced:
                standing = beyond.layer_debt[m] + beyond.layer_drift[m] + 1
                value += weight * rules.drift_weight / layers * standing
    else:
        spread = problem.learning.layer_spread[: min(cut, problem.round.previous_cut or cut)].sum()
        value += weight * rules.drift_weight * spread / problem.learning.update_scale
    if problem.switches.mix:  # a layer on clients makes one step, of √A₀ times the length, where the server makes A₀
        whole = 1.0 if prices is None else prices.arrival.sum() / usual
        value += sum(weight * whole * (1 - math.sqrt(usual) / usual) / layers for _ in range(cut))
    return float(value)


@given(seeds, st.floats(0.3, 100))
def test_a_step_for_every_mini_batch_adds_up(seed: int, noise: float) -> None:
    arrival = np.random.default_rng(seed).random(5)
    progress = Progress(5.0, noise, mixed=True)
    assert progress.of(5.0) == 1
    assert progress.expected(arrival) == pytest.approx(arrival.sum() / 5)
    assert progress.slopes(arrival) == pytest.approx(slopes_plainly(5.0, noise, arrival, mix=True))


@given(seeds, st.booleans())
@settings(max_examples=20)
def test_layers_on_the_server_are_worth_more_where_it_mixes(seed: int, rate: bool) -> None:
    problem = beyond_problem(seed, Switches(sync=True, rate=rate, mix=True), clients=4, num_rbs=4, layers=5)
    assert problem.objective.progress_of_cut[0] == 1
    assert problem.objective.progress_of_cut[5] == pytest.approx(1 / math.sqrt(4))
    assert (np.diff(problem.objective.progress_of_cut) < 0).all()
    unmixed = replace(problem, switches=replace(problem.switches, mix=False))
    assert (unmixed.objective.progress_of_cut == 1).all()
    assert (unmixed.objective.idle_cost_of_cut == 0).all()


@given(seeds, switches, st.integers(1, 5), st.integers(1, 5), st.integers(2, 5))
@settings(max_examples=40)
def test_decisions_are_valid_and_the_descent_never_rises(
    seed: int, switches: Switches, clients: int, num_rbs: int, layers: int
) -> None:
    problem = beyond_problem(seed, switches, clients=clients, num_rbs=num_rbs, layers=layers)
    solution = ooe_bcd(problem)
    check_decision(solution.decision, layers, num_rbs, problem.round.radio.max_tx_power_w)
    assert solution.objective == pytest.approx(plainly(problem, solution.decision), rel=1e-7, abs=1e-7)
    values = [value for _, value in solution.trace]
    assert all(after <= before + 1e-9 * max(1, abs(before)) for before, after in pairwise(values))
    assert switches.quant or np.all(np.equal(solution.decision.bits, 32))
    assert switches.sync or solution.decision.synced == 0


@given(seeds, switches)
@settings(max_examples=10)
def test_the_decision_sees_the_overheads_that_are_charged(seed: int, switches: Switches) -> None:
    problem, rng = beyond_problem(seed, switches, clients=3, num_rbs=3, layers=4), np.random.default_rng(seed)
    statistics, groups = rng.uniform(0, 1e6, (2, 4)) * [[1], [1e-3]]
    round_, holdings = problem.round, problem.round.holdings
    assert holdings is not None
    charged = replace(
        round_,
        profile=replace(round_.profile, statistic_bits=statistics, param_groups=groups),
        holdings=replace(holdings, missed=rng.integers(1, 4, holdings.stale_bits.shape).astype(float)),
        equations=replace(round_.equations, overheads=Overheads(True, [None, 0.05][seed % 2])),
    )
    for one in (charged, replace(charged, holdings=None)):
        there = replace(problem, round=one)
        solution = ooe_bcd(there)
        assert solution.objective == pytest.approx(plainly(there, solution.decision), rel=1e-7, abs=1e-7)


@given(seeds, switches)
@settings(max_examples=10)
def test_the_joint_solver_is_within_a_percent_of_brute_force(seed: int, switches: Switches) -> None:
    assert_within_a_percent_of_brute_force(beyond_problem(seed, switches, clients=2, num_rbs=2, layers=3))


@given(seeds, switches, st.integers(1, 3))
@settings(max_examples=10)
def test_so_it_is_where_rounds_overlap(seed: int, switches: Switches, slices: int) -> None:
    problem = overlapping(beyond_problem(seed, switches, clients=2, num_rbs=2, layers=3), slices)
    assert_within_a_percent_of_brute_force(problem)


def assert_within_a_percent_of_brute_force(problem: Problem) -> None:
    """Every cut, average, bits and allocation of two clients, and a grid of powers."""
    ladder = 1.5 * np.geomspace(1e-4, 1, 12)
    best = np.inf
    for plan in every_plan(problem):
        for counts in every_count(problem):
            for pair in product(*(ladder if count else ladder[-1:] for count in counts)):
                decision = replace(plan, rb_count=counts, tx_power_w=np.where(counts > 0, pair, 0.0))
                best = min(best, plainly(problem, decision))
    found = solve_jointly(problem).objective
    assert found <= best + 0.01 * max(1.0, abs(best))


def every_plan(problem: Problem) -> Iterator[Decision]:
    """All cuts, depths of averages and bits of two clients and three layers, as far as switches allow."""
    nothing = np.zeros(2)
    for bits in product((32, 8, 4) if problem.switches.quant else (32,), repeat=2):
        for cut in (1, 2):
            for depth in range(cut + 1) if problem.switches.sync else (0,):
                yield Decision(cut, nothing, nothing, np.array(bits), depth)


@given(seeds)
@settings(max_examples=20)
def test_everything_off_is_asfl(seed: int) -> None:
    problem = random_problem(seed)
    known = replace(
        problem, learning=replace(problem.learning, beyond=beyond_problem(seed, Switches()).learning.beyond)
    )
    one, other = ooe_bcd(problem), ooe_bcd(known)
    assert one.objective == other.objective
    assert (one.decision.rb_count == other.decision.rb_count).all()
    assert (one.decision.tx_power_w == other.decision.tx_power_w).all()


@given(seeds)
@settings(max_examples=20)
def test_progress_itself_counts_not_its_slope(seed: int) -> None:
    """The slope is only a means: what is returned has the least cost − θ · p(A) of all that was tried."""
    problem = beyond_problem(seed, Switches(sync=True, quant=True, rate=True), clients=4, num_rbs=4)
    solution = solve_by_rate(problem, ooe_bcd)
    assert problem.prices is not None
    once = ooe_bcd(problem)
    reached = worth_arriving(solution)
    assert net_cost(solution, reached) <= net_cost(once, worth_arriving(once)) + 1e-9


def test_the_price_of_progress_is_what_it_has_cost() -> None:
    problem = beyond_problem(3, Switches(rate=True), clients=3)
    assert problem.prices is not None
    rate, cost = ProgressCost(), problem.prices.cost(2.0, np.array([1.0, 2.0, 3.0]))
    for _ in range(200):
        rate = rate.after(cost, float(problem.objective.progress.of(2.0)))
    prices = rate.prices(problem.rules, 3)
    assert prices.per_progress == pytest.approx(cost / problem.objective.progress.of(2.0))


@given(st.floats(0.3, 100), st.floats(1e-6, 1))
def test_bits_cost_what_their_noise_does(noise: float, error: float) -> None:
    """Noise B' = B + v (1 + B) of each of A mini-batches is noise B of A' = A (1 − lost) of them."""
    beyond = DriftAndNoise(np.zeros(1), np.zeros(1), noise, {4: error})
    arrivals = 5.0
    worth = arrivals * (1 - beyond.lost_precision(4))
    noisier = noise + error * (1 + noise)
    assert noise / worth == pytest.approx(noisier / arrivals)
    assert beyond.lost_precision(32) == 0


@given(st.floats(1, 50), st.floats(0.1, 100), st.floats(0.5, 100))
def test_progress_is_that_of_a_quadratic_loss(usual: float, noise: float, arrivals: float) -> None:
    """f(w) = ½ w², gradient w + noise of variance B w² / A: the mean fall of f, relative to a whole exact step."""
    progress = Progress(usual, noise)
    steps = np.linspace(0, 1, 2001)
    falls = 1 - ((1 - steps) ** 2 + steps**2 * noise / usual)  # with A₀ mini-batches, by step size
    best = steps[falls.argmax()]
    assert progress.step == pytest.approx(best, abs=1e-3)
    x = progress.step
    assert progress.of(arrivals) == pytest.approx(1 - ((1 - x) ** 2 + x**2 * noise / arrivals))
    assert progress.of(0) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.1, 50))
def test_expected_progress_is_over_all_that_may_arrive(chances: list[float], noise: float) -> None:
    """Against sums over all sets of clients; and E p(A) is linear in every probability."""
    arrival, progress = np.array(chances), Progress(5.0, noise)
    slopes = progress.slopes(arrival)
    assert slopes == pytest.approx(slopes_plainly(5.0, noise, arrival), rel=1e-6, abs=1e-9)
    for client in range(len(arrival)):
        never, surely = arrival.copy(), arrival.copy()
        never[client], surely[client] = 0.0, 1.0
        risen = progress.expected(surely) - progress.expected(never)
        assert slopes[client] == pytest.approx(risen, rel=1e-6, abs=1e-9)
