"""The paper's bounds of one run beside what was measured, as far as records tell (see `asfl.results.theory`).

T_max and E_max of Assumption 4 are taken from the run itself: the dearest round there was. So the bounds are those of
hindsight, the tightest the theorems can give.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.results import theory
from asfl.results.curves import RunFolder
from asfl.results.summary import Excess

Floats = NDArray[np.float64]
EMPTY = "says nothing: it is above the worst round"


@dataclass(frozen=True)
class Check:
    """One bound and the number it bounds."""

    what: str
    source: str
    """Lemma or theorem."""
    measured: float
    bound: float
    verdict: str


def why_not(run: RunFolder) -> str:
    """Why the bounds of a run can't be told; empty if they can."""
    if not run.records:
        return "No round has been played yet."
    own = Excess.of(run)
    if not np.isfinite(own.excess).all():
        return "A round met a dead link and took forever: no bound holds."
    if not own.feeds_the_queues:
        return "Its queues follow the ASFL decision it borrows from, whose costs aren't recorded."
    return ""


def queue_bounds(run: RunFolder) -> tuple[float, float]:
    """Lemma 4: the most the delay queue and any energy queue can be after this many rounds; NaN where unknown."""
    if why_not(run):
        return math.nan, math.nan
    own = Excess.of(run)
    most_delay, most_energy = own.excess[:, 0].max(), own.excess[:, 1:].max()
    rounds, weights = len(own.excess), {"keep": own.keep, "add": own.add}
    return (
        theory.queue_bound(float(most_delay), rounds, **weights),
        theory.queue_bound(float(most_energy), rounds, **weights),
    )


def check_queues(run: RunFolder) -> list[Check]:
    """Lemma 4 and Theorem 2, printed and as it should be."""
    own, rules = Excess.of(run), run.manifest.config.decision
    rounds, worst_client = len(own.excess), int(own.excess[:, 1:].mean(axis=0).argmax()) + 1
    limits = queue_bounds(run)
    from_queues = theory.average_excess_bound(own.queues, keep=own.keep, add=own.add)
    found = []
    for name, columns, limit, one in (
        ("delay", slice(0, 1), limits[0], 0),
        (f"energy of client {worst_client - 1}, the worst", slice(1, None), limits[1], worst_client),
    ):
        queue = "delay queue" if one == 0 else "energy queue of any client"
        found.append(_holds(f"largest {queue}", "Lemma 4", float(own.queues[:, columns].max()), limit))
        mean, worst = float(own.excess[:, one].mean()), float(own.excess[:, columns].max())
        found.append(_holds(f"{name}: mean over budget", "from the queues, (44)", mean, float(from_queues[one]), worst))
        if rules.queue_rule == "printed":
            limit = theory.printed_violation_bound(_root(own.excess[:, columns]), rounds, rules.queue_memory)
            found.append(_holds(f"{name}: mean over budget", "Theorem 2, (42)", mean, limit, worst))
    return found


def check_gap(run: RunFolder, others: Sequence[RunFolder]) -> list[Check]:
    """Theorem 3 against each other run of the same world and seed: how much worse the objective is on average.

    C is the smallest with which Assumption 5 holds against that run; the corrected objective is the one on record.
    """
    rules, own = run.manifest.config.decision, Excess.of(run)
    if rules.equations != "corrected" or rules.queue_rule != "printed" or rules.penalty_weight <= 0:
        return []
    objective = np.array([record.discrepancy for record in run.records])
    found = []
    for other in others:
        theirs = Excess.of(other) if len(other.records) == len(run.records) else None
        if theirs is None or theirs.excess.shape != own.excess.shape or not np.isfinite(theirs.excess).all():
            continue
        other_objective = np.array([record.discrepancy for record in other.records])
        if not np.isfinite([objective, other_objective]).all():
            continue
        both = np.vstack([own.excess, theirs.excess])
        bounds = theory.ExcessBounds(
            delay=_root(both[:, :1]),
            energy=_root(both[:, 1:]),
            most_delay=float(both[:, 0].max()),
            most_energy=float(both[:, 1:].max()),
        )
        slack = theory.smallest_slack(
            own.queues, objective, theirs.excess, other_objective, bounds,
            penalty_weight=rules.penalty_weight, keep=own.keep, add=own.add,
        )  # fmt: skip
        constant = theory.printed_gap_constant(bounds, own.excess.shape[1] - 1, rules.queue_memory)
        limit = theory.performance_gap_bound(constant, slack, rules.penalty_weight)
        gap, worst = (float(value - other_objective.mean()) for value in (objective.mean(), objective.max()))
        found.append(_holds(f"objective above that of {other.scheme}", "Theorem 3, (46)", gap, limit, worst))
    return found


def _root(excess: Floats) -> float:
    """√G of Lemma 3 in hindsight: the largest |g|."""
    return float(np.abs(excess).max())


def _holds(what: str, source: str, measured: float, bound: float, worst: float = math.inf) -> Check:
    """`worst`: what can't be exceeded anyway."""
    if measured > bound * (1 + 1e-6) + 1e-9:
        verdict = "does not hold"
    else:
        verdict = f"holds, but {EMPTY}" if bound >= worst * (1 - 1e-9) else "holds"
    return Check(what, source, measured, bound, verdict)
