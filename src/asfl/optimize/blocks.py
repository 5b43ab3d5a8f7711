"""The blocks of the descent: cut, counts of resource blocks, powers, and each client's own bits.

Counts are found by trying candidates: a client sits out, or has k blocks at one of some powers.

The cut block (problem (34)) tries all M−1 cuts for given counts and powers. The paper counts M feasible cuts; the last
would leave the server no layer. The RB block (problem (49)) finds the best counts for a given cut and powers. Only how
many blocks a client gets matters, because the channel is flat over blocks: N counts instead of the paper's N·K
binaries, and no mixed-integer solver. The printed complexity O(N^K) is that of trying every assignment. Also, the
printed (49) has no term that makes any client be served; here at least `min_participants` are. `best_on_grid` decides
cut, counts and powers at once.

The power block finds the best powers for a given cut and given counts (problems (50) and (58), Theorem 4). More power
means fewer errors, a faster uplink and more energy, so within hard budgets the best power is the largest one that the
energy budget allows: a root of E_n(p) = δ (`power_for_energy`), unless the server's growing load breaks the deadline.
In the drift form the trade-off is a one-dimensional function per client, coupled by the stage deadlines. Both are
solved by the deadline search over a grid of powers that contains those roots, and then refined.

What was wrong in print: (55) and (56) replace the logarithm by two Taylor terms, which caps the SNR at 2; (53) and (57)
and the "critical point" of Theorem 4 treat exp(−a/p) as exp(−a)·exp(1/p); (52) has a stray factor B.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import comb, lgamma, log

import numpy as np
from numpy.typing import NDArray

from asfl.config.files import check_memory
from asfl.config.shapes import Floats, Ints
from asfl.costs.modelled import (
    Links,
    Workload,
    arrived_only,
    by_shape,
    energy,
    joules,
    seconds,
    shapes_of,
    times,
)
from asfl.costs.round import Decision
from asfl.costs.timeline import Shape
from asfl.optimize.problem import Problem
from asfl.optimize.search import WIDE_WINDOWS, WINDOWS, Choices, Pick, Supply, search_deadlines
from asfl.optimize.terms import Candidates, CutTerms, allowed_bits, one_if_idle, sitting_out_cost, terms_by_bits
from asfl.radio.link import SmoothRate, uplink_noise_w

PRUNED_ABOVE = 10_000
"""With more candidates than this, over all cuts, those cuts that can't be best are left out first."""
BANDS = (1, 2, 4, *(4**power for power in range(2, 10)))
"""Where the bands of counts begin that such a cut is told by."""
EVERY_COUNT = range(16, 65)
"""Up to here every count of blocks is tried for a client: up to 16 however many clients there are, up to 64 if few."""
EVERY_COUNT_CLIENTS = 16_000
"""As many as this divided by the number of clients."""


BYTES_PER_CANDIDATE = 128
"""Three stages, energy, error rate and cost, and what is needed on the way."""
ENUMERABLE = 2_000
"""Below this many allocations all are tried, which is exact whatever the objective."""
UNCOUNTED = 10**12
TRIED_PLANS = 8
"""Of how many plans the joint solver improves blocks and powers, where rounds overlap."""

