"""Power block: the best powers for a given cut and given counts (paper's problems (50) and (58), Theorem 4).

More power means fewer errors, a faster uplink and more energy, so within hard budgets the best power is the largest
one that the energy budget allows: a root of E_n(p) = δ (`power_for_energy`), unless the server's growing load breaks
the deadline. In the drift form the trade-off is a one-dimensional function per client, coupled by the stage deadlines.
Both are solved by the deadline search over a grid of powers that contains those roots, and then refined.

What was wrong in print: (55) and (56) replace the logarithm by two Taylor terms, which caps the SNR at 2; (53) and (57)
and the "critical point" of Theorem 4 treat exp(−a/p) as exp(−a)·exp(1/p); (52) has a stray factor B.
"""

import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import times
from asfl.optimize.problem import Problem
from asfl.optimize.search import Choices, search_deadlines
from asfl.optimize.terms import Candidates, CutTerms, Links, one_if_idle
from asfl.radio.link import SmoothRate, uplink_noise_w

Floats = NDArray[np.float64]

LOWEST_SHARE = 1e-4
"""Powers down to this share of P^max are tried; below it a packet has no chance."""
GRID = 22
ZOOM_POINTS = 7
TOLERANCE = 1e-6


def best_powers(
    problem: Problem,
    here: CutTerms,
    rb_count: Floats,
    current: Floats,
    *,
    zooms: int = 4,
    tolerance: float = TOLERANCE,
) -> Floats:
    """Powers [N] that minimise the block objective; never worse than `current`. Idle clients keep theirs."""
    served = np.flatnonzero(rb_count > 0)
    if served.size == 0:
        return current
    top = problem.round.radio.max_tx_power_w
    ladder = top * LOWEST_SHARE ** np.linspace(0, 1, GRID)  # from P^max downwards
    rows = [current[None], np.broadcast_to(ladder[:, None], (GRID, len(current)))]
    if problem.rules.form == "per_round_budgets":
        largest = power_for_energy(problem, here, rb_count, np.asarray(problem.rules.energy_budget_j))
        rows.append(np.maximum(largest, ladder[-1])[None])
    best = _best_on_grid(problem, here, rb_count, np.concatenate(rows), served, tolerance)
    return refine_powers(problem, here, rb_count, best, zooms=zooms, tolerance=tolerance)


def refine_powers(
    problem: Problem,
    here: CutTerms,
    rb_count: Floats,
    current: Floats,
    *,
    zooms: int,
    tolerance: float = TOLERANCE,
) -> Floats:
    """Look for better powers between the grid's points around `current`, ever closer; never worse than `current`."""
    served = np.flatnonzero(rb_count > 0)
    top = problem.round.radio.max_tx_power_w
    best, ratio = current, LOWEST_SHARE ** (-1 / (GRID - 1))
    for _ in range(zooms if served.size else 0):
        steps = ratio ** np.linspace(-1, 1, ZOOM_POINTS)
        grid = np.concatenate([best[None], np.minimum(best * steps[:, None], top)])
        best = _best_on_grid(problem, here, rb_count, grid, served, tolerance)
        ratio = ratio ** (2 / (ZOOM_POINTS - 1))
    return best


def _best_on_grid(
    problem: Problem,
    here: CutTerms,
    rb_count: Floats,
    grid: Floats,
    served: NDArray[np.int64],
    tolerance: float,
) -> Floats:
    """The best of the powers in each client's column of `grid` [P, N]; row 0 is where we are."""
    # Idle clients take part in the arithmetic with one block, and are left out of the choice.
    links = Links.of(problem.round, one_if_idle(rb_count), grid)
    candidates = Candidates.of(problem, here, links, problem.energy_penalty).among(served)
    fastest = candidates.stage_s.min(axis=2).max(axis=2).T
    choices = Choices(candidates, here.server_s, fastest, supply=None, once=np.zeros(1))
    start = np.zeros(len(served), dtype=np.int64)
    found = search_deadlines(choices, problem.delay_penalty, start, tolerance)
    best: Floats = grid[0].copy()
    if found is not None:
        best[served] = grid[found.pick, served]
    return best


def power_for_energy(problem: Problem, here: CutTerms, rb_count: Floats, energy_j: Floats) -> Floats:
    """[N] the largest power with E_n(p) ≤ energy_j: transmission in closed form, the backward pass by bisection.

    Transmission alone: p · bits / (k B' log₂(1 + p g')) = e has the root p g' = −y W₋₁(−e^{−1/y} / y) − 1 with
    y = e k B' g' / (bits ln 2), Lambert's W on its lower branch; y ≤ 1 has none. Energy grows with p, in transmission
    as in (1 − s(p)) · backward, so the root with the whole backward pass and the root without it bracket the answer.
    """
    round_, top = problem.round, problem.round.radio.max_tx_power_w
    bits = (here.resplit_up_bits - here.resplit_paid_bits + here.upload_bits + here.model_up_bits)[0]
    forward, backward = here.forward_j[0], here.backward_j[0]
    energy_j = np.broadcast_to(energy_j, forward.shape)
    count = one_if_idle(rb_count)
    low = _transmission_root(problem, count, bits, energy_j - forward - backward)
    high = _transmission_root(problem, count, bits, energy_j - forward)
    for _ in range(30):
        middle = 0.5 * (low + high)
        links = Links.of(round_, count, middle)
        spent = forward + backward * (1 - links.packet_error_rate)
        spent = spent + times(bits * middle, np.where(middle > 0, links.uplink_s_per_bit, 0.0))
        affordable = spent <= energy_j
        low, high = np.where(affordable, middle, low), np.where(affordable, high, middle)
    return np.clip(low, 0.0, top)


def _transmission_root(problem: Problem, count: Floats, bits: Floats, energy_j: Floats) -> Floats:
    """[N] the power at which sending `bits` takes `energy_j`, 0 … P^max; P^max if it never takes that much."""
    from scipy.special import lambertw

    round_, radio = problem.round, problem.round.radio
    rate = SmoothRate.of(radio)
    snr_per_watt = round_.channel_gain / uplink_noise_w(count, radio, round_.equations.uplink_power) / rate.gap
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = energy_j * count * radio.rb_bandwidth_hz * rate.scale * snr_per_watt / (bits * np.log(2))
        solvable = ratio > 1
        y = np.where(solvable, np.minimum(ratio, 1e15), 2.0)  # beyond that the root is far above any power
        root = -y * lambertw(-np.exp(-1 / y) / y, -1).real - 1
        power = np.where(solvable, root / snr_per_watt, 0.0)
        if np.isfinite(rate.most):  # more power than the fastest rate needs is spent in vain
            power = np.minimum(power, energy_j * count * radio.rb_bandwidth_hz * rate.most / bits)
    power = np.clip(np.nan_to_num(power, posinf=radio.max_tx_power_w), 0.0, radio.max_tx_power_w)
    return np.asarray(np.where(bits > 0, power, np.where(energy_j >= 0, radio.max_tx_power_w, 0.0)))
