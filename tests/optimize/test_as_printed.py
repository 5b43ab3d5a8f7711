"""The paper's own algorithms: Theorem 4 where it holds and where it doesn't, Algorithm 1, Algorithm 2."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from problems import random_problem

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.costs.modelled import round_cost
from asfl.costs.round import PRINTED, Decision, check_decision
from asfl.optimize import Problem, ooe_bcd, printed_power
from asfl.optimize.blocks import LOWEST_SHARE, best_powers
from asfl.optimize.printed_power import Limits, power_bounds, powers_as_printed, reached_limits, theorem_4
from asfl.optimize.terms import CutTerms, terms_of
from asfl.runs.records import read_records
from conftest import Asfl

seeds = st.integers(0, 10**6)
LOWEST_W = 1.5 * LOWEST_SHARE


def _here(seed: int, **rules: Any) -> tuple[Problem, CutTerms, Decision]:
    printed = {"equations": "printed", "error_weight": "s", "form": "per_round_budgets"}
    problem = random_problem(seed, **(printed | rules))
    random = np.random.default_rng(seed)
    decision = Decision(int(random.integers(1, 4)), np.array([2.0, 1.0, 1.0]), random.uniform(0.01, 1.5, 3))
    return problem, terms_of(problem, decision), decision


def _printed(problem: Problem, here: CutTerms, decision: Decision, seed: int = 1) -> np.ndarray:
    return powers_as_printed(problem, here, decision.rb_count, decision.tx_power_w, np.random.default_rng(seed))


def _surrogate(omega_2: float, omega_3: float, power_w: np.ndarray) -> np.ndarray:
    return omega_2 * np.exp(2 / power_w) + omega_3 * np.exp(1 / power_w)


numbers = st.floats(0.05, 5)


@given(numbers, st.floats(1, 20) | st.floats(-20, 0), numbers, numbers)
def test_theorem_4_minimises_its_own_objective(omega_2: float, ratio: float, one_w: float, other_w: float) -> None:
    """With exp(−a/p) = exp(−a)·exp(1/p), as in the paper; by brute force. `ratio` is −ω₃ / 2ω₂."""
    omega_3, least_w, most_w = -2 * omega_2 * ratio, min(one_w, other_w), max(one_w, other_w)
    found = theorem_4(*(np.array([value]) for value in (omega_2, omega_3, least_w, most_w)))
    assert least_w <= found[0] <= most_w
    least = _surrogate(omega_2, omega_3, np.linspace(least_w, most_w, 2000)).min()
    assert _surrogate(omega_2, omega_3, found)[0] <= least + 1e-9 * abs(least)


def test_theorem_4_is_wrong_where_server_sides_differ() -> None:
    """0 < −ω₃ / 2ω₂ < 1: the critical "power" is negative, C1 takes the lower bound, and the upper one is best."""
    ends = np.array([0.5, 1.0])
    found = theorem_4(np.array([1.0]), np.array([-1.0]), ends[:1], ends[1:])
    assert found == ends[0]
    assert np.argmin(_surrogate(1.0, -1.0, ends)) == 1


@given(seeds)
def test_the_theorem_is_used_with_equal_server_sides(seed: int) -> None:
    """Then the critical power is where the surrogate's error rate is 0, 1 / −ln E, and never below 0."""
    problem, _, decision = _here(seed)
    arrival = printed_power.arrival_at_1_w(problem, decision.rb_count)
    assert (arrival == 1 - problem.round.packet_error_rate(decision.rb_count, np.ones(3))).all()
    found = theorem_4(arrival**2, -2 * arrival, np.zeros(3), np.full(3, 1e30))
    np.testing.assert_allclose(arrival * np.exp(1 / found), 1.0, rtol=1e-9)


