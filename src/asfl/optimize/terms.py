"""The costs of a round taken apart by what a decision changes, so that solvers see thousands of candidates at once.

The formulas are those that charge a round (`asfl.costs.modelled`); here they are only tried for many links and plans.

A *plan* is the same for all clients: a cut; beyond the paper, how deep client sides are averaged, and how many bits
cross. From there each client may choose bits of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.config.shapes import Float, Floats, Int, Ints
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.modelled import (
    STEP_ROWS,
    ExchangeRules,
    Links,
    Plan,
    Workload,
    arrived_only,
    before_outage,
    energy,
    joules,
    seconds,
    server_seconds,
    stages,
    times,
    workload,
)
from asfl.costs.round import ALLOWED_BITS, Decision, Round
from asfl.costs.timeline import PARTS, SERVER
from asfl.optimize.problem import Penalty, Problem

CELLS = 60_000
"""Plans are taken in parts of about so many candidates: what is needed on the way then stays in the cache."""
MOST = float(np.finfo(float).max)
"""No round waits for ever."""


@dataclass(frozen=True, eq=False)
class CutTerms:
    """What depends only on the cut; beyond the paper, on averaging and bits too. One row for each such plan."""

    cuts: Int[Ints, "cuts"]
    synced: Int[Ints, "cuts"]
    """How many client-side layers are averaged at the end of the round."""
    bits: Int[Ints, "cuts"]
    """Of every value that crosses the link."""
    lost_precision: Float[Floats, "cuts 1 #clients"]
    """Share of an update that its bits cost: 0 at 32."""
    work: Workload
    """Each [C, 1, 1] or [C, 1, N]; the axis between is for links."""
    resplit_wait_s: Float[Floats, "cuts"]
    """The round waits until all clients that can be reached have new layers, with a resource block or without."""
    server_s: Float[Floats, "cuts"]
    """Server forward and backward for one client."""

    @classmethod
    def of(cls, round_: Round, cuts: Ints, synced: Ints, bits: Ints, lost_precision: Floats) -> "CutTerms":
        """Of plans: cut, depth of the average, bits and what these bits cost, [C] each."""
        rows = (slice(None), None, None)
        plans = Plan(cuts[rows], synced[rows], bits[rows], np.asarray(round_.charged_samples))
        work = workload(round_, ExchangeRules(reports=round_.reports), plans)
        received_s = work.grown_bits * round_.receiving_s_per_bit
        return cls(
            cuts=cuts,
            synced=synced,
            bits=bits,
            lost_precision=lost_precision[:, None, None],
            work=work,
            resplit_wait_s=np.minimum(received_s.max(axis=(1, 2)), round_.outage_s),
            server_s=server_seconds(round_, work)[:, 0, 0],
        )

    def only(self, *index: int) -> "CutTerms":
        """The terms of some of the plans."""
        rows = list(index)
        work = Workload(*(of_plans[rows] for of_plans in self.work))
        cuts, synced, bits, lost = self.cuts[rows], self.synced[rows], self.bits[rows], self.lost_precision[rows]
        return CutTerms(cuts, synced, bits, lost, work, self.resplit_wait_s[rows], self.server_s[rows])

    def by_client(self, rows: Ints) -> "CutTerms":
        """One row in which client n has the bits of row rows[n]; all rows have the same cut and average."""

        def chosen(values: Floats) -> Floats:
            clients = np.arange(len(rows))
            return np.asarray(np.broadcast_to(values, (len(values), 1, len(rows)))[rows, 0, clients][None, None])

        terms = self.only(int(rows.max()))
        work, lost = Workload(*map(chosen, self.work)), chosen(self.lost_precision)
        return CutTerms(terms.cuts, terms.synced, terms.bits, lost, work, terms.resplit_wait_s, terms.server_s)


@dataclass(frozen=True, eq=False)
class Candidates:
    """What each candidate would add to the round at each cut."""

    stage_s: Float[Floats, "3 cuts candidates clients"]
    """The client's time in the three stages; the round waits for the largest in each."""
    load: Float[Floats, "candidates clients"]
    """1 − packet error rate: how likely the server works for it."""
    cost: Float[Floats, "cuts candidates clients"]
    """Energy penalty + V · error cost + participation; infinite: not possible."""
    parts: Float[Floats, "parts cuts candidates clients"] | None = None
    """Where rounds overlap: the seconds of each part of a timeline, for each client."""

    @classmethod
    def of(
        cls, problem: Problem, terms: CutTerms, links: Links, energy_penalty: Penalty, *, sitting_out: bool = False
    ) -> "Candidates":
        """One candidate per link [O, N]; with `sitting_out`, one more, the first, is to have no resource block."""
        costs, round_, first = problem.objective, problem.round, int(sitting_out)
        shape = (len(terms.cuts), first + len(links.arrival), round_.num_clients)
        stage_s, load, cost = np.zeros((3, *shape)), np.zeros(shape[1:]), np.empty(shape)
        stage_s[0], load[first:] = terms.resplit_wait_s[:, None, None], links.arrival
        takes, plans = (np.multiply if links.alive else times), max(1, CELLS // load.size)
        for some in (slice(index, index + plans) for index in range(0, shape[0], plans)):
            work, of_served = Workload(*(of_plans[some] for of_plans in terms.work)), stage_s[:, some, first:]
            steps = seconds(work, links)
            of_stages = stages(steps)
            np.maximum(of_served[0], of_stages[0], out=of_served[0])
            of_served[1] = of_stages[1]
            of_served[2] = takes(links.arrival, of_stages[2])
            spent = arrived_only(joules(round_, work, links, steps), links, links.arrival)
            served = energy_penalty.value(energy(spent))
            served += costs.error_cost(terms.cuts[some], links.packet_error_rate)
            if terms.lost_precision.any():
                served += costs.loss_weight * (terms.lost_precision[some] * links.arrival)
            served += costs.serving_cost
            if not links.alive or round_.outage_s < np.inf:  # no client is scheduled that can't be done in time
                _, _, possible = before_outage(of_stages, min(round_.outage_s, MOST))
                served = np.where(possible & problem.reachable if sitting_out else possible, served, np.inf)
            cost[some, first:] = served
        if sitting_out:
            cost[:, 0] = sitting_out_cost(problem, terms.cuts, energy_penalty)
        if round_.equations.timing == "stages":
            return cls(stage_s, load, cost)
        parts = np.zeros((len(PARTS), *shape))
        for row, of_part in zip(STEP_ROWS, arrived_only(seconds(terms.work, links), links, links.arrival), strict=True):
            parts[row, :, first:] = of_part
        parts[SERVER, :, first:] = terms.server_s[:, None, None] * links.arrival
        np.maximum(parts[0], terms.resplit_wait_s[:, None, None], out=parts[0])
        return cls(stage_s, load, cost, parts)


def one_if_idle(rb_count: Floats) -> Floats:
    """Counts for arithmetic over all clients: idle ones stand in with one block and are left out afterwards."""
    return np.where(rb_count > 0, rb_count, 1.0)


def sitting_out_cost(problem: Problem, cuts: NDArray[np.int64], energy_penalty: Penalty) -> Floats:
    """[C, N] what a client adds that gets no resource block: no energy, error rate 1."""
    lost = problem.objective.error_cost(cuts, np.ones(problem.round.num_clients))
    return energy_penalty.value(np.zeros(problem.round.num_clients)) + lost + problem.objective.sitting_out_cost


# ---------------------------------------------------------------------- plans
def plan_terms(problem: Problem, cuts: Sequence[int] | None = None) -> CutTerms:
    """The terms of all plans that the problem's switches allow: cut × depth of the average × bits."""
    depths, bits = _depths(problem), allowed_bits(problem)
    allowed = problem.round.profile.cuts if cuts is None else sorted(cuts)
    places = [(cut, depth) for cut in allowed for depth in depths[cut]]
    cut, depth = np.repeat(np.array(places), len(bits), axis=0).T
    return _of_plans(problem, cut, depth, np.tile(bits, len(places)))


def plan_at(terms: CutTerms, index: int, rb_count: Floats, tx_power_w: Floats) -> Decision:
    """The decision for the plan of a row."""
    return Decision(int(terms.cuts[index]), rb_count, tx_power_w, int(terms.bits[index]), int(terms.synced[index]))


def terms_of(problem: Problem, decision: Decision) -> CutTerms:
    """One row: the terms of what is decided for each client."""
    terms, rows = terms_by_bits(problem, decision)
    return terms.by_client(rows)


def terms_by_bits(problem: Problem, decision: Decision) -> tuple[CutTerms, Ints]:
    """A row for each number of bits at the decision's cut and average, and the row [N] of each client."""
    here = np.broadcast_to(decision.bits, decision.rb_count.shape)
    bits = np.union1d(allowed_bits(problem), here)[::-1]
    cut, synced = np.full_like(bits, decision.cut), np.full_like(bits, decision.synced)
    return _of_plans(problem, cut, synced, bits), (bits[:, None] == here).argmax(axis=0)


def _of_plans(problem: Problem, cut: Ints, depth: Ints, bits: Ints) -> CutTerms:
    beyond = problem.learning.beyond
    lost = np.zeros(len(bits)) if beyond is None else 1.0 - beyond.worth(bits)
    return CutTerms.of(problem.round, cut, depth, bits, lost)


def allowed_bits(problem: Problem) -> Ints:
    """How many bits a value may cross with."""
    known = problem.switches.quant and problem.learning.beyond is not None
    return np.array(ALLOWED_BITS if known else (BITS_PER_VALUE,))


def _depths(problem: Problem) -> list[list[int]]:
    """[M+1] how deep client sides may be averaged, by cut: not at all, as a whole, and in between where it is worth its
    bits.

    What an average is worth, the debt of its layers, against the bits that it takes: only the corners of the concave
    hull can be best at some price of a bit. (With several clients the price rises with the bits, as the slowest sender
    changes, so a depth inside the hull may be better by what the price differs; that gap stays.)
    """
    if not problem.switches.sync:
        return [[0]] * (problem.round.profile.num_layers + 1)
    debt, bits = problem.objective.standing_debt, problem.round.profile.client_param_bits.tolist()
    worth = np.zeros(len(bits)).tolist() if debt is None else debt.tolist()
    corners = [[0]]
    for depth in range(1, problem.round.profile.num_layers + 1):
        hull = corners[-1].copy()
        while len(hull) > 1 and _slope(worth, bits, *hull[-2:]) <= _slope(worth, bits, hull[-1], depth):
            hull.pop()
        corners.append([*hull, depth])
    return corners


def _slope(worth: list[float], bits: list[float], first: int, second: int) -> float:
    gained, paid = worth[second] - worth[first], bits[second] - bits[first]
    return gained / paid if paid > 0 else np.inf
