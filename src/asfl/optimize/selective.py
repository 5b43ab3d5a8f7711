"""OOE-BCD where blocks differ: counts as if everybody could have its best blocks, then whose each block is, in turn
with plan and powers until nothing moves. Once blocks are assigned, no step makes the objective worse.
"""

from collections.abc import Callable
from dataclasses import replace

from asfl.optimize.assign import best_blocks
from asfl.optimize.plans import terms_of
from asfl.optimize.problem import Problem
from asfl.optimize.solution import Solution

TURNS = 2


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
