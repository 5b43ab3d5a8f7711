"""Cuts and counts of resource blocks, by trying candidates: a client sits out, or has k blocks at one of some powers.

The cut block (problem (34)) tries all M−1 cuts for given counts and powers. The paper counts M feasible cuts; the last
would leave the server no layer. The RB block (problem (49)) finds the best counts for a given cut and powers. Only how
many blocks a client gets matters, because the channel is flat over blocks: N counts instead of the paper's N·K
binaries, and no mixed-integer solver. The printed complexity O(N^K) is that of trying every assignment. Also, the
printed (49) has no term that makes any client be served; here at least `min_participants` are. `best_on_grid` decides
cut, counts and powers at once.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import comb, lgamma, log

import numpy as np

from asfl.config.files import check_memory
from asfl.config.shapes import Floats, Ints
from asfl.optimize.problem import Problem
from asfl.optimize.search import Choices, Pick, Supply, search_deadlines
from asfl.optimize.terms import Candidates, CutTerms, Links, sitting_out_cost

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

TOLERANCE = 1e-7
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

    @property
    def has_every_count(self) -> bool:
        return bool(len(self.counts) == self.counts[-1])

    def choices(self, terms: CutTerms) -> Choices:
        """What the deadline search chooses from: all candidates at all cuts of the terms."""
        return self._choices(terms, self.links, self.counts, len(self.powers))

    def bounds(self, terms: CutTerms) -> Floats:
        """[C] no decision at this cut is better: in bands of counts, each four times as wide, a client has everything
        at its best over the band and the powers, and pays for the band's least count.
        """
        problem = self.problem
        first = np.searchsorted(self.counts, [k for k in BANDS if k <= self.counts[-1]])
        links = self.links.best_of(first * len(self.powers), errors_pay=problem.errors_pay)
        relaxed = self._choices(terms, links, self.counts[first], powers=1)
        found = search_deadlines(relaxed, problem.delay_penalty, None, 0.0, max_boxes=1)
        return np.full(len(terms.cuts), np.inf) if found is None else found.bounds

    def _choices(self, terms: CutTerms, links: Links, counts: Ints, powers: int) -> Choices:
        problem = self.problem
        check_memory(
            BYTES_PER_CANDIDATE * len(terms.cuts) * links.arrival.size,
            f"deciding over {problem.round.num_clients:,} clients × {problem.round.radio.num_rbs:,} resource blocks",
            "choose fewer of either",
        )
        candidates = Candidates.of(problem, terms, links, problem.energy_penalty, sitting_out=True)
        supply = Supply(problem.round.radio.num_rbs, problem.min_participants, counts, powers)
        spread = problem.plan_cost(terms.cuts, terms.synced)
        return Choices(candidates, terms.server_s, least_waits(problem, candidates), supply, spread)

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
            choices, problem.delay_penalty, None, tolerance, least_scale=least_scale, at_most=value
        )
        bounds[group] = value - slack
        if found is not None:
            value, bounds[group] = found.value, found.bounds
            counts, best_powers = grid.counts_and_powers(choices.candidates, found.cut_index, found.pick)
            best = int(group[found.cut_index]), counts, best_powers
    return None if best is None else (*best, min(value, float(bounds.min())))


def _ladder(most: int, every_count: int) -> Ints:
    """1, 2, … `every_count`, then in steps of 4/`every_count` of the count, up to `most`."""
    counts = list(range(1, min(most, every_count) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] + 4 * counts[-1] // every_count))
    return np.array(counts)


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
    served, drift = rb_count > 0, problem.energy_drift
    links = links or Links.at(problem.round, rb_count, tx_power_w)
    candidates = Candidates.of(problem, terms, links, drift)
    waits = np.where(served, candidates.stage_s, 0.0).max(axis=2)
    waits = np.maximum(waits[0], terms.resplit_wait_s) + waits[1] + waits[2]
    load = terms.server_s * np.where(served, candidates.load, 0.0).sum()
    costs = np.where(served, candidates.cost, sitting_out_cost(problem, terms.cuts, drift)).sum(axis=1)
    spread = problem.plan_cost(terms.cuts, terms.synced)
    return np.asarray(problem.delay_drift.value(waits + load) + costs + spread)


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
    if enumerate_small and number_of_allocations(clients, num_rbs, need) <= ENUMERABLE:
        best = _best_of_all(problem, choices, index_of_all_allocations(clients, num_rbs, need))
        return np.asarray(all_allocations(clients, num_rbs, need)[best], dtype=float)
    start = np.where(current > 0, 1 + np.searchsorted(grid.counts, current), 0)
    tolerance = TOLERANCE if grid.has_every_count else ROUGH_TOLERANCE
    found = search_deadlines(choices, problem.delay_penalty, start, tolerance)
    return current if found is None else np.concatenate([[0.0], grid.counts])[found.pick]


def _best_of_all(problem: Problem, choices: Choices, table_index: Ints) -> int:
    """Try every allocation in one go: look all of them up [N, L], then sums and maxima over clients."""
    candidates = choices.candidates
    stage_s = candidates.stage_s.reshape(3, -1).take(table_index, axis=1)
    delay = stage_s.max(axis=1).sum(axis=0) + choices.server_s[0] * candidates.load.take(table_index).sum(axis=0)
    return int(np.argmin(problem.delay_penalty.value(delay) + candidates.cost.take(table_index).sum(axis=0)))


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
