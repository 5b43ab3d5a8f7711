"""What is decided for all clients alike: the cut; beyond the paper, whether client sides are averaged, and the bits."""

from collections.abc import Sequence

import numpy as np

from asfl.config.units import BITS_PER_VALUE
from asfl.costs.decision import ALLOWED_BITS
from asfl.optimize.problem import Problem
from asfl.optimize.terms import CutTerms


def plan_terms(problem: Problem, cuts: Sequence[int] | None = None) -> CutTerms:
    """The terms of all plans that the problem's switches allow: cut × averaged or not × bits.

    A client side is averaged as a whole or not at all.
    """
    round_, switches, beyond = problem.round, problem.switches, problem.learning.beyond
    allowed = round_.profile.cuts if cuts is None else np.asarray(sorted(cuts))
    if not (switches.sync or switches.quant):
        return CutTerms.of(round_, allowed)
    averaged = (False, True) if switches.sync else (False,)
    bits = ALLOWED_BITS if switches.quant and beyond is not None else (BITS_PER_VALUE,)
    lost = [0.0 if beyond is None else beyond.lost_precision(each) for each in bits]
    cut, deep, precision = (axis.ravel() for axis in np.meshgrid(allowed, averaged, range(len(bits)), indexing="ij"))
    return CutTerms.of_plans(round_, cut, np.where(deep, cut, 0), np.array(bits)[precision], np.array(lost)[precision])