def _bounds_in_print(problem: Problem, cut: int, rb_count: np.ndarray, limits: Limits) -> Iterator[dict[str, float]]:
    """(51) to (57) of each client, symbol by symbol; a logarithm that isn't positive bounds nothing."""
    round_, radio, compute, of = problem.round, problem.round.radio, problem.round.compute, problem.round.profile
    now, before = (np.arange(of.num_layers) < depth for depth in (cut, round_.previous_cut or cut))
    moved = float((before * 1.0 - now) @ of.param_bits)
    sent, returned = of.activation_bits[cut - 1], of.param_bits[cut]
    kappa_c, phi, samples = compute.client_cycles_per_flop, compute.energy_coefficient, round_.charged_samples
    B, N0, B_dn = radio.rb_bandwidth_hz, radio.noise_psd_w_per_hz, radio.downlink_bandwidth_hz
    (gamma_1, gamma_2, gamma_3), (delta_1, delta_2, delta_3) = limits
    arrival = 1 - round_.packet_error_rate(rb_count, np.ones_like(rb_count))
    for h2, f, k, chance in zip(round_.channel_gain, round_.cpu_hz, rb_count, arrival, strict=True):
        server_s = compute.server_cycles_per_flop * samples * (~now @ (of.forward_flops + of.backward_flops))
        omega_1 = server_s / compute.server_hz + kappa_c * samples * (now @ of.backward_flops) / f
        omega_1 += returned / (B_dn * np.log2(1 + radio.server_tx_power_w * h2 / (B_dn * N0)))
        backward_j = samples * (now @ of.backward_flops) * phi * kappa_c * f**2
        left = gamma_2 * f - kappa_c * samples * B * (now @ of.forward_flops)
        logarithms = [
            np.log(max((omega_1 - gamma_3) / (omega_1 * chance), 1e-300)),
            np.log(max((backward_j * k - delta_3) / (chance * backward_j), 1e-300)),
        ]
        c3, c6 = (1 / one if one > 0 else np.inf for one in logarithms)
        yield {
            "(51)": B * N0 * (np.exp2(moved / (gamma_1 * B * k)) - 1) / h2,
            "(52)": B * N0 * (np.exp2(f * sent / (left * k)) - 1) / h2,
            "(53)": c3,
            "(55)": 2 * B * N0 / h2 * (1 - moved * N0 * np.log(2) / (delta_1 * k * h2)),
            "(56)": 2 * B * N0 / h2 * (1 - samples * N0 * np.log(2) * sent / (delta_2 * k * h2)),
            "(57)": c6,
        }


def test_bounds_are_those_in_print_symbol_by_symbol() -> None:
    """With slips and all; each of them binds in some of the rounds, (54) within (53)."""
    binding = set()
    for seed in range(300):
        problem, _, decision = _here(seed)
        random = np.random.default_rng(seed)
        worse = 10 ** random.uniform(-2, 0)
        gains = {name: worse * getattr(problem.round, name) for name in ("path_gain", "channel_gain")}
        problem = replace(problem, round=replace(problem.round, equations=PRINTED, **gains))
        here = terms_of(problem, decision)
        reached = reached_limits(problem, here, decision.rb_count, decision.tx_power_w)
        stage_s, energy_j = (np.where(of > 0, of, 1) * random.uniform(0.01, 2, 3) for of in reached)
        bandwidth_hz = problem.round.radio.rb_bandwidth_hz
        stage_s[1] *= random.choice([1.0, bandwidth_hz])  # else (52) has nothing left of it
        limits = Limits(stage_s, energy_j)
        with np.errstate(divide="ignore", over="ignore"):
            found = np.transpose(power_bounds(problem, here, decision.rb_count, limits))
            printed = [*_bounds_in_print(problem, int(here.cuts[0]), decision.rb_count, limits)]
        for (least_w, most_w), of in zip(found, printed, strict=True):
            lower = {"0": 0.0, "(51)": of["(51)"], "(52)": of["(52)"]}
            upper = {"P^max": 1.5} | {name: of[name] for name in ("(53)", "(55)", "(56)", "(57)")}
            assert least_w == pytest.approx(max(lower.values()), rel=1e-6, abs=1e-15)
            assert most_w == pytest.approx(min(upper.values()), rel=1e-6)
            binding |= {max(lower, key=lower.__getitem__), min(upper, key=upper.__getitem__)}
    assert binding >= {"(51)", "(52)", "(53)", "(55)", "(56)", "(57)"}


