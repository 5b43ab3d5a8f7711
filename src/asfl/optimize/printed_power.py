"""The power block as printed: Algorithm 1, with the bounds (51) to (57) and Theorem 4, (59) (docs/paper.md).

Six limits hold for all clients: γ₁, γ₂, γ₃ for the delay of the stages, δ₁, δ₂, δ₃ for the energy of re-split,
activations and backward pass. In turn each power follows from the limits, and the limits are what these powers reach.
The budgets γ and δ themselves, (50h) and (50i), matter for the random start only.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import Links, Workload, arrived_only, joules, seconds
from asfl.optimize.blocks import LOWEST_SHARE
from asfl.optimize.problem import STANDSTILL, Problem
from asfl.optimize.terms import CutTerms, one_if_idle

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

MOST_TURNS = 1000
"""The paper names a tolerance only, and the powers may creep for ever."""


class Limits(NamedTuple):
    """γ₁, γ₂, γ₃ in seconds, and δ₁, δ₂, δ₃ in joules."""

    stage_s: Floats
    energy_j: Floats


def powers_as_printed(
    problem: Problem, here: CutTerms, rb_count: Floats, current: Floats, random: np.random.Generator
) -> Floats:
    """Powers [N] by Algorithm 1. They may be worse than `current` and miss the budgets. Idle clients keep theirs."""
    served = rb_count > 0
    if not served.any():
        return current
    lowest_w = LOWEST_SHARE * problem.round.radio.max_tx_power_w  # with 0, which is allowed, nothing ever arrives
    arrival, power, before = arrival_at_1_w(problem, rb_count), current, np.inf
    limits = drawn_limits(problem, here, served, random)
    for _ in range(MOST_TURNS):
        least_w, most_w = power_bounds(problem, here, rb_count, limits)
        # Server sides are equal, (29): their norms cancel.
        found = np.maximum(theorem_4(arrival**2, -2 * arrival, least_w, most_w), lowest_w)
        power = np.where(served, np.minimum(found, problem.round.radio.max_tx_power_w), current)
        objective = _objective(problem, here, rb_count, power)
        if abs(objective - before) <= STANDSTILL:
            break
        before, limits = objective, reached_limits(problem, here, rb_count, power)
    return power


def theorem_4(omega_2: Floats, omega_3: Floats, least_w: Floats, most_w: Floats) -> Floats:
    """(59), the least ω₂ exp(2/p) + ω₃ exp(1/p) between two powers; wrong if 0 < −ω₃ / 2ω₂ < 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        critical_w = 1 / np.log(-omega_3 / (2 * omega_2))
    c1 = (omega_3 < 0) & (critical_w < least_w)
    c2 = (omega_3 < 0) & (least_w <= critical_w) & (critical_w <= most_w)
    return np.where(c1, least_w, np.where(c2, critical_w, most_w))


def arrival_at_1_w(problem: Problem, rb_count: Floats) -> Floats:
    """[N] E[exp(−α B N₀ k / |h|²)], which the paper takes out of E[exp(−α B N₀ k / (p |h|²))]."""
    return 1.0 - problem.round.packet_error_rate(one_if_idle(rb_count), np.ones_like(rb_count))


def drawn_limits(problem: Problem, here: CutTerms, served: Bools, random: np.random.Generator) -> Limits:
    """Uniform among all that keep the budgets, (50h) and (50i); 0 where the forward pass alone takes all the energy."""
    stages, parts = random.dirichlet(np.ones(4), size=2)[:, :3]
    rules = problem.rules
    j_per_flop = problem.round.client_s_per_flop * problem.round.client_compute_w
    left_j = max(rules.energy_budget_j - float((here.work.forward_flops[0, 0] * j_per_flop)[served].max()), 0.0)
    return Limits(rules.delay_budget_s * stages, left_j * parts)


