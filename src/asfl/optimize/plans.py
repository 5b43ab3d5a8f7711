"""What is decided besides blocks and power: the cut; beyond the paper, what is averaged, and bits.

A *plan* is the same for all clients: a cut, how deep client sides are averaged, how many bits cross. From there each
client may choose bits of its own.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from asfl.config.shapes import Floats, Ints
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.decision import ALLOWED_BITS, Decision
from asfl.optimize.problem import Problem
from asfl.optimize.search import Choices, search_deadlines
from asfl.optimize.terms import Candidates, CutTerms, Links

TOLERANCE = 1e-6
"""Of the search for each client's own bits, relative."""


def plan_terms(problem: Problem, cuts: Sequence[int] | None = None) -> CutTerms:
    """The terms of all plans that the problem's switches allow: cut × depth of the average × bits."""
    round_, switches = problem.round, problem.switches
    allowed = round_.profile.cuts if cuts is None else np.asarray(sorted(cuts))
    if not (switches.sync or switches.quant):
        return CutTerms.of(round_, allowed)
    depths, bits = _depths(problem), _bits(problem)
    places = [(cut, depth) for cut in allowed for depth in depths[cut]]
    cut, depth = np.repeat(np.array(places), len(bits), axis=0).T
    return _terms(problem, cut, depth, np.tile(bits, len(places)))


def whole_or_none(terms: CutTerms) -> Ints:
    """Rows of the plans in which client sides are averaged as a whole, or not at all."""
    return np.flatnonzero((terms.synced == 0) | (terms.synced == terms.cuts))


def plan_at(terms: CutTerms, index: int, rb_count: Floats, tx_power_w: Floats) -> Decision:
    """The decision for the plan of a row."""
    return Decision(int(terms.cuts[index]), rb_count, tx_power_w, int(terms.bits[index]), int(terms.synced[index]))


def terms_of(problem: Problem, decision: Decision) -> CutTerms:
    """One row: the terms of what is decided for each client."""
    terms, rows = _own_bits(problem, decision)
    return terms.by_client(rows)


def best_bits(problem: Problem, links: Links, decision: Decision) -> Decision | None:
    """The block of each client's own bits; None: nothing is better. Exact up to `TOLERANCE`."""
    served = np.flatnonzero(decision.scheduled)
    if len(_bits(problem)) == 1 or not served.size:
        return None
    terms, now = _own_bits(problem, decision)
    of_rows = Candidates.of(problem, terms, links, problem.energy_penalty)
    # Rows become candidates of a single plan.
    load = np.broadcast_to(of_rows.load, of_rows.cost.shape)
    candidates = Candidates(of_rows.stage_s[:, None], load, of_rows.cost[None]).among(served)
    fastest = candidates.stage_s.min(axis=2).max(axis=2).T
    choices = Choices(candidates, terms.server_s[:1], fastest, supply=None, once=np.zeros(1))
    found = search_deadlines(choices, problem.delay_penalty, now[served], TOLERANCE)
    if found is None or (found.pick == now[served]).all():
        return None
    bits = np.full(len(now), terms.bits[found.pick].max())
    bits[served] = terms.bits[found.pick]
    return replace(decision, bits=int(bits[0]) if (bits == bits[0]).all() else bits)


def _own_bits(problem: Problem, decision: Decision) -> tuple[CutTerms, Ints]:
    """A row for each number of bits at the decision's cut and average, and the row [N] of each client."""
    here = np.broadcast_to(decision.bits, decision.rb_count.shape)
    bits = np.union1d(_bits(problem), here)[::-1]
    cut, synced = np.full_like(bits, decision.cut), np.full_like(bits, decision.synced)
    return _terms(problem, cut, synced, bits), (bits[:, None] == here).argmax(axis=0)


def _terms(problem: Problem, cut: Ints, depth: Ints, bits: Ints) -> CutTerms:
    beyond = problem.learning.beyond
    lost = np.zeros(len(bits)) if beyond is None else 1.0 - beyond.worth(bits)
    return CutTerms.of_plans(problem.round, cut, depth, bits, lost)


def _bits(problem: Problem) -> Ints:
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
    worth, bits = problem.standing_debt.tolist(), problem.round.profile.client_param_bits.tolist()
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
