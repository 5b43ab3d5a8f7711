"""All candidates of a round: for every cut and client, to sit out, or k resource blocks at one of some powers."""

from dataclasses import dataclass

import numpy as np

from asfl.config.machine import check_memory
from asfl.config.shapes import Floats, Ints
from asfl.optimize.problem import Problem
from asfl.optimize.search import Choices, Pick, Supply, search_deadlines
from asfl.optimize.terms import Candidates, CutTerms, Links

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
        # Nobody can get more than what the others who must be served leave.
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

        Whoever sits out is given the power that would suit it best within the round's deadlines, so that the RB block
        sees what it is worth.
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
