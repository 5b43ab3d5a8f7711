"""The paper's bounds of one run beside what was measured, as far as records tell (see `asfl.results.theory`).

Lemma 4, Theorems 2 and 3: T_max and E_max of Assumption 4 are taken from the run itself, the dearest round there was.
So the bounds are those of hindsight, the tightest the theorems can give. Theorem 1: runs of ASFL measure the gradient
of the average model in a few rounds, and L, σ² and ψ² with it (`asfl.train.evaluate`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import number
from asfl.costs.modelled import ASFL
from asfl.results import theory
from asfl.results.curves import Run, RunFolder
from asfl.results.summary import Excess
from asfl.results.tables import Table
from asfl.schemes import SCHEMES

Floats = NDArray[np.float64]


# ---------------------------------------------------------------------- Lemma 4, Theorems 2 and 3
@dataclass(frozen=True)
class Check:
    """One bound and the number it bounds."""

    what: str
    source: str
    """Lemma or theorem."""
    measured: float
    bound: float
    worst: float = math.inf
    """What can't be exceeded anyway."""

    @property
    def says_nothing(self) -> bool:
        return self.bound >= self.worst * (1 - 1e-9)

    @property
    def verdict(self) -> str:
        if self.measured > self.bound * (1 + 1e-6) + 1e-9:
            return "does not hold"
        return "holds, but says nothing: it is above the worst round" if self.says_nothing else "holds"


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
    most = float(own.excess[:, 0].max()), float(own.excess[:, 1:].max())
    delay, energy = (theory.queue_bound(one, len(own.excess), keep=own.keep, add=own.add) for one in most)
    return delay, energy


def check_queues(run: RunFolder) -> list[Check]:
    """Lemma 4 and Theorem 2, printed and as it should be."""
    own, rules = Excess.of(run), run.manifest.config.decision
    worst_client = int(own.excess[:, 1:].mean(axis=0).argmax()) + 1
    limits = queue_bounds(run)
    from_queues = theory.average_excess_bound(own.queues, keep=own.keep, add=own.add)
    found = []
    for name, queue, columns, limit, one in (
        ("delay", "delay queue", slice(0, 1), limits[0], 0),
        (f"energy of client {worst_client - 1}, the worst", "energy queue of any client", slice(1, None), limits[1],
         worst_client),
    ):  # fmt: skip
        what, mean = f"{name}: mean over budget", float(own.excess[:, one].mean())
        worst = float(own.excess[:, columns].max())
        found.append(Check(f"largest {queue}", "Lemma 4", float(own.queues[:, columns].max()), limit))
        found.append(Check(what, "from the queues, (44)", mean, float(from_queues[one]), worst))
        if rules.queue_rule == "printed":
            root = _root(own.excess[:, columns])
            limit = theory.printed_violation_bound(root, len(own.excess), rules.queue_memory)
            found.append(Check(what, "Theorem 2, (42)", mean, limit, worst))
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
        delay, energy = both[:, :1], both[:, 1:]
        bounds = theory.ExcessBounds(_root(delay), _root(energy), float(delay.max()), float(energy.max()))
        slack = theory.smallest_slack(
            own.queues, objective, theirs.excess, other_objective, bounds,
            penalty_weight=rules.penalty_weight, keep=own.keep, add=own.add,
        )  # fmt: skip
        constant = theory.printed_gap_constant(bounds, own.excess.shape[1] - 1, rules.queue_memory)
        limit = theory.performance_gap_bound(constant, slack, rules.penalty_weight)
        gap, worst = (float(value - other_objective.mean()) for value in (objective.mean(), objective.max()))
        found.append(Check(f"objective above that of {other.scheme}", "Theorem 3, (46)", gap, limit, worst))
    return found


def _root(excess: Floats) -> float:
    """√G of Lemma 3 in hindsight: the largest |g|."""
    return float(np.abs(excess).max())


def bounds_of(run: RunFolder, others: Sequence[RunFolder]) -> list[Table | str]:
    """Theorems 2 and 3, then 1, of one run; or why they can't be told. `others`: of the same world and seed."""
    return [why_not(run) or _queue_table(run, others), *([theorem_1(run)] if run.records else [])]


def _queue_table(run: RunFolder, others: Sequence[RunFolder]) -> Table:
    checks = [*check_queues(run), *check_gap(run, others)]
    normalised, empty = run.manifest.config.decision.equations == "corrected", sum(one.says_nothing for one in checks)
    note = (
        ("Queues and excess are in units of the budget. " if normalised else "In seconds and joules. ")
        + "T_max and E_max are the dearest round of this run. "
        + (f"{empty} of {len(checks)} bounds hold but say nothing." if empty else "")
    )
    rows = [[one.what, _signed(one.measured), _signed(one.bound), one.source, one.verdict] for one in checks]
    header = ["what", "measured", "bound", "from", "verdict"]
    return Table(key="bounds", title="Bounds and what was measured.", note=note, header=header, rows=rows)


# ---------------------------------------------------------------------- Theorem 1
_CONSTANTS = (
    ("ψ²", "the largest ‖g‖² of a client's mini-batch"),
    (
        "L",
        "the largest change of a client's gradient on one mini-batch, per length of a short step along it: from below",
    ),
    ("σ²", "half the largest squared difference of two gradients of one client, for the size of a mini-batch"),
    ("F(w̄¹) − F*", "the first training loss, as none is below 0"),
)
"""How each constant is estimated."""
_NEEDED = frozenset({"norm2", "noise2", "client_norm2", "smoothness"})


