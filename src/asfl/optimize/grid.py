"""All candidates of a round: for every cut and client, to sit out, or k resource blocks at one of some powers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.config.machine import check_memory
from asfl.optimize.allocate import Supply
from asfl.optimize.deadlines import Choices, Pick
from asfl.optimize.problem import Problem
from asfl.optimize.search import search_deadlines
from asfl.optimize.terms import Candidates, CutTerms, Links

Floats = NDArray[np.float64]

PRUNED_ABOVE = 10_000
"""With more candidates than this, over all cuts, those that can't be best are left out first."""
PRUNED_COUNTS = 4
"""Unless there are so few counts that a bound over them takes as long as the search."""


BYTES_PER_CANDIDATE = 128
"""Three stages, energy, error rate and cost, and what is needed on the way."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Candidate 0 sits out; candidate 1 + (k−1)·P + j is k blocks at power j."""

    problem: Problem
    powers: Floats
    """[P, N] powers to try."""
    links: Links
    """[O − 1, N]"""

    @classmethod
    def of(cls, problem: Problem, powers: Floats) -> "Grid":
        # Nobody can get more than what the others who must be served leave.
        most = max(1, problem.round.radio.num_rbs - max(problem.min_participants - 1, 0))
        counts = np.repeat(np.arange(1.0, most + 1), len(powers))
        return cls(problem, powers, Links.of(problem.round, counts[:, None], np.tile(powers, (most, 1))))

    def choices(self, terms: CutTerms) -> Choices:
        """What the deadline search chooses from: all candidates at all cuts of the terms."""
        return self._choices(terms, self.links)

    def bounds(self, terms: CutTerms) -> Floats:
        """[C] no decision at this cut is better: every client has everything at its best over the counts."""
        problem, need = self.problem, self.problem.min_participants
        best = self._choices(terms, self.links.best_of(len(self.powers), errors_pay=problem.errors_pay))
        least_load = np.sort(best.candidates.arrival[1:].min(axis=0))[:need].sum()
        delay_s = best.least_waits.sum(axis=1) + terms.server_s * least_load
        cost = best.candidates.cost[:, 1:] if need == problem.round.num_clients else best.candidates.cost
        return np.asarray(problem.delay_penalty.value(delay_s) + cost.min(axis=1).sum(axis=1) + best.once)

    def _choices(self, terms: CutTerms, links: Links) -> Choices:
        problem = self.problem
        check_memory(
            BYTES_PER_CANDIDATE * len(terms.cuts) * links.arrival.size,
            f"deciding over {problem.round.num_clients:,} clients × {problem.round.radio.num_rbs:,} resource blocks",
            "choose fewer of either",
        )
        candidates = Candidates.of(problem, terms, links, problem.energy_penalty, sitting_out=True)
        supply = Supply(problem.round.radio.num_rbs, problem.min_participants, len(self.powers))
        spread = problem.plan_cost(terms.cuts, terms.synced)
        return Choices(candidates, terms.server_s, least_waits(problem, candidates), supply, spread)

    def counts_and_powers(self, candidates: Candidates, cut_index: int, pick: Pick) -> tuple[Floats, Floats]:
        """[N] resource blocks and powers of a choice.

        Whoever sits out is given the power that would suit it best within the round's deadlines, so that the RB block
        sees what it is worth.
        """
        served, per_count, clients = pick > 0, len(self.powers), np.arange(len(pick))
        count = np.where(served, 1.0 + (pick - 1) // per_count, 0.0)
        stage_s, cost = candidates.stage_s[:, cut_index], candidates.cost[cut_index]
        waits = stage_s[:, pick, clients].max(axis=1)
        one_block = slice(1, 1 + per_count)
        in_time = (stage_s[:, one_block] <= waits[:, None, None]).all(axis=0)
        idle_choice = np.where(in_time, cost[one_block], np.inf).argmin(axis=0)
        power = self.powers[np.where(served, (pick - 1) % per_count, idle_choice), clients]
        return count, power


def best_on_grid(
    problem: Problem, terms: CutTerms, powers: Floats, tolerance: float, least_scale: float = 1.0
) -> tuple[int, Floats, Floats, float] | None:
    """Cut index, counts, powers and lower bound of the best decision with powers from a grid [P, N]."""
    grid, cuts = Grid.of(problem, powers), np.arange(len(terms.cuts))
    many = cuts.size * grid.links.arrival.size > PRUNED_ABOVE
    if many and len(grid.links.arrival) >= PRUNED_COUNTS * len(powers):
        cuts = _worth_trying(grid, terms)
    choices = grid.choices(terms.only(*cuts.tolist()))
    found = search_deadlines(choices, problem.delay_penalty, None, tolerance, least_scale=least_scale)
    if found is None:
        return None
    counts, best_powers = grid.counts_and_powers(choices.candidates, found.cut_index, found.pick)
    return int(cuts[found.cut_index]), counts, best_powers, found.lower_bound


def _worth_trying(grid: Grid, terms: CutTerms) -> NDArray[np.int64]:
    """The cuts that may be better than a decision at the most promising one; often only that one."""
    bounds = grid.bounds(terms)
    first = grid.choices(terms.only(int(bounds.argmin())))
    found = search_deadlines(first, grid.problem.delay_penalty, None, np.inf)
    value = np.inf if found is None else found.value
    return np.flatnonzero(bounds <= value + 1e-9 * max(1.0, abs(value)))


def least_waits(problem: Problem, candidates: Candidates) -> Floats:
    """[C, 3] deadlines no choice can beat: `min_participants` clients are served, so the last of the fastest is."""
    need, clients = problem.min_participants, problem.round.num_clients
    if need == 0:
        return np.zeros((len(candidates.cost), 3))
    fastest = candidates.stage_s[:, :, 1:].min(axis=2)
    if not problem.reachable.all():
        fastest = np.where(problem.reachable, fastest, np.inf)
    return (fastest.max(axis=2) if need == clients else np.partition(fastest, need - 1, axis=2)[:, :, need - 1]).T
