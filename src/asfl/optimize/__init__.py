"""The decision of a round: channel state in; cut, resource blocks and power out.

problem -> ooe_bcd (Algorithm 2 of the paper) or solve_jointly (the yardstick; both in `bcd`) -> Solution
"""

from asfl.optimize.bcd import ooe_bcd, solve, solve_jointly
from asfl.optimize.problem import Learning, Problem, Queues, Rules, Solution, next_queues
from asfl.optimize.search import compile_search

__all__ = [
    "Learning",
    "Problem",
    "Queues",
    "Rules",
    "Solution",
    "compile_search",
    "next_queues",
    "ooe_bcd",
    "solve",
    "solve_jointly",
]