def reached_limits(problem: Problem, here: CutTerms, rb_count: Floats, power: Floats) -> Limits:
    """What the slowest and the thirstiest client reach with these powers."""
    served = rb_count > 0
    round_, work = problem.round, Workload(*(of_plan[0, 0] for of_plan in here.work))
    links = Links.of(round_, one_if_idle(rb_count), power)
    steps = arrived_only(seconds(work, links), links, links.arrival)
    spent = joules(round_, work._replace(grown_bits=np.zeros(1)), links, steps)
    server_s = here.server_s[0] * links.arrival[served].sum()
    stage_s = (
        steps.resplit_up,
        steps.model_down + steps.forward + steps.uplink,
        server_s + steps.downlink + steps.backward,
    )
    energy_j = (spent.resplit_up, spent.uplink, spent.backward)

    def most(parts: tuple[Floats, ...]) -> Floats:
        return np.array([np.broadcast_to(of_clients, served.shape)[served].max() for of_clients in parts])

    return Limits(most(stage_s), most(energy_j))


def power_bounds(problem: Problem, here: CutTerms, rb_count: Floats, limits: Limits) -> tuple[Floats, Floats]:
    """[N] the lower bound of each power, (51) and (52), and the upper one, P^max and (53) to (57), as printed.

    A bound without a meaning doesn't bind: what has nothing to send takes no time and no energy, and where the
    logarithm of (53) or (57) isn't positive, the inequality it comes from holds for every power.
    """
    round_, radio, count = problem.round, problem.round.radio, one_if_idle(rb_count)
    samples, bandwidth_hz, density = round_.charged_samples, radio.rb_bandwidth_hz, radio.noise_psd_w_per_hz
    work = Workload(*(of_plan[0, 0] for of_plan in here.work))
    steps, arrival = seconds(work, Links.of(round_, count, np.ones_like(count))), arrival_at_1_w(problem, rb_count)
    backward_s, backward_j = steps.backward, steps.backward * round_.client_compute_w
    moved_bits, sent_bits = (np.broadcast_to(bits, count.shape) for bits in (work.shrunk_bits, work.packet_bits))
    (gamma_1, gamma_2, gamma_3), (delta_1, delta_2, delta_3) = limits
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        noise_w = bandwidth_hz * density / round_.channel_gain
        # (51); and (52), whose bits are those of one sample, and whose time to compute is multiplied by B.
        c1 = noise_w * np.expm1(np.log(2) * _ratio(moved_bits, gamma_1 * bandwidth_hz * count))
        left_s = gamma_2 - bandwidth_hz * (steps.model_down + steps.forward)
        c2 = noise_w * np.expm1(np.log(2) * _ratio(sent_bits / samples, left_s * count))
        # (53), with (54), in which the gradients are those of one sample, and the server works for one client.
        omega_1 = here.server_s[0] + backward_s + steps.downlink / samples
        c3 = _inverse_log((omega_1 - gamma_3) / (omega_1 * arrival))
        # (55) and (56), from ln(1 + x) ≈ x − x²/2.
        c4, c5 = (
            2 * noise_w * (1 - density * np.log(2) * _ratio(bits, delta * count * round_.channel_gain))
            for bits, delta in ((moved_bits, delta_1), (sent_bits, delta_2))
        )
        c6 = _inverse_log((backward_j * count - delta_3) / (arrival * backward_j))  # (57): count has no place there
    if round_.previous_cut is not None:  # nothing goes up when the cut grows, so (50e) holds
        c4 = np.where(here.cuts[0] > round_.previous_cut, np.inf, c4)
    least_w = np.nan_to_num(np.maximum(c1, c2), nan=0.0, posinf=np.inf)
    bounds = np.stack([np.full_like(c3, radio.max_tx_power_w), c3, c4, c5, c6])
    return np.maximum(least_w, 0.0), np.where(np.isnan(bounds), np.inf, bounds).min(axis=0)


def _ratio(bits: Floats, per: Floats) -> Floats:
    """bits / per, 0 where there are no bits."""
    return np.where(bits > 0, bits / per, 0.0)


def _inverse_log(argument: Floats) -> Floats:
    """1 / ln x, infinite up to x = 1."""
    return np.where(argument > 1, 1 / np.log(np.where(argument > 1, argument, 2.0)), np.inf)


def _objective(problem: Problem, here: CutTerms, rb_count: Floats, power: Floats) -> float:
    """What the powers do to g_obj."""
    lost = problem.objective.error_cost(here.cuts, problem.round.packet_error_rate(rb_count, power)).sum()
    return float(lost) / (problem.rules.penalty_weight or 1.0)