def not_covered(run: Run) -> str:
    """Why Theorem 1 for plain steps isn't about this run; empty if it is."""
    assert run.config is not None
    config = run.config.for_scheme(run.scheme)
    training = config.training
    if training.local_steps > 1:
        return f"Theorem 1 doesn't cover {training.local_steps} steps a round"
    if config.privacy.noisy or config.robust.average != "mean" or config.robust.clip:
        return "Theorem 1 doesn't cover noise, clipping or robust means, which change the mean gradient"
    if training.optimizer != "sgd":
        return f"Theorem 1 doesn't cover {training.optimizer.capitalize()}, whose steps aren't gradients"
    return ""


def theorem_1(run: Run) -> Table | str:
    """Printed, corrected and weighed by arrivals, part by part; or why there is nothing.

    A measurement stands for all rounds since the one before. ‖w̄ˢ‖² isn't recorded: the printed bound lacks its losses.
    """
    if run.scheme not in SCHEMES or replace(SCHEMES.named(run.scheme).exchange, reports=True) != ASFL:
        return "Theorem 1 is about ASFL's round; this scheme trains in another way."
    assert run.config is not None
    records = run.records[: max((record.round for record in run.records if record.gradient), default=0)]
    measured = {record.round: record.gradient for record in records if record.gradient}
    losses = [record.train_loss for record in records if record.train_loss is not None]
    if not losses or not all(gradient.keys() >= _NEEDED for gradient in measured.values()):
        return "Theorem 1: this run hasn't measured a gradient yet, so there is nothing to compare with."
    found, rounds = list(measured.values()), np.diff([0, *measured]).astype(float)
    worst = {name: max(gradient[name] for gradient in found) for name in _NEEDED}
    constants = theory.LearningConstants(
        smoothness=worst["smoothness"],
        noise2=worst["noise2"],
        gradient2=max(worst["client_norm2"], worst["norm2"]),
        initial_gap=losses[0],
        learning_rate=run.config.for_scheme(run.scheme).training.learning_rate,
    )
    arrived, rates = (
        np.array([getattr(record, name) for record in records], float) for name in ("arrived", "packet_error_rate")
    )  # [R, N]
    share, count = arrived.mean(axis=1), arrived.sum(axis=1)
    inverse = np.divide(1.0, count, out=np.zeros_like(count), where=count > 0)
    spread = np.array([record.spread for record in records])
    shift = np.sqrt([record.resplit_shift for record in records])

    norm2 = [gradient["norm2"] for gradient in found]
    of_rounds = float(np.average(norm2, weights=rounds))
    arrivals = np.diff([0.0, *np.cumsum(share)[np.array([*measured]) - 1]])
    by_arrivals = float(np.average(norm2, weights=arrivals if arrivals.any() else rounds))
    printed = theory.printed_gradient_bound(constants, spread, np.zeros(len(spread)))
    corrected = theory.corrected_gradient_bound(constants, spread, 1 - share, inverse, shift)
    weighed = theory.arrival_weighted_gradient_bound(constants, spread, rates, shift)
    plain = (
        ("as printed, (22)", printed, of_rounds),
        ("corrected", corrected, of_rounds),
        ("weighed by arrivals", weighed, by_arrivals),
    )
    reason = not_covered(run)
    rows = [
        _row(name, bound, mean, "not covered" if reason else _verdict(bound, mean, constants))
        for name, bound, mean in plain
    ]
    header = ["bound of mean ‖∇F‖²", "start", "noise", "drift", "losses", "re-split", "total", "measured", "verdict"]
    note = _note(reason, constants, len(found))
    return Table(key="theorem-1", title="Theorem 1 along the run.", note=note, header=header, rows=rows)


def _verdict(bound: theory.GradientBound, measured: float, constants: theory.LearningConstants) -> str:
    if measured > bound.total * (1 + 1e-6):
        return "does not hold"
    if bound.total < constants.gradient2:
        return "holds"
    steps = constants.learning_rate * constants.smoothness
    return "holds, but says nothing: it is above ψ²" + (f", with steps of {_signed(steps)}/L" if steps > 1 else "")


def _row(name: str, bound: theory.GradientBound, measured: float, verdict: str) -> list[str]:
    parts = (bound.start, bound.noise, bound.drift, bound.losses, bound.resplit, bound.total, measured)
    return [name, *map(_signed, parts), verdict]


def _note(reason: str, constants: theory.LearningConstants, measurements: int) -> str:
    values = (constants.gradient2, constants.smoothness, constants.noise2, constants.initial_gap)
    how = "; ".join(
        f"{name} = {_signed(value)}: {text}" for (name, text), value in zip(_CONSTANTS, values, strict=True)
    )
    warning = f"{reason}: the bounds are what they would be for plain steps, and guarantee nothing. "
    return (
        f"{warning if reason else ''}Measured: ‖∇F(w̄)‖² after {measurements} of the rounds, on other mini-batches than "
        f"were trained with. Estimated from the records: {how}. As L is a lower estimate, a verdict is no proof. ‖w̄ˢ‖² "
        "isn't recorded, so the printed bound lacks its losses and is larger still."
    )


def _signed(value: float) -> str:
    return "∞" if value == math.inf else number(value).replace("-", "−")
