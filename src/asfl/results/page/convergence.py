"""Theorem 1 along a run: its bounds with constants estimated from the records, beside what was measured.

With one plain gradient step a round an update is Δ_n = −η g_n, so records hold the length of every mini-batch gradient
as ‖Δ_n‖/η, but not its direction. What follows from lengths alone is estimated, and `HOW` says how.
"""

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import number
from asfl.costs.modelled import ASFL
from asfl.results import theory
from asfl.results.curves import Run
from asfl.results.tables import Table
from asfl.schemes import SCHEMES

Floats = NDArray[np.float64]
HOW = (
    ("ψ²", "the largest ‖Δ_n‖²/η² of any client and round"),
    ("L", "the largest change of the mean ‖Δ‖/η from one round to the next, divided by ‖Δ‖; mini-batch noise counts"),
    ("σ²", "the mean ‖Δ‖²/η² without the part that the fall of the training loss, divided by ηR, accounts for"),
    ("F(w̄¹) − F*", "the first training loss, as none is below 0"),
)
"""How each constant is estimated."""


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


def not_covered(run: Run) -> str:
    """Why Theorem 1 isn't about this run; empty if it is."""
    assert run.config is not None
    training = run.config.for_scheme(run.scheme).training
    if training.optimizer != "sgd":
        return f"Theorem 1 doesn't cover {training.optimizer.capitalize()}, whose steps aren't gradients"
    if training.local_steps > 1:
        return f"Theorem 1 doesn't cover {training.local_steps} steps a round"
    return ""


def theorem_1(run: Run) -> Table | str:
    """Printed, corrected and weighed by arrivals, part by part; or why there is nothing to show."""
    if run.scheme not in SCHEMES or SCHEMES.named(run.scheme).procedure != ASFL:
        return "Theorem 1 is about ASFL's round; this scheme trains in another way."
    known = Lengths.of(run) if run.records else None
    if known is None:
        return "Theorem 1: no update ever arrived, so nothing is known of the gradients."
    records, constants = run.records, known.constants
    arrived = np.array([record.arrived for record in records], float)  # [R, N]
    rates = np.array([record.packet_error_rate for record in records], float)
    spread = np.array([record.spread for record in records])
    shift = np.sqrt([record.resplit_shift for record in records])
    count = arrived.sum(axis=1)
    inverse = np.divide(1.0, count, out=np.zeros_like(count), where=count > 0)
    lost = 1 - arrived.mean(axis=1)
    bounds = {
        "as printed, (22)": theory.printed_gradient_bound(constants, spread, np.zeros(len(records))),
        "corrected": theory.corrected_gradient_bound(constants, spread, lost, inverse, shift),
        "weighed by arrivals": theory.arrival_weighted_gradient_bound(constants, spread, rates, shift),
    }
    seen = np.isfinite(known.gradient2)
    weights = 1 - rates.mean(axis=1)
    plain = float(known.gradient2[seen].mean())
    weighed = float(np.average(known.gradient2[seen], weights=weights[seen])) if weights[seen].sum() > 0 else plain
    reason = not_covered(run)
    rows = []
    for name, bound in bounds.items():
        measured = weighed if name == "weighed by arrivals" else plain
        parts = (bound.start, bound.noise, bound.drift, bound.losses, bound.resplit, bound.total, measured)
        rows.append([name, *map(_number, parts), "not covered" if reason else _verdict(bound, measured, constants)])
    header = ["bound of mean ‖∇F‖²", "start", "noise", "drift", "losses", "re-split", "total", "measured", "verdict"]
    return Table("theorem-1", "Theorem 1 along the run.", _note(reason, constants), header, rows)


def _verdict(bound: theory.GradientBound, measured: float, constants: theory.LearningConstants) -> str:
    if measured > bound.total * (1 + 1e-6):
        return "does not hold"
    return "holds" if bound.total < constants.gradient2 else "holds, but says nothing: it is above ψ²"


def _note(reason: str, constants: theory.LearningConstants) -> str:
    values = (constants.gradient2, constants.smoothness, constants.noise2, constants.initial_gap)
    how = "; ".join(f"{name} = {_number(value)}: {text}" for (name, text), value in zip(HOW, values, strict=True))
    warning = f"{reason}: Δ/η is taken for one, which shows how large the terms are and guarantees nothing. "
    return (
        (warning if reason else "")
        + "Measured: the mean of ‖Δ‖²/η² over clients and rounds, in place of ‖∇F‖²; noise makes it larger. "
        + f"Estimated from the records: {how}. ‖w̄ˢ‖² isn't recorded, so the printed bound lacks its losses and is "
        "larger still."
    )


def _number(value: float) -> str:
    return "∞" if value == math.inf else number(value).replace("-", "−")
