"""All candidates of a round: for every cut and client, to sit out, or k resource blocks at one of some powers."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.allocate import allocate
from asfl.optimize.deadlines import Pick, StageTables, search_deadlines
from asfl.optimize.problem import Problem
from asfl.optimize.terms import Candidates, CutTerms, Links, sitting_out_cost

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Grid:
    """Candidate 0 sits out; candidate 1 + (k−1)·P + j is k blocks at power j."""

    problem: Problem
    terms: CutTerms
    powers: Floats
    """[P, N] powers to try."""

    @cached_property
    def most_rbs(self) -> int:
        """Nobody can get more than what the others who must be served leave."""
        return max(1, self.problem.round.radio.num_rbs - max(self.problem.min_participants - 1, 0))

    @cached_property
    def tables(self) -> Floats:
        """[C, 5, O, N] the three stage times, arrival and cost of every candidate."""
        counts, powers = np.arange(1.0, self.most_rbs + 1), self.powers
        if len(self.powers) > 1:
            counts, powers = np.repeat(counts, len(self.powers)), np.tile(self.powers, (self.most_rbs, 1))
        links = Links.of(self.problem.round, counts[:, None], powers)
        return tables_with_sitting_out(self.problem, self.terms, links)

    def stages(self, extra_cost: Floats | None = None) -> StageTables:
        """For the deadline search; `extra_cost` [C] is paid once whatever the choice."""
        tables = self.tables
        if extra_cost is not None:
            tables = tables.copy()
            tables[:, 4] += (extra_cost / self.problem.round.num_clients)[:, None, None]
        return StageTables(tables, self.terms.server_s, least_waits(self.problem, tables), self._choose)

    def counts_and_powers(self, cut_index: int, pick: Pick) -> tuple[Floats, Floats]:
        """[N] resource blocks and powers of a choice.

        Whoever sits out is given the power that would suit it best within the round's deadlines, so that the RB block
        sees what it is worth.
        """
        served, per_count, clients = pick > 0, len(self.powers), np.arange(len(pick))
        count = np.where(served, 1.0 + (pick - 1) // per_count, 0.0)
        table = self.tables[cut_index]
        waits = table[:3, pick, clients].max(axis=1)
        one_block = table[:, 1 : 1 + per_count]
        in_time = (one_block[:3] <= waits[:, None, None]).all(axis=0)
        idle_choice = np.where(in_time, one_block[4], np.inf).argmin(axis=0)
        power = self.powers[np.where(served, (pick - 1) % per_count, idle_choice), clients]
        return count, power

    def _choose(self, priced: Floats) -> tuple[Pick, Floats]:
        """The best power for each count, then the counts."""
        num_rbs, need = self.problem.round.radio.num_rbs, self.problem.min_participants
        cases, _, clients = priced.shape
        per_count = len(self.powers)
        if per_count == 1:
            return allocate(priced, num_rbs, need)
        by_count = priced[:, 1:].reshape(cases, self.most_rbs, per_count, clients)
        counts, totals = allocate(np.concatenate([priced[:, :1], by_count.min(axis=2)], axis=1), num_rbs, need)
        row = np.maximum(counts - 1, 0)
        power = by_count[np.arange(cases)[:, None], row, :, np.arange(clients)].argmin(axis=2)
        return np.where(counts > 0, 1 + row * per_count + power, 0), totals


def best_on_grid(
    problem: Problem, terms: CutTerms, powers: Floats, tolerance: float, least_scale: float = 1.0
) -> tuple[int, Floats, Floats, float] | None:
    """Cut index, counts, powers and lower bound of the best decision with powers from a grid [P, N]."""
    grid = Grid(problem, terms, powers)
    spread = problem.rules.penalty_weight * problem.spread_of_cut[terms.cuts]
    found = search_deadlines(grid.stages(spread), problem.delay_penalty, None, tolerance, least_scale=least_scale)
    if found is None:
        return None
    return found.cut_index, *grid.counts_and_powers(found.cut_index, found.pick), found.lower_bound


def tables_with_sitting_out(problem: Problem, terms: CutTerms, links: Links) -> Floats:
    """[C, 5, 1 + O, N] from links [O, N]: stage times, arrival, cost; row 0 sits out, no gain is out."""
    served = Candidates.of(problem, terms, links, problem.energy_penalty)
    cuts, options, clients = served.cost.shape
    tables = np.zeros((cuts, 5, 1 + options, clients))
    tables[:, :3, 1:] = served.stage_s.swapaxes(0, 1)
    tables[:, 3, 1:] = served.arrival
    tables[:, 4, 0] = sitting_out_cost(problem, terms.cuts, problem.energy_penalty)
    tables[:, 4, 1:] = served.cost if problem.reachable.all() else np.where(problem.reachable, served.cost, np.inf)
    return tables


def least_waits(problem: Problem, tables: Floats) -> Floats:
    """[C, 3] deadlines no allocation can beat: `min_participants` clients are served, so the last of the fastest is."""
    need = problem.min_participants
    if need == 0:
        return np.zeros((len(tables), 3))
    fastest = tables[:, :3, 1:].min(axis=2)
    if not problem.reachable.all():
        fastest = np.where(problem.reachable, fastest, np.inf)
    return fastest.max(axis=2) if need == fastest.shape[2] else np.partition(fastest, need - 1, axis=2)[:, :, need - 1]