COUNT_TOLERANCE = 1e-7
"""Relative tolerance of the deadline search; small instances are enumerated and exact."""
ROUGH_TOLERANCE = 1e-4
"""The same where there are so many clients or blocks that not every count is tried."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Candidate 0 sits out; candidate 1 + i·P + j is counts[i] blocks at power j."""

    problem: Problem
    counts: Ints
    """[L] numbers of blocks to try."""
    powers: Floats
    """[P, N] powers to try."""
    links: Links
    """[O − 1, N]"""

    @classmethod
    def of(cls, problem: Problem, powers: Floats, coarseness: int = 1) -> "Grid":
        """With a coarseness of 8, every count is tried only up to an eighth of what else would be."""
        # No client can get more than what the others that must be served leave.
        most = max(1, problem.round.radio.num_rbs - max(problem.min_participants - 1, 0))
        every_count = EVERY_COUNT_CLIENTS // problem.round.num_clients
        counts = _ladder(most, min(max(every_count, EVERY_COUNT[0]), EVERY_COUNT[-1]) // coarseness)
        count_of_link = np.repeat(counts.astype(float), len(powers))[:, None]
        return cls(problem, counts, powers, Links.of(problem.round, count_of_link, np.tile(powers, (len(counts), 1))))

    def choices(self, terms: CutTerms) -> Choices:
        """What the deadline search chooses from: all candidates at all cuts of the terms."""
        return self._choices(terms, self.links, self.counts, len(self.powers))

    def bounds(self, terms: CutTerms) -> Floats:
        """[C] no decision at this cut is better: in bands of counts, each four times as wide, a client has everything
        at its best over the band and the powers, and pays for the band's least count.
        """
        problem = self.problem
        first = np.searchsorted(self.counts, [k for k in BANDS if k <= self.counts[-1]])
        links = _best_links(self.links, first * len(self.powers), errors_pay=problem.objective.errors_pay)
        relaxed = self._choices(terms, links, self.counts[first], powers=1)
        found = search_deadlines(relaxed, problem.objective.delay_penalty, None, 0.0, max_boxes=1)
        return np.full(len(terms.cuts), np.inf) if found is None else found.bounds

    def _choices(self, terms: CutTerms, links: Links, counts: Ints, powers: int) -> Choices:
        problem = self.problem
        check_memory(
            BYTES_PER_CANDIDATE * len(terms.cuts) * links.arrival.size,
            f"deciding over {problem.round.num_clients:,} clients × {problem.round.radio.num_rbs:,} resource blocks",
            "choose fewer of either",
        )
        candidates = Candidates.of(problem, terms, links, problem.objective.energy_penalty, sitting_out=True)
        supply = Supply(problem.round.radio.num_rbs, problem.min_participants, counts, powers)
        spread = problem.objective.plan_cost(terms.cuts, terms.synced)
        return Choices(
            candidates, terms.server_s, least_waits(problem, candidates), supply, spread, *_timing(problem, terms)
        )

    def counts_and_powers(self, candidates: Candidates, cut_index: int, pick: Pick) -> tuple[Floats, Floats]:
        """[N] resource blocks and powers of a choice.

        A client that sits out is given the power that would suit it best within the round's deadlines, so that the RB
        block sees what it is worth.
        """
        served, per_count, clients = pick > 0, len(self.powers), np.arange(len(pick))
        count = np.where(served, self.counts[(pick - 1) // per_count], 0).astype(float)
        stage_s, cost = candidates.stage_s[:, cut_index], candidates.cost[cut_index]
        waits = stage_s[:, pick, clients].max(axis=1)
        one_block = slice(1, 1 + per_count)
        in_time = (stage_s[:, one_block] <= waits[:, None, None]).all(axis=0)
        idle_choice = np.where(in_time, cost[one_block], np.inf).argmin(axis=0)
        power = self.powers[np.where(served, (pick - 1) % per_count, idle_choice), clients]
        return count, power


def best_on_grid(
    problem: Problem,
    terms: CutTerms,
    powers: Floats,
    tolerance: float,
    least_scale: float = 1.0,
    coarseness: int = 1,
) -> tuple[int, Floats, Floats, float] | None:
    """Cut index, counts, powers and lower bound of the best decision with powers from a grid [P, N].

    Where there are many candidates, the most promising cut comes first, and then those that may be better.
    """
    if problem.round.equations.timing == "overlap":
        return _best_on_timelines(problem, terms, powers, tolerance, least_scale, coarseness)
    grid, cuts = Grid.of(problem, powers, coarseness), np.arange(len(terms.cuts))
    bounds, groups = np.full(len(cuts), -np.inf), [cuts]
    if len(cuts) > 1 and cuts.size * grid.links.arrival.size > PRUNED_ABOVE:
        bounds = grid.bounds(terms)
        first = int(bounds.argmin())
        groups = [cuts[first : first + 1], np.delete(cuts, first)]
    best, value = None, np.inf
    for group in groups:
        slack = tolerance * max(least_scale, abs(value)) if best is not None else 0.0
        group = group[bounds[group] < value - slack]
        if not group.size:
            continue
        choices = grid.choices(terms.only(*group.tolist()))
        found = search_deadlines(
            choices, problem.objective.delay_penalty, None, tolerance, least_scale=least_scale, at_most=value
        )
        bounds[group] = value - slack
        if found is not None:
            value, bounds[group] = found.value, found.bounds
            counts, best_powers = grid.counts_and_powers(choices.candidates, found.cut_index, found.pick)
            best = int(group[found.cut_index]), counts, best_powers
    return None if best is None else (*best, min(value, float(bounds.min())))


def _best_on_timelines(
    problem: Problem, terms: CutTerms, powers: Floats, tolerance: float, least_scale: float, coarseness: int
) -> tuple[int, Floats, Floats, float] | None:
    """The same where rounds overlap: from the best decision with barriers, the best plan for its blocks and powers,
    and then the best of both there. Nothing bounds it.
    """
    equations = replace(problem.round.equations, timing="stages")
    barriers = replace(problem, round=replace(problem.round, equations=equations))
    begin = best_on_grid(barriers, terms, powers, tolerance, least_scale, coarseness)
    if begin is None:
        return None
    _, counts, power, _ = begin
    grid, best = Grid.of(problem, powers, coarseness), None
    of_plans = objective_of_cuts(problem, terms, counts, power)
    for plan in np.argsort(of_plans, kind="stable")[: TRIED_PLANS if coarseness == 1 else 1]:
        choices = replace(grid.choices(terms.only(int(plan))), windows=WIDE_WINDOWS if coarseness == 1 else WINDOWS)
        found = search_deadlines(choices, problem.objective.delay_penalty, None, tolerance, least_scale=least_scale)
        if found is not None and (best is None or found.value < best[0]):
            best = found.value, int(plan), *grid.counts_and_powers(choices.candidates, 0, found.pick)
    return None if best is None else (*best[1:], -np.inf)


def _ladder(most: int, every_count: int) -> Ints:
    """1, 2, … `every_count`, then in steps of 4/`every_count` of the count, up to `most`."""
    counts = list(range(1, min(most, every_count) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] + 4 * counts[-1] // every_count))
    return np.array(counts)


def _best_links(links: Links, first: Ints, *, errors_pay: bool) -> Links:
    """[B, N] from links [O, N]: every quantity at its best among the links first[b] … first[b + 1] − 1."""
    rate, least = links.packet_error_rate, partial(np.minimum.reduceat, indices=first, axis=0)
    s_per_bit, j_per_bit = least(links.uplink_s_per_bit), least(times(links.tx_power_w, links.uplink_s_per_bit))
    power_w = np.divide(j_per_bit, s_per_bit, out=np.zeros_like(j_per_bit), where=s_per_bit < np.inf)
    return replace(
        links,
        packet_error_rate=(np.maximum if errors_pay else np.minimum).reduceat(rate, first, axis=0),
        arrival=least(links.arrival),
        uplink_s_per_bit=s_per_bit,
        tx_power_w=power_w,  # sending a bit takes least time and least energy
    )


def _shapes(problem: Problem, cuts: Ints, arrived: float) -> list[Shape]:
    return shapes_of(problem.round, problem.exchange, cuts[:, None], np.full(len(cuts), arrived))


def _timing(
    problem: Problem, terms: CutTerms, clients: int | None = None
) -> tuple[Callable[[float], Shape] | None, int]:
    """The last two of `Choices`: where rounds overlap, what is searched has one cut."""
    if problem.round.equations.timing == "stages":
        return None, 1
    number = problem.round.num_clients if clients is None else clients

    def shape(arrived: float) -> Shape:
        return _shapes(problem, terms.cuts[:1], arrived)[0]._replace(clients=number)

    return shape, problem.round.compute.server_processors


def among(candidates: Candidates, clients: Ints) -> Candidates:
    """The candidates of these clients."""
    own = (
        None if values is None else np.ascontiguousarray(values[..., clients]) for values in vars(candidates).values()
    )
    return Candidates(*own)  # type: ignore[arg-type]


def least_waits(problem: Problem, candidates: Candidates) -> Floats:
    """[C, 3] deadlines no choice can beat: `min_participants` clients are served, so the last of the fastest is."""
    need, clients = problem.min_participants, problem.round.num_clients
    if need == 0:
        return np.zeros((len(candidates.cost), 3))
    fastest = candidates.stage_s[:, :, 1:].min(axis=2)
    if not problem.reachable.all():
        fastest = np.where(problem.reachable, fastest, np.inf)
    return (fastest.max(axis=2) if need == clients else np.partition(fastest, need - 1, axis=2)[:, :, need - 1]).T


def objective_of_cuts(
    problem: Problem, terms: CutTerms, rb_count: Floats, tx_power_w: Floats, links: Links | None = None
) -> Floats:
    """[C] drift + V · objective of every cut in the terms, for one allocation; `links`: its links, if they are known.

    Both forms use the drift here, as the paper does: the cut is what the long-run budgets act on.
    """
    served, drift = rb_count > 0, problem.objective.energy_drift
    links = links or Links.of(problem.round, rb_count[None], tx_power_w[None])
    candidates = Candidates.of(problem, terms, links, drift)
    waits = np.where(served, candidates.stage_s[:, :, 0], 0.0).max(axis=2)
    waits = np.maximum(waits[0], terms.resplit_wait_s) + waits[1] + waits[2]
    delay = waits + terms.server_s * candidates.load.sum()
    if candidates.parts is not None:
        servers, arrived = problem.round.compute.server_processors, float(candidates.load[0, served].sum())
        parts = np.where(served, candidates.parts[:, :, 0], 0.0)
        delay = by_shape(_shapes(problem, terms.cuts, arrived), parts, servers).sum(axis=1)
    costs = np.where(served, candidates.cost[:, 0], sitting_out_cost(problem, terms.cuts, drift)).sum(axis=1)
    spread = problem.objective.plan_cost(terms.cuts, terms.synced)
    return np.asarray(problem.objective.delay_drift.value(delay) + costs + spread)


def best_rb_counts(
    problem: Problem,
    here: CutTerms,
    tx_power_w: Floats,
    current: Floats,
    *,
    enumerate_small: bool = True,
) -> Floats:
    """Counts [N] that minimise the block objective; never worse than `current`."""
    grid = Grid.of(problem, tx_power_w[None])
    choices = grid.choices(here)
    num_rbs, clients, need = problem.round.radio.num_rbs, problem.round.num_clients, problem.min_participants
    if enumerate_small and choices.shape is None and number_of_allocations(clients, num_rbs, need) <= ENUMERABLE:
        best = _best_of_all(problem, choices, index_of_all_allocations(clients, num_rbs, need))
        return np.asarray(all_allocations(clients, num_rbs, need)[best], dtype=float)
    start = np.where(current > 0, 1 + np.searchsorted(grid.counts, current), 0)
    has_every_count = len(grid.counts) == grid.counts[-1]
    tolerance = COUNT_TOLERANCE if has_every_count else ROUGH_TOLERANCE
    found = search_deadlines(choices, problem.objective.delay_penalty, start, tolerance)
    return current if found is None else np.concatenate([[0.0], grid.counts])[found.pick]


def _best_of_all(problem: Problem, choices: Choices, table_index: Ints) -> int:
    """Try every allocation in one go: look all of them up [N, L], then sums and maxima over clients."""
    candidates = choices.candidates
    stage_s = candidates.stage_s.reshape(3, -1).take(table_index, axis=1)
    delay = stage_s.max(axis=1).sum(axis=0) + choices.server_s[0] * candidates.load.take(table_index).sum(axis=0)
    return int(np.argmin(problem.objective.delay_penalty.value(delay) + candidates.cost.take(table_index).sum(axis=0)))


@lru_cache(maxsize=256)
def number_of_allocations(num_clients: int, num_rbs: int, min_served: int) -> int:
    """How many counts have Σ ≤ K and at least P clients served: Σ_j C(N, j) C(K, j), or `UNCOUNTED`."""
    total = 0
    for served in range(min_served, min(num_clients, num_rbs) + 1):
        if _log_comb(num_clients, served) + _log_comb(num_rbs, served) > log(UNCOUNTED):
            return UNCOUNTED  # numbers of thousands of digits take long, and no caller needs them
        total += comb(num_clients, served) * comb(num_rbs, served)
    return total


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


@lru_cache(maxsize=64)
def all_allocations(num_clients: int, num_rbs: int, min_served: int) -> Ints:
    """[L, N] every allocation, built client by client; only asked for where L is small."""
    rows: list[tuple[int, ...]] = [()]
    for client in range(num_clients):
        still_to_come = num_clients - client - 1
        rows = [
            (*row, blocks)
            for row in rows
            for blocks in range(num_rbs - sum(row) + 1)
            if sum(k > 0 for k in row) + (blocks > 0) + min(still_to_come, num_rbs - sum(row) - blocks) >= min_served
        ]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), num_clients)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=64)
def index_of_all_allocations(num_clients: int, num_rbs: int, min_served: int) -> Ints:
    """[N, L] where each allocation's entries stand in a flattened table [1 + most, N]."""
    return np.ascontiguousarray(
        (all_allocations(num_clients, num_rbs, min_served) * num_clients + np.arange(num_clients)).T
    )


# ---------------------------------------------------------------------- each client's own bits
def best_bits(problem: Problem, links: Links, decision: Decision) -> Decision | None:
    """The block of each client's own bits; None: nothing is better. Exact up to `TOLERANCE`."""
    served = np.flatnonzero(decision.scheduled)
    if len(allowed_bits(problem)) == 1 or not served.size:
        return None
    terms, now = terms_by_bits(problem, decision)
    of_rows = Candidates.of(problem, terms, links, problem.objective.energy_penalty)
    # Rows become candidates of a single plan.
    load = np.repeat(of_rows.load, len(terms.bits), axis=0)
    parts = None if of_rows.parts is None else of_rows.parts.swapaxes(1, 2)
    candidates = among(Candidates(of_rows.stage_s.swapaxes(1, 2), load, of_rows.cost.swapaxes(0, 1), parts), served)
    fastest = candidates.stage_s.min(axis=2).max(axis=2).T
    choices = Choices(candidates, terms.server_s[:1], fastest, None, np.zeros(1), *_timing(problem, terms, len(served)))
    found = search_deadlines(choices, problem.objective.delay_penalty, now[served], TOLERANCE)
    if found is None or (found.pick == now[served]).all():
        return None
    bits = np.full(len(now), terms.bits[found.pick].max())
    bits[served] = terms.bits[found.pick]
    return replace(decision, bits=int(bits[0]) if (bits == bits[0]).all() else bits)


# ---------------------------------------------------------------------- powers

LOWEST_SHARE = 1e-4
"""Powers down to this share of P^max are tried; below it a packet has no chance."""
POWER_GRID = 22
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
    ladder = top * LOWEST_SHARE ** np.linspace(0, 1, POWER_GRID)  # from P^max downwards
    rows = [current[None], np.broadcast_to(ladder[:, None], (POWER_GRID, len(current)))]
    if problem.rules.form == "per_round_budgets":
        largest = power_for_energy(problem, here, rb_count, np.asarray(problem.rules.energy_budget_j))
        rows.append(np.maximum(largest, ladder[-1])[None])
    best = _best_of_powers(problem, here, rb_count, np.concatenate(rows), served, tolerance)
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
    best, ratio = current, LOWEST_SHARE ** (-1 / (POWER_GRID - 1))
    for _ in range(zooms if served.size else 0):
        steps = ratio ** np.linspace(-1, 1, ZOOM_POINTS)
        grid = np.concatenate([best[None], np.minimum(best * steps[:, None], top)])
        best = _best_of_powers(problem, here, rb_count, grid, served, tolerance)
        ratio = ratio ** (2 / (ZOOM_POINTS - 1))
    return best


def _best_of_powers(
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
    candidates = among(Candidates.of(problem, here, links, problem.objective.energy_penalty), served)
    fastest = candidates.stage_s.min(axis=2).max(axis=2).T
    choices = Choices(candidates, here.server_s, fastest, None, np.zeros(1), *_timing(problem, here, len(served)))
    start = np.zeros(len(served), dtype=np.int64)
    found = search_deadlines(choices, problem.objective.delay_penalty, start, tolerance)
    best: Floats = grid[0].copy()
    if found is not None:
        best[served] = grid[found.pick, served]
    return best


def power_for_energy(problem: Problem, here: CutTerms, rb_count: Floats, energy_j: Floats) -> Floats:
    """[N] the largest power with E_n(p) ≤ energy_j: transmission in closed form, the backward pass by bisection.

    Transmission alone: p · bits / (k B' log₂(1 + p g')) = e has the root p g' = −y W₋₁(−e^{−1/y} / y) − 1 with
    y = e k B' g' / (bits ln 2), Lambert's W on its lower branch; y ≤ 1 has none. Energy grows with p, in transmission
    as in (1 − s(p)) · backward, so the roots with and without all that follows an arrival bracket the answer.
    """
    round_, top = problem.round, problem.round.radio.max_tx_power_w
    work, count = Workload(*(of_plan[0, 0] for of_plan in here.work)), one_if_idle(rb_count)
    bits = work.shrunk_bits + work.packet_bits
    if round_.equations.resplit_energy == "signed":
        bits = bits - work.grown_bits
    j_per_flop = round_.client_s_per_flop * round_.client_compute_w
    left_j = energy_j - work.forward_flops * j_per_flop
    low = _transmission_root(problem, count, bits + work.model_up_bits, left_j - work.backward_flops * j_per_flop)
    high = _transmission_root(problem, count, bits, left_j)
    for _ in range(30):
        middle = 0.5 * (low + high)
        links = Links.of(round_, count, middle)
        steps = arrived_only(seconds(work, links), links, links.arrival)
        affordable = energy(joules(round_, work, links, steps)) <= energy_j
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
