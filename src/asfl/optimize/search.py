"""The deadline search: by NumPy or, with the extra `asfl[fast]`, compiled. Both give the same bits, which is tested.

Loading the compiled one takes a few tenths of a second, and compiling it, the first time on a machine, some seconds. So
it waits until NumPy has searched for about as long. A controller that can't pause calls `compile_search` first.
"""

from functools import lru_cache
from time import perf_counter
from types import ModuleType

import numpy as np

from asfl.optimize.deadlines import Choices, Pick, SearchResult, search_plainly
from asfl.optimize.penalties import DelayPenalty, HardBudget
from asfl.optimize.terms import Candidates

PAYS_AFTER_S = 0.25
"""When searches by NumPy have taken so long, in this process, the compiled one is loaded."""
_searched_s = 0.0


def search_deadlines(
    choices: Choices,
    delay: DelayPenalty,
    start: Pick | None,
    tolerance: float,
    max_boxes: int = 20_000,
    least_scale: float = 1.0,
    at_most: float = np.inf,
) -> SearchResult | None:
    """Best choice over all cuts, starting from a known choice at the first cut if there is one.

    `tolerance` is relative to the value found, or to `least_scale` if that is larger. None if there is no choice at
    all, or none below `at_most` by more than the tolerance.
    """
    global _searched_s
    if _searched_s >= PAYS_AFTER_S and (compiled := _compiled()) is not None and compiled.covers(choices):
        found: SearchResult | None
        found = compiled.search_compiled(choices, delay, start, tolerance, max_boxes, least_scale, at_most)
        return found
    started = perf_counter()
    found = search_plainly(choices, delay, start, tolerance, max_boxes, least_scale, at_most)
    _searched_s += perf_counter() - started
    return found


def compile_search() -> bool:
    """Compile the search now and use it from now on; False if Numba isn't installed."""
    global _searched_s
    if _compiled() is None:
        return False
    _searched_s = PAYS_AFTER_S
    nothing = Candidates(np.zeros((3, 1, 1, 1)), np.zeros((1, 1)), np.zeros((1, 1, 1)))
    choices = Choices(nothing, np.zeros(1), np.zeros((1, 3)), None, np.zeros(1))
    return search_deadlines(choices, HardBudget(1.0, 1.0, 1.0), None, 1.0) is not None


@lru_cache(maxsize=1)
def _compiled() -> ModuleType | None:
    try:
        from asfl.optimize import compiled
    except ImportError:  # without the extra
        return None
    return compiled
