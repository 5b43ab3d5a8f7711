"""RB block: the best counts for a given cut and given powers (paper's problem (49)).

Only how many blocks a client gets matters, because the channel is flat over blocks: N counts instead of the paper's
N·K binaries, and no mixed-integer solver. The printed complexity O(N^K) is that of trying every assignment. Also, the
printed (49) has no term that makes anybody be served; here at least `min_participants` are.
"""

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.allocate import ENUMERABLE, all_allocations, allocate, number_of_allocations
from asfl.optimize.deadlines import StageProblem, search_deadlines
from asfl.optimize.problem import Problem
from asfl.optimize.terms import Candidates, CutTerms, Links, sitting_out_cost

Floats = NDArray[np.float64]

TOLERANCE = 1e-7
"""Relative tolerance of the deadline search; small instances are enumerated and exact."""


def best_rb_counts(
    problem: Problem, terms: CutTerms, cut_index: int, tx_power_w: Floats, current: Floats, *, enumerate_small: bool = True
) -> Floats:
    """Counts [N] that minimise the block objective; never worse than `current`."""
    round_, need = problem.round, problem.min_participants
    most = max(1, round_.radio.num_rbs - max(need - 1, 0))
    counts = np.arange(1, most + 1, dtype=float)
    links = Links.of(round_, counts[:, None], tx_power_w)
    stages = stages_with_sitting_out(problem, terms, cut_index, links)
    num_rbs, clients = round_.radio.num_rbs, round_.num_clients
    if enumerate_small and number_of_allocations(clients, num_rbs, need) <= ENUMERABLE:
        return _best_of_all(problem, stages, all_allocations(clients, num_rbs, need))
    stage_problem = _with_allocation(stages, problem)
    found = search_deadlines([stage_problem], problem.delay_penalty, (0, current.astype(int)), TOLERANCE)
    return current if found is None else found.pick.astype(float)


def stages_with_sitting_out(problem: Problem, terms: CutTerms, cut_index: int, links: Links) -> StageProblem:
    """Candidates of one cut with row 0 for sitting out; nobody without gain can be served."""
    served = Candidates.of(problem, terms, cut_index, links)
    options, clients = served.cost.shape
    stage_s = np.zeros((3, options + 1, clients))
    stage_s[:, 1:] = served.stage_s
    arrival = np.zeros((options + 1, clients))
    arrival[1:] = served.arrival
    cost = np.empty((options + 1, clients))
    cost[0] = sitting_out_cost(problem, int(terms.cuts[cut_index]))
    cost[1:] = np.where(problem.reachable, served.cost, np.inf)
    return StageProblem(
        stage_s, arrival, cost, float(terms.server_s[cut_index]), least_waits(served.stage_s, problem), _no_choice
    )


def least_waits(stage_s: Floats, problem: Problem) -> Floats:
    """[3] deadlines no allocation can beat: `min_participants` clients must be served, so the last of the fastest is."""
    if problem.min_participants == 0:
        return np.zeros(3)
    fastest = np.where(problem.reachable, stage_s, np.inf).min(axis=1)
    return np.partition(fastest, problem.min_participants - 1, axis=1)[:, problem.min_participants - 1]


def _with_allocation(stages: StageProblem, problem: Problem) -> StageProblem:
    def choose(priced: Floats) -> tuple[NDArray[np.int64], float] | None:
        return allocate(priced, problem.round.radio.num_rbs, problem.min_participants)

    return StageProblem(
        stages.stage_s, stages.arrival, stages.cost, stages.server_s, stages.least_waits, choose
    )


def _best_of_all(problem: Problem, stages: StageProblem, allocations: NDArray[np.int64]) -> Floats:
    """Try every allocation in one go: one look-up in the tables, then sums and maxima over clients."""
    options, clients = stages.cost.shape
    table = np.concatenate([stages.stage_s, stages.arrival[None], stages.cost[None]]).reshape(5, options * clients)
    chosen = table[:, allocations * clients + np.arange(clients)]  # [5, L, N]
    delay = chosen[:3].max(axis=2).sum(axis=0) + stages.server_s * chosen[3].sum(axis=1)
    value = problem.delay_penalty.value(delay) + chosen[4].sum(axis=1)
    return allocations[int(np.argmin(value))].astype(float)


def _no_choice(priced: Floats) -> tuple[NDArray[np.int64], float] | None:
    raise AssertionError("these stages are only looked up")