@given(seeds, st.floats(0.2, 5))
def test_the_bounds_that_are_right_keep_their_limits(seed: int, tightness: float) -> None:
    """(51) exactly, (55) and (56) on the safe side, as ln(1 + x) ≥ x − x²/2: below them, limits are kept."""
    problem, here, decision = _here(seed)
    reached = reached_limits(problem, here, decision.rb_count, decision.tx_power_w)
    open_ = Limits(np.full(3, 1e30), np.full(3, 1e30))
    for which in (0, 1):
        limits = open_._replace(energy_j=np.where(np.arange(3) == which, tightness * reached.energy_j, 1e30))
        _, most_w = power_bounds(problem, here, decision.rb_count, limits)
        if (some := most_w > 1e-9).any():  # the others can't keep it with any power
            counts = np.where(some, decision.rb_count, 0)
            after = reached_limits(problem, here, counts, np.clip(most_w, 1e-9, 1.5))
            assert after.energy_j[which] <= limits.energy_j[which] * (1 + 1e-6)
    limits = open_._replace(stage_s=np.array([tightness * reached.stage_s[0], 1e30, 1e30]))
    least_w, _ = power_bounds(problem, here, decision.rb_count, limits)
    if reached.stage_s[0] > 0:
        after = reached_limits(problem, here, decision.rb_count, least_w)
        assert after.stage_s[0] == pytest.approx(limits.stage_s[0], rel=1e-6)


@given(seeds)
def test_no_power_has_more_than_3_decibels(seed: int) -> None:
    """(56) caps the SNR of a block at 2, whatever the energy budget."""
    problem, here, decision = _here(seed, energy_budget_j=1e9)
    power = _printed(problem, here, decision)
    radio = problem.round.radio
    snr = power * problem.round.channel_gain / (radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz)
    assert ((snr <= 2 + 1e-9) | (power <= LOWEST_W)).all()
    assert ((power >= LOWEST_W) & (power <= 1.5)).all()


@given(seeds)
@settings(max_examples=10)
def test_turn_after_turn_algorithm_1_silences_a_client(seed: int) -> None:
    """x ← 2 (1 − ln(1 + x) / x) < x: the SNR of the client whose energy δ₂ is falls, after t turns to 3 / 2t."""
    problem, _, decision = _here(seed)
    problem = replace(problem, round=replace(problem.round, previous_cut=None))
    counts, power, turns = np.array([1.0, 0.0, 0.0]), np.full(3, 1.5), 200
    here, radio = terms_of(problem, decision), problem.round.radio
    for _ in range(turns):
        most_w = power_bounds(problem, here, counts, reached_limits(problem, here, counts, power))[1]
        power = np.clip(most_w, 1e-12, 1.5)
    snr = power[0] * problem.round.channel_gain[0] / (radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz)
    assert 0 < snr < 1.6 / turns


@given(seeds)
def test_algorithm_1_is_a_start_away_from_repeatable(seed: int) -> None:
    problem, here, decision = _here(seed)
    again = [_printed(problem, here, decision, of) for of in (1, 1)]
    assert (again[0] == again[1]).all()
    idle = replace(decision, rb_count=np.array([2.0, 0.0, 1.0]))
    assert _printed(problem, here, idle)[1] == decision.tx_power_w[1]
    nobody = replace(decision, rb_count=np.zeros(3))
    assert (_printed(problem, here, nobody) == decision.tx_power_w).all()


