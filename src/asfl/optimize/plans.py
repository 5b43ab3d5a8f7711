"""What is decided besides blocks and power: the cut; beyond the paper, what is averaged, the bits, cuts of one's own.

A *plan* is the same for all clients: a cut, how deep client sides are averaged, how many bits cross. From there each
client may go its own way: with bits of its own, and, in a round that averages whatever clients hold, with a cut of its
own.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from asfl.config.shapes import Ints
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.decision import ALLOWED_BITS, Decision
from asfl.costs.round import Round
from asfl.optimize.problem import BeyondLearning, Problem
from asfl.optimize.search import Choices, search_deadlines
from asfl.optimize.terms import Candidates, CutTerms, Links

TOLERANCE = 1e-6
"""Of the search for cuts and bits of one's own, relative."""


def plan_terms(problem: Problem, cuts: Sequence[int] | None = None) -> CutTerms:
    """The terms of all plans that the problem's switches allow: cut × depth of the average × bits."""
    round_, switches = problem.round, problem.switches
    allowed = round_.profile.cuts if cuts is None else np.asarray(sorted(cuts))
    if not (switches.averages or switches.quant):
        return CutTerms.of(round_, allowed)
    depths = _depths(problem)
    places = [(cut, depth) for cut in allowed for depth in depths[cut]]
    cut, depth = np.repeat(np.array(places), len(_bits(problem)), axis=0).T
    return _terms(problem, cut, depth, np.tile(_bits(problem), len(places)))


def whole_or_none(terms: CutTerms) -> Ints:
    """Rows of the plans in which client sides are averaged as a whole, or not at all."""
    return np.flatnonzero((terms.synced == 0) | (terms.synced == terms.cuts))


def terms_of(problem: Problem, decision: Decision) -> CutTerms:
    """One row: the terms of what is decided for each client."""
    cut = np.broadcast_to(decision.cut, problem.round.num_clients)
    bits = np.broadcast_to(decision.bits, cut.shape)
    return _terms(problem, cut, np.minimum(decision.synced, cut), bits).mixed(np.arange(len(cut)))


def own_terms(problem: Problem, decision: Decision) -> CutTerms | None:
    """What each client may choose for itself when this is decided, one row each; None: nothing.

    Where all that clients hold is averaged at the end of the round, a layer may lie with some of them, and with the
    server for others. The server then starts from the values that all share, so layers on which clients differ stay
    with the clients.
    """
    switches = problem.switches
    deepest = int(np.max(decision.cut))
    cuts = np.array([deepest])
    if switches.hetero and decision.synced == deepest:
        holdings = problem.round.holdings
        apart = 0 if holdings is None else int(np.max(np.flatnonzero(holdings.apart) + 1, initial=0))
        if apart <= deepest:
            cuts = problem.round.profile.cuts
            cuts = cuts[cuts >= apart]
    if len(cuts) * len(_bits(problem)) == 1:
        return None
    cut, bits = (axis.ravel() for axis in np.meshgrid(cuts, _bits(problem), indexing="ij"))
    return _terms(problem, cut, np.minimum(decision.synced, cut) if len(cuts) == 1 else cut, bits)


def best_own(problem: Problem, own: CutTerms, here: CutTerms, decision: Decision) -> Decision | None:
    """The block of cuts and bits of one's own; None: nothing is better. Exact up to `TOLERANCE`."""
    served = np.flatnonzero(decision.scheduled)
    if not served.size:
        return None
    links = Links.at(problem.round, decision.rb_count, decision.tx_power_w)
    now, rows = (Candidates.of(problem, terms, links, problem.energy_penalty) for terms in (here, own))
    # Rows become candidates of a single plan, the first of which is where each client is.
    server_s = max(float(own.server_s.max()), float(here.server_s[0]))
    load_s = np.concatenate([now.load[None] * here.server_s, links.arrival * own.server_s[:, None]])
    candidates = Candidates(
        np.concatenate([now.stage_s, rows.stage_s], axis=1)[:, None],
        load_s / server_s if server_s > 0 else load_s,
        np.concatenate([now.cost, rows.cost])[None],
    ).among(served)
    fastest = candidates.stage_s.min(axis=2).max(axis=2).T
    choices = Choices(candidates, np.array([server_s]), fastest, supply=None, once=np.zeros(1))
    found = search_deadlines(choices, problem.delay_penalty, np.zeros(len(served), dtype=np.int64), TOLERANCE)
    if found is None or not found.pick.any():
        return None
    cut, bits = (np.broadcast_to(now, decision.rb_count.shape).copy() for now in (decision.cut, decision.bits))
    moved = found.pick > 0
    cut[served[moved]], bits[served[moved]] = own.cuts[found.pick[moved] - 1], own.bits[found.pick[moved] - 1]
    deepest = int(cut[served].max())
    cut[~decision.scheduled] = deepest
    bits[~decision.scheduled] = bits[served].max()
    averaged = decision.synced == np.max(decision.cut)
    return replace(decision, cut=_one(cut), bits=_one(bits), synced=deepest if averaged else decision.synced)


def _one(values: Ints) -> int | Ints:
    """A single number where all clients have the same."""
    return int(values[0]) if (values == values[0]).all() else values


def _terms(problem: Problem, cut: Ints, depth: Ints, bits: Ints) -> CutTerms:
    return _remembered(problem.round, problem.learning.beyond, cut.tobytes(), depth.tobytes(), bits.tobytes())


@lru_cache(maxsize=256)  # the search comes back to the same plans many times in a round
def _remembered(round_: Round, beyond: BeyondLearning | None, *plans: bytes) -> CutTerms:
    cut, depth, bits = (np.frombuffer(numbers, np.int64) for numbers in plans)
    lost = np.zeros(len(bits)) if beyond is None else 1.0 - beyond.worth(bits)
    return CutTerms.of_plans(round_, cut, depth, bits, lost)


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
    cuts = range(problem.round.profile.num_layers + 1)
    if not problem.switches.sync:
        return [[0, cut] if problem.switches.hetero else [0] for cut in cuts]
    worth, bits = problem.standing_debt.tolist(), problem.round.profile.client_param_bits.tolist()
    corners = [[0]]
    for depth in cuts[1:]:
        hull = corners[-1].copy()
        while len(hull) > 1 and _slope(worth, bits, *hull[-2:]) <= _slope(worth, bits, hull[-1], depth):
            hull.pop()
        corners.append([*hull, depth])
    return corners


def _slope(worth: list[float], bits: list[float], first: int, second: int) -> float:
    gained, paid = worth[second] - worth[first], bits[second] - bits[first]
    return gained / paid if paid > 0 else np.inf
