"""Theorem 1 along a run: its bounds with constants estimated from the records, beside what was measured.

Runs of ASFL measure the gradient of the average model in a few rounds (`asfl.train.gradients`), and L, σ² and ψ² with
it. Records of earlier versions don't have that. With one plain gradient step a round an update is Δ_n = −η g_n, so they
hold lengths as ‖Δ_n‖/η (on the server's side: of the mean gradient), but no directions. What follows from lengths alone
is then estimated instead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import number
from asfl.costs.modelled import ASFL
from asfl.results import theory
from asfl.results.curves import Run
from asfl.results.tables import Table
from asfl.runs.records import RoundRecord
from asfl.schemes import SCHEMES

Floats = NDArray[np.float64]
MEASURED = (
    ("ψ²", "the largest ‖g‖² of a client's mini-batch"),
    (
        "L",
        "the largest change of a client's gradient on one mini-batch, per length of a short step along it: from below",
    ),
    ("σ²", "half the largest squared difference of two gradients of one client, for the size of a mini-batch"),
    ("F(w̄¹) − F*", "the first training loss, as none is below 0"),
)
HOW = (
    ("ψ²", "the largest ‖Δ_n‖²/η² of any client and round"),
    ("L", "the largest change of the mean ‖Δ‖/η from one round to the next, divided by ‖Δ‖; mini-batch noise counts"),
    ("σ²", "the mean ‖Δ‖²/η² without the part that the fall of the training loss, divided by ηR, accounts for"),
    ("F(w̄¹) − F*", "the first training loss, as none is below 0"),
)
"""How each constant is estimated: where gradients were measured, and from the lengths of updates."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """What the records tell of the gradients of a run."""

    gradient2: Floats
    """[R] mean ‖Δ_n‖²/η² over the clients that arrived; NaN if nobody did."""
    constants: theory.LearningConstants

    @classmethod
    def of(cls, run: Run) -> "Lengths | None":
        """None if nobody ever arrived, or nothing is known of the learning rate."""
        assert run.config is not None
        training = run.config.for_scheme(run.scheme).training
        step = training.learning_rate * training.local_steps
        norms = [[norm for norm in record.update_norm2 if norm is not None] for record in run.records]
        losses = [record.train_loss for record in run.records if record.train_loss is not None]
        if not any(norms) or not losses or step <= 0:
            return None
        gradient2 = np.array([fmean(of_round) / step**2 if of_round else math.nan for of_round in norms])
        lengths = np.sqrt(gradient2[np.isfinite(gradient2)])
        moved = step * lengths[:-1]
        turned = np.abs(np.diff(lengths))
        descended = max(losses[0] - losses[-1], 0.0) / (step * len(run.records))
        constants = theory.LearningConstants(
            smoothness=float((turned[moved > 0] / moved[moved > 0]).max(initial=0.0)),
            noise2=max(float(np.nanmean(gradient2)) - descended, 0.0),
            gradient2=max(norm for of_round in norms for norm in of_round) / step**2,
            initial_gap=losses[0],
            learning_rate=step,
        )
        return cls(gradient2, constants)


@dataclass(frozen=True, eq=False)
class Seen:
    """What was measured of the gradient of the average model, and of the steps, up to some round."""

    records: Sequence[RoundRecord]
    constants: theory.LearningConstants
    gradients: list[dict[str, float]]
    rounds: Floats
    """[K] how many each measurement stands for: those since the one before, as no round between was measured."""
    share: Floats
    """[R] of clients that arrived."""

    @classmethod
    def of(cls, records: Sequence[RoundRecord], learning_rate: float) -> "Seen | None":
        """Up to the last round that was measured; None if there is none."""
        records = records[: max((record.round for record in records if record.gradient), default=0)]
        at = [(record.round, record.gradient) for record in records if record.gradient]
        losses = [record.train_loss for record in records if record.train_loss is not None]
        found = [gradient for _, gradient in at]
        if not losses or not all(gradient.keys() >= _NEEDED for gradient in found):
            return None
        worst = {name: max(gradient[name] for gradient in found) for name in _NEEDED}
        constants = theory.LearningConstants(
            smoothness=worst["smoothness"],
            noise2=worst["noise2"],
            gradient2=max(worst["client_norm2"], worst["norm2"]),
            initial_gap=losses[0],
            learning_rate=learning_rate,
        )
        share = np.array([fmean(record.arrived) for record in records])
        return cls(records, constants, found, np.diff([0, *(number for number, _ in at)]).astype(float), share)

    def mean(self, *, by_arrivals: bool = False) -> float:
        """Of ‖∇F(w̄)‖² so far; each round counts as much as any, or by its share of arrivals."""
        norm2, weights = [gradient["norm2"] for gradient in self.gradients], self.rounds
        if by_arrivals and self.share.any():
            ends = np.cumsum(self.rounds).astype(int)
            weights = np.diff([0.0, *np.cumsum(self.share)[ends - 1]])
        return float(np.average(norm2, weights=weights))

    @property
    def largest_rate(self) -> float:
        """D of any number; η without memory."""
        return max([self.constants.learning_rate, *(gradient.get("largest_rate", 0.0) for gradient in self.gradients)])

    @property
    def with_memory(self) -> theory.GradientBound | None:
        """For steps −D m; None if none were measured."""
        known = [(g, n) for g, n in zip(self.gradients, self.rounds, strict=True) if g.keys() >= _OF_STEPS]
        if not known:
            return None
        weights = [rounds for _, rounds in known]
        stepped = float((self.share > 0).mean())  # a round in which nobody arrives has no step
        of = {name: stepped * float(np.average([g[name] for g, _ in known], weights=weights)) for name in _OF_STEPS}
        least = min(gradient["smallest_rate"] for gradient, _ in known)
        shift = np.sqrt([record.resplit_shift for record in self.records])
        return theory.preconditioned_gradient_bound(
            self.constants, least, of["misaligned"], of["moved"], of["length2"], self.share, shift
        )


_NEEDED = frozenset({"norm2", "noise2", "client_norm2", "smoothness"})
_OF_STEPS = frozenset({"smallest_rate", "largest_rate", "misaligned", "moved", "length2"})


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


def theorem_1(run: Run) -> list[Table | str]:
    """Printed, corrected, weighed by arrivals and for steps with memory, part by part; then that for this run's steps
    along it. Or why there is nothing to show.
    """
    if run.scheme not in SCHEMES or replace(SCHEMES.named(run.scheme).exchange, reports=True) != ASFL:
        return ["Theorem 1 is about ASFL's round; this scheme trains in another way."]
    assert run.config is not None
    rate, reason = run.config.for_scheme(run.scheme).training.learning_rate, not_covered(run)
    seen = Seen.of(run.records, rate)
    known = Lengths.of(run) if run.records and seen is None else None
    if seen is not None:
        records, constants = seen.records, seen.constants
        plain, weighed = seen.mean(), seen.mean(by_arrivals=True)
    elif known is not None:
        records, constants = run.records, known.constants
        there, weights = np.isfinite(known.gradient2), 1 - np.array([fmean(r.packet_error_rate) for r in run.records])
        plain = weighed = float(known.gradient2[there].mean())
        if weights[there].sum() > 0:
            weighed = float(np.average(known.gradient2[there], weights=weights[there]))
    else:
        return ["Theorem 1: no update ever arrived, so nothing is known of the gradients."]
    bounds = {name: (bound, weighed if "weighed" in name else plain) for name, bound in _plain(records, constants)}
    rows = [
        [name, *_parts(bound), _number(measured), "not covered" if reason else _verdict(bound, measured, constants)]
        for name, (bound, measured) in bounds.items()
    ]
    memory = seen.with_memory if seen is not None else None
    if seen is not None and memory is not None:
        verdict = _verdict(memory, weighed, constants, seen.largest_rate)
        rows.append(["for steps −D m", *_parts(memory), _number(weighed), verdict])
    header = ["bound of mean ‖∇F‖²", "start", "noise", "drift", "losses", "re-split", "total", "measured", "verdict"]
    note = _note(reason, constants, seen)
    tables: list[Table | str] = [Table("theorem-1", "Theorem 1 along the run.", note, header, rows)]
    return tables if seen is None else [*tables, _along(run, seen, rate, reason)]


def _plain(
    records: Sequence[RoundRecord], constants: theory.LearningConstants
) -> list[tuple[str, theory.GradientBound]]:
    """Of plain gradient steps."""
    arrived = np.array([record.arrived for record in records], float)  # [R, N]
    rates = np.array([record.packet_error_rate for record in records], float)
    spread = np.array([record.spread for record in records])
    shift = np.sqrt([record.resplit_shift for record in records])
    count = arrived.sum(axis=1)
    inverse = np.divide(1.0, count, out=np.zeros_like(count), where=count > 0)
    lost = 1 - arrived.mean(axis=1)
    return [
        ("as printed, (22)", theory.printed_gradient_bound(constants, spread, np.zeros(len(records)))),
        ("corrected", theory.corrected_gradient_bound(constants, spread, lost, inverse, shift)),
        ("weighed by arrivals", theory.arrival_weighted_gradient_bound(constants, spread, rates, shift)),
    ]


def _along(run: Run, whole: Seen, rate: float, reason: str) -> Table:
    """What was measured so far beside the bound of that many rounds: for steps −D m where there are such."""
    rows = []
    for record in whole.records:
        seen = Seen.of(run.records[: record.round], rate) if record.gradient else None
        if seen is None:
            continue
        memory = seen.with_memory
        bound, mean = memory, seen.mean(by_arrivals=True)
        if bound is None:
            bound, mean = dict(_plain(seen.records, seen.constants))["corrected"], seen.mean()
        verdict = (
            "not covered" if reason and memory is None else _verdict(bound, mean, seen.constants, seen.largest_rate)
        )
        numbers = (seen.gradients[-1]["norm2"], mean, bound.total, seen.largest_rate * seen.constants.smoothness)
        rows.append([str(record.round), *map(_number, numbers), verdict])
    which = "for steps −D m, by arrivals" if whole.with_memory is not None else "corrected"
    header = ["round", "‖∇F‖² after it", "mean so far", f"bound ({which})", "largest rate · L", "verdict"]
    note = "Constants are those seen until then. Each measurement stands for the rounds since the one before."
    return Table("theorem-1-along", "Theorem 1, round by round.", note, header, rows)


def _verdict(
    bound: theory.GradientBound, measured: float, constants: theory.LearningConstants, rate: float | None = None
) -> str:
    """`rate`: the largest of any number, if not η."""
    if measured > bound.total * (1 + 1e-6):
        return "does not hold"
    if bound.total < constants.gradient2:
        return "holds"
    steps = (constants.learning_rate if rate is None else rate) * constants.smoothness
    long = f", with steps of {_number(steps)}/L" if steps > 1 else ""
    return f"holds, but says nothing: it is above ψ²{long}"


def _parts(bound: theory.GradientBound) -> list[str]:
    parts = (bound.start, bound.noise, bound.drift, bound.losses, bound.resplit, bound.total)
    return [_number(part) for part in parts]


def _note(reason: str, constants: theory.LearningConstants, seen: Seen | None) -> str:
    values = (constants.gradient2, constants.smoothness, constants.noise2, constants.initial_gap)
    names = HOW if seen is None else MEASURED
    how = "; ".join(f"{name} = {_number(value)}: {text}" for (name, text), value in zip(names, values, strict=True))
    if seen is None:
        warning = f"{reason}: Δ/η is taken for one, which shows how large the terms are and guarantees nothing. "
        measured = "the mean of ‖Δ‖²/η² over clients and rounds, in place of ‖∇F‖²; noise makes it larger. "
    else:
        warning = f"{reason}: those bounds are what they would be for plain steps, and guarantee nothing. "
        measured = f"‖∇F(w̄)‖² after {len(seen.gradients)} of the rounds, on other mini-batches than were trained with. "
    return (
        (warning if reason else "")
        + f"Measured: {measured}Estimated from the records: {how}. As L is a lower estimate, a verdict is no proof. "
        "‖w̄ˢ‖² isn't recorded, so the printed bound lacks its losses and is larger still."
    )


def _number(value: float) -> str:
    return "∞" if value == math.inf else number(value).replace("-", "−")