def test_what_the_budgets_are_hardly_matters() -> None:
    """γ and δ enter through the random start only, so Algorithm 1 misses budgets that powers can keep."""
    missed = 0
    for seed in range(30):
        problem, here, decision = _here(seed)
        exact = best_powers(problem, here, decision.rb_count, decision.tx_power_w)
        rules, costs = problem.rules, []
        for power in (exact, _printed(problem, here, decision)):
            cost = round_cost(problem.round, replace(decision, tx_power_w=power))
            slack = 1 + 1e-6
            kept = cost.delay_s <= slack * rules.delay_budget_s, (cost.energy_j <= slack * rules.energy_budget_j).all()
            costs.append(all(kept))
        missed += costs[0] and not costs[1]
    assert missed > 0


@given(seeds, st.sampled_from(["exact", "printed"]), st.integers(0, 3))
@settings(max_examples=8)
def test_ooe_bcd_as_printed_is_valid_and_repeatable(seed: int, power_rule: str, least: int) -> None:
    rules = {"solver": "printed", "power_rule": power_rule, "min_participants": least}
    problem = _here(seed, **rules)[0]
    one, again = (ooe_bcd(replace(problem, seed=seed)).decision for _ in range(2))
    check_decision(one, 4, 4, 1.5)
    assert one.scheduled.sum() >= problem.min_participants
    assert (one.rb_count == again.rb_count).all()
    assert (one.tx_power_w == again.tx_power_w).all()
    assert one.cut == again.cut


def test_the_printed_start_is_drawn_for_each_round_and_seed() -> None:
    rules = {"solver": "printed", "min_participants": 3, "power_rule": "printed"}
    problem = _here(3, **rules, queue_rule="standard")[0]
    different = [problem, replace(problem, seed=1), replace(problem, round=replace(problem.round, index=1))]
    assert len({ooe_bcd(one).trace[0] for one in different}) == 3


def test_the_joint_solver_has_no_power_block_to_replace() -> None:
    with pytest.raises(AsflError, match="power_rule"):
        load_config("demo", {"decision.power_rule": "printed", "decision.solver": "joint"})


# ---------------------------------------------------------------------- the paper from (1) to (59)
SMALL = ("data.name=digits", "model.architecture=cnn", "training.batch_size=16", "output.evaluate_every=1")
WITH = [word for one in SMALL for word in ("--set", one)]


def test_the_paper_as_printed_schedules_no_client_and_says_so(asfl: Asfl, tmp_path: Path) -> None:
    sentence = "no client got a resource block in any round"
    run = asfl("run", "paper-as-printed", *WITH, "--rounds", 2, "--out", tmp_path / "run")
    assert run.returncode == 0, run.stderr
    assert sentence in " ".join(run.stdout.split())
    records = read_records(tmp_path / "run")
    assert [record.scheduled_count for record in records] == [0, 0]
    assert len({record.accuracy for record in records}) == 1
    played = asfl("decide", "--rounds", 2, "--preset", "paper-as-printed", "--schemes", "asfl,sfl")
    assert f"asfl, sfl: {sentence}" in " ".join(played.stdout.split())
    assert sentence not in asfl("decide", "--rounds", 2, "--schemes", "asfl").stdout


def test_with_errors_that_cost_something_the_paper_as_printed_trains(asfl: Asfl, tmp_path: Path) -> None:
    """Algorithm 1 in a run, which resumes to the bit."""
    weight, records = ("--set", "decision.error_weight=s", "--set", "output.checkpoint_every=1"), []
    for first, name in ((3, "whole"), (2, "parts")):
        run = asfl("run", "paper-as-printed", *WITH, *weight, "--rounds", first, "--out", tmp_path / name)
        assert run.returncode == 0, run.stderr
        assert asfl("resume", tmp_path / name, "--rounds", 3).returncode == 0
        records.append(read_records(tmp_path / name))
    assert records[0] == records[1]
    assert any(record.scheduled_count for record in records[0])
