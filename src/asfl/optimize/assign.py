"""Whose each resource block is, where blocks differ: for a given plan and given powers.

The paper's problem (49) as it is meant, with N·K binaries. Small rounds are enumerated, which is exact. In larger ones
the counts come first, as if every client could have its best blocks (`best_rb_counts`): a bound from below, since
blocks are given twice there. Then an assignment of these counts with the largest sum of rates, and from there single
blocks move or change places as long as that helps. `docs/decision.md` states the gap that is left.

`with_blocks` does this in turn with plan and powers until nothing moves. Once blocks are assigned, no step makes the
objective worse.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import Links
from asfl.costs.round import Decision, Round
from asfl.optimize.problem import Problem, Solution
from asfl.optimize.terms import Candidates, CutTerms, sitting_out_cost, terms_of
from asfl.radio import link

Floats = NDArray[np.float64]
Owners = NDArray[np.int64]
"""[..., K] which client has each block; N: none."""

ENUMERABLE = 20_000
"""Up to this many assignments all are tried."""
PASSES = 8
"""Rounds of moves, at most."""
MOVES = range(40, 600)
"""Moves looked at in each, those of the slowest clients first: fewer in larger rounds."""
CELLS = 100_000
"""As many as this divided by clients times blocks."""
TURNS = 2


def best_blocks(problem: Problem, here: CutTerms, decision: Decision) -> NDArray[np.bool_]:
    """[N, K] an assignment that minimises the block objective for the decision's powers.

    Not worse than the decision's own, if it has one; else it begins with as many blocks as the decision counts.
    """
    clients, blocks = problem.round.num_clients, problem.round.radio.num_rbs
    if (clients + 1) ** blocks <= ENUMERABLE:
        values, _ = valued(problem, here, decision.tx_power_w, every := _every_assignment(clients, blocks))
        return _mask(every[values.argmin()], clients)
    given = assigned(problem.round, decision).blocks
    assert given is not None
    owners = np.where(given.any(axis=0), given.argmax(axis=0), clients)
    values, slowest = valued(problem, here, decision.tx_power_w, owners[None])
    value, slow = float(values[0]), slowest[:, 0]
    for _ in range(PASSES):
        moves = _moves(owners, clients, slow)
        values, slowest = valued(problem, here, decision.tx_power_w, moves)
        best = int(values.argmin())
        if not values[best] < value - 1e-9 * max(1.0, abs(value)):
            break
        owners, value, slow = moves[best], float(values[best]), slowest[:, best]
    return _mask(owners, clients)


@lru_cache(maxsize=4)
def _every_assignment(clients: int, blocks: int) -> Owners:
    return np.array(list(product(range(clients + 1), repeat=blocks)), dtype=np.int64)


def assigned(round_: Round, decision: Decision) -> Decision:
    """The decision with an assignment of its counts that has the largest sum of rates, unless it has one."""
    if decision.blocks is not None:
        return decision
    from scipy.optimize import linear_sum_assignment

    assert round_.block_gain is not None
    counts = decision.rb_count.astype(int)
    wishing = np.repeat(np.arange(len(counts)), counts)
    snr = decision.tx_power_w[:, None] * round_.block_gain
    noise_w = np.maximum(counts, 1)[:, None] * round_.radio.rb_bandwidth_hz * round_.radio.noise_psd_w_per_hz
    rows, columns = linear_sum_assignment(np.log1p(snr / noise_w)[wishing], maximize=True)
    mask = np.zeros(round_.block_gain.shape, dtype=bool)
    mask[wishing[rows], columns] = True
    return replace(decision, blocks=mask)


def _mask(owners: Owners, clients: int) -> NDArray[np.bool_]:
    return np.asarray(np.arange(clients)[:, None] == owners)


def valued(problem: Problem, here: CutTerms, tx_power_w: Floats, owners: Owners) -> tuple[Floats, Owners]:
    """[G] the block objective of assignments [G, K], infinite where fewer are served than must be; and [3, G] the
    client that each stage waits for.
    """
    masks = np.arange(problem.round.num_clients)[:, None] == owners[:, None]
    counts = masks.sum(axis=2).astype(float)
    served = counts > 0
    links = _links(problem.round, masks, np.maximum(counts, 1.0), tx_power_w)
    candidates = Candidates.of(problem, here, links, problem.objective.energy_penalty)
    slowest = np.where(served, candidates.stage_s[:, 0], -1.0).argmax(axis=2)
    waits = np.where(served, candidates.stage_s[:, 0], 0.0).max(axis=2)
    waits_s = np.maximum(waits[0], here.resplit_wait_s[0]) + waits[1] + waits[2]
    load_s = here.server_s[0] * np.where(served, candidates.load, 0.0).sum(axis=1)
    idle = sitting_out_cost(problem, here.cuts, problem.objective.energy_penalty)[0]
    cost = np.where(served, np.where(problem.reachable, candidates.cost[0], np.inf), idle).sum(axis=1)
    enough = served.sum(axis=1) >= problem.min_participants
    return np.where(enough, problem.objective.delay_penalty.value(waits_s + load_s) + cost, np.inf), slowest


def _links(round_: Round, masks: NDArray[np.bool_], counts: Floats, tx_power_w: Floats) -> Links:
    """[G, N] of masks [G, N, K]: what `Round` says of one assignment, for many at once."""
    assert round_.block_gain is not None
    radio = round_.radio
    # What each block carries [counts, K, N] if its owner has 1, 2, … blocks, then the sums over those it has.
    number = np.arange(1, int(counts.max()) + 1, dtype=float)[:, None, None]
    part_w = tx_power_w / (number if round_.equations.uplink_power == "shared" else np.ones_like(number))
    one, gain = np.ones((len(number), 1, 1)), round_.block_gain.T
    carried = link.uplink_rate_bps(one, part_w, gain, radio, fitted=round_.fitted_link)
    of_owner = carried[counts.astype(int) - 1, :, np.arange(len(tx_power_w))]
    rate = np.einsum("gnk,gnk->gn", of_owner, masks.astype(float))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_inverse = np.where(masks, 1.0 / round_.block_gain, 0.0).sum(axis=2) / counts
        s_per_bit = np.where(rate > 0, 1.0 / rate, np.inf)
        gains = np.where(mean_inverse > 0, 1.0 / mean_inverse, round_.channel_gain)
    error_rate = (
        link.packet_error_rate_known(counts, tx_power_w, gains, radio)
        if round_.gain_is_known
        else link.packet_error_rate_rayleigh(number[:, 0], tx_power_w, round_.path_gain, radio)[
            counts.astype(int) - 1, np.arange(len(tx_power_w))
        ]
    )
    one_block = Links.of(round_, np.ones(len(tx_power_w)), tx_power_w)
    return replace(
        one_block,
        packet_error_rate=error_rate,
        uplink_rate_bps=rate,
        arrival=1.0 - error_rate,
        uplink_s_per_bit=s_per_bit,
        alive=one_block.alive and bool(rate.min() > 0),
    )


def _moves(owners: Owners, clients: int, slowest: Owners) -> Owners:
    """[G, K] every block to another client or none, and every two blocks exchanged; the slowest clients' first."""
    blocks = len(owners)
    block, new = (axis.ravel() for axis in np.meshgrid(np.arange(blocks), np.arange(clients + 1), indexing="ij"))
    one, two = np.triu_indices(blocks, 1)
    # The blocks of each move, twice the same if only one moves, and who has them afterwards.
    first, second = np.concatenate([block, one]), np.concatenate([block, two])
    gets_first, gets_second = np.concatenate([new, owners[two]]), np.concatenate([new, owners[one]])
    chosen = np.flatnonzero(gets_first != owners[first])
    most = int(np.clip(CELLS // (clients * blocks), MOVES.start, MOVES.stop))
    if len(chosen) > most:
        slow = np.zeros(clients + 1, dtype=bool)
        slow[slowest] = True
        touches = slow[gets_first[chosen]] != slow[owners[first[chosen]]]
        chosen = chosen[np.argsort(~touches, kind="stable")[:most]]
    moves, row = np.repeat(owners[None], len(chosen), axis=0), np.arange(len(chosen))
    moves[row, first[chosen]], moves[row, second[chosen]] = gets_first[chosen], gets_second[chosen]
    return moves


def with_blocks(problem: Problem, first: Solution, solve: Callable[..., Solution]) -> Solution:
    """From a solution that only counts blocks to one that assigns them; `solve` is OOE-BCD with given counts."""
    decision = replace(first.decision, tx_power_w=first.considered_power_w)
    best: Solution | None = None
    for _ in range(TURNS):
        blocks = best_blocks(problem, terms_of(problem, decision), decision)
        if decision.blocks is not None and (blocks == decision.blocks).all():
            break
        here = replace(problem, round=replace(problem.round, blocks=blocks))
        decision = replace(decision, blocks=blocks, rb_count=blocks.sum(axis=1).astype(float))
        start = replace(best or first, decision=decision, considered_power_w=decision.tx_power_w)
        solved = solve(here, rb_count=decision.rb_count, start=start)
        solved = replace(solved, decision=replace(solved.decision, blocks=blocks))
        if best is not None and not solved.rank < best.rank:
            break
        best, decision = solved, replace(solved.decision, tx_power_w=solved.considered_power_w)
    assert best is not None
    return replace(best, iterations=first.iterations + best.iterations, trace=(*first.trace, *best.trace))
