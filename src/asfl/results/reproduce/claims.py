"""What the paper claims, and what the runs say to it.

A difference is clear if 0 is outside the 95 % bootstrap interval of its median over seeds: of up to five seeds, if all
have its sign. A claim *holds* if the difference is clear, has the claimed sign, and its median at least the claimed
size. It *holds weaker* if just the size is missing. It is *mixed* if accuracies differ in what they say. Where the runs
of one scheme alone reached an accuracy, nothing is known of the other's costs: *not shown*. Accuracies are compared
after equally many mini-batches, seconds or joules, as many as both runs have. A claim about a scheme that wasn't
trained is left out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Literal, Protocol

import numpy as np

from asfl.config.units import number, percent
from asfl.results.curves import Curve, Resource, Run
from asfl.results.summary import Outcome, Statistic, Summary, moves, paired
from asfl.results.tables import QUANTITIES
from asfl.schemes import OURS

Verdict = Literal["holds", "holds weaker", "mixed", "not clear", "doesn't hold", "not shown"]
Axis = Literal["rounds", "delay", "energy"]
EQUAL: Mapping[Axis, str] = {"rounds": "equal rounds", "delay": "equal time", "energy": "equal energy"}
BEST = "the best other scheme"
"""Whichever needs least, of all that are neither ours nor a variant of ours."""


@dataclass(frozen=True)
class Finding:
    """One claim in one world."""

    preset: str
    label: str
    """What is varied, at this point; empty if nothing is, or if the claim is about all points."""
    claim: str
    here: str
    verdict: Verdict
    seeds: int
    about: str = ""
    """The same for the same claim about the same runs, on whichever page."""
    otherwise: Mapping[str, str] = field(default_factory=dict)
    """Conclusions under other charges, by what these are called."""

    @property
    def conclusion(self) -> str:
        return self.verdict + (", one seed" if self.seeds == 1 and self.verdict != "not shown" else "")

    @property
    def in_words(self) -> str:
        """The conclusion, and those under other charges where they differ."""
        others = "; ".join(f"{name}: {said}" for name, said in self.otherwise.items() if said != self.conclusion)
        return self.conclusion + (f" ({others})" if others else "")


class Claim(Protocol):
    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        """`outcomes`: those of one preset, in the order of what is varied."""
        ...


Said = tuple[str, str, Verdict]
"""The claim, what is found here, and the verdict."""


class ClaimOfEach:
    """A claim that is checked in every world by itself."""

    among_all = False
    """Whether all schemes there matter to it."""

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        most = max(len(outcome.summary.runs) for outcome in outcomes)
        for outcome in outcomes:
            if len(outcome.summary.runs) == 1 < most:  # a scheme alone, with another setting than elsewhere
                continue
            if said := self.say(outcome):
                yield _finding([outcome], outcome.label, *said, among_all=self.among_all)

    def say(self, outcome: Outcome) -> Said | None:
        """None if a scheme that it is about has no runs there."""
        raise NotImplementedError


def _finding(
    outcomes: Sequence[Outcome], label: str, claim: str, here: str, verdict: Verdict, *, among_all: bool
) -> Finding:
    schemes = sorted({name for outcome in outcomes for name in outcome.summary.runs}) if among_all else []
    about = "; ".join([claim, *(outcome.world for outcome in outcomes), *schemes])
    seeds = max(len(outcome.summary.seeds) for outcome in outcomes)
    return Finding(outcomes[0].preset, label, claim, here, verdict, seeds, about)


def judge(difference: Statistic, claimed: float = 0.0) -> Verdict:
    """`difference` and `claimed` are positive if they favour the claim."""
    if not difference.seeds:
        return "not shown"
    if not difference.is_clear:
        return "not clear"
    if difference.median < 0:
        return "doesn't hold"
    return "holds" if difference.median >= claimed else "holds weaker"


def agreement(verdicts: Sequence[Verdict]) -> Verdict:
    """What several verdicts on one claim come to; where nothing is shown, nothing is said."""
    said = {verdict for verdict in verdicts if verdict != "not shown"}
    if not said:
        return "not shown"
    if said <= {"holds", "holds weaker"}:
        return "holds weaker" if "holds weaker" in said else "holds"
    return said.pop() if len(said) == 1 else "mixed"


def in_seeds(favourable: Sequence[float], trained: int) -> str:
    """In how many seeds a difference has the claimed sign, of all that were trained."""
    return "one seed" if trained == 1 else f"{sum(one > 0 for one in favourable)} of {trained} seeds"


def with_range(values: Sequence[float], decimals: int | None = 1, scale: float = 100.0) -> str:
    """A median and, in brackets, its interval: of up to five seeds from the lowest to the highest."""
    stat = Statistic.of(values)
    if not stat.seeds:
        return "–"
    ends = [scale * one for one in (stat.median, stat.low, stat.high)]
    median, low, high = (
        number(one) if decimals is None else f"{round(one, decimals) + 0.0:.{decimals}f}" for one in ends
    )
    return median if math.isnan(stat.low) else f"{median} ({low}…{high})"


def at_equal(outcome: Outcome, ours: str, theirs: str, axis: Axis) -> list[tuple[float, float]]:
    """Accuracies of two schemes by seed after as much as both have: mini-batches, seconds or joules."""
    found: dict[tuple[str, int], Run] = {(run.scheme, run.seed): run for run in outcome.runs}
    pairs = []
    for seed in outcome.summary.seeds:
        if (ours, seed) in found and (theirs, seed) in found:
            curves = [_evaluations(found[scheme, seed], axis) for scheme in (ours, theirs)]
            end = min(max(curve, default=0.0) for curve in curves)
            pair = [[accuracy for at, accuracy in curve.items() if at <= end] for curve in curves]
            if all(pair):
                pairs.append((pair[0][-1], pair[1][-1]))
    return pairs


def _evaluations(run: Run, axis: Axis) -> dict[float, float]:
    """Accuracies by how much was taken until then; the ceiling takes neither time nor energy."""
    if run.is_ceiling and axis != "rounds":
        return {}
    curve, steps = Curve.of(run.records), 1 if run.config is None else run.config.training.local_steps
    taken = [steps * at for at in curve.round] if axis == "rounds" else curve.along(axis)
    return dict(zip(taken, curve.accuracy, strict=True))


def _of(ours: str) -> str:
    return "" if ours == OURS else f"{ours}: "


@dataclass(frozen=True)
class Saves(ClaimOfEach):
    """Less delay or energy than another scheme, to the same accuracy."""

    resource: Resource
    against: str
    """A scheme, or `BEST`."""
    by: float
    """As a share; 0 if the paper gives no figure."""
    ours: str = OURS

    @property
    def among_all(self) -> bool:  # type: ignore[override]
        return self.against == BEST

    def say(self, outcome: Outcome) -> Said | None:
        """What is found at the accuracy where least is saved; the verdict is about all accuracies."""
        summary = outcome.summary
        if {self.ours, self.against} - {BEST} - summary.runs.keys():
            return None
        what, size = "delay" if self.resource == "delay_s" else "energy", f"{percent(self.by)} " if self.by else ""
        claim = f"{_of(self.ours)}{what} to an accuracy {size}below {self.against}"
        judged, verdicts, too_few = list[tuple[float, str]](), list[Verdict](), list[str]()
        for target in summary.targets:
            other = self._other(summary, target)
            ours, theirs = (summary.reached(scheme, target, self.resource) for scheme in (self.ours, other))
            saved = [1 - our / their for our, their in paired(ours, theirs) if their > 0]
            if saved:
                named = f" ({other})" if self.against == BEST else ""
                text = f"to {percent(target)} {with_range(saved, 0)} %{named}, {in_seeds(saved, len(summary.seeds))}"
                if 2 * len(saved) > len(summary.seeds):
                    judged.append((Statistic.of(saved).median, text))
                    verdicts.append(judge(Statistic.of(saved), self.by))
                else:
                    too_few.append(text)
            elif ours or theirs:
                only = "never with the same seed" if ours and theirs else f"only {self.ours if ours else other}"
                too_few.append(f"to {percent(target)} {only}")
        weakest = f"{'weakest ' if len(judged) > 1 else ''}{min(judged)[1]}" if judged else "; ".join(too_few)
        return claim, weakest or "no accuracy that either reached", agreement(verdicts)

    def _other(self, summary: Summary, target: float) -> str:
        """The scheme it is compared with; the best one may be another for each accuracy."""
        if self.against != BEST:
            return self.against
        others = [name for name in summary.ranked if not name.startswith(self.ours)]
        needed = {name: summary.to_reach(name, target, self.resource) for name in others}
        return min(needed, key=lambda name: needed[name].median if needed[name].seeds else math.inf, default="")


@dataclass(frozen=True)
class MostAccurate:
    """ASFL is ahead of every other scheme in most cases, after as many rounds or in as much time."""

    at: Axis

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        texts, places = [], []
        for outcome in (outcome for outcome in outcomes if OURS in outcome.summary.runs):
            text, place = self._place(outcome)
            texts.append(f"{outcome.label}: {text}" if outcome.label else text)
            places += [] if place is None else [place]
        verdict: Verdict = "not shown"
        if places:
            first, level = sum(place > 0 for place in places), sum(place == 0 for place in places)
            won, not_lost = 2 * first > len(places), 2 * (first + level) > len(places)
            verdict = "holds" if won else "not clear" if not_lost else "doesn't hold"
        claim = f"most accurate at {EQUAL[self.at]}" + (" in most cases" if len(outcomes) > 1 else "")
        if texts:
            yield _finding(outcomes, "", claim, "; ".join(texts), verdict, among_all=True)

    def _place(self, outcome: Outcome) -> tuple[str, int | None]:
        """A text, and +1 if ASFL is clearly ahead of the best other, −1 if clearly behind, 0 if neither."""
        others = [name for name in outcome.summary.ranked if not name.startswith(OURS)]
        pairs = {name: found for name in others if (found := at_equal(outcome, OURS, name, self.at))}
        leads = {name: [ours - theirs for ours, theirs in found] for name, found in pairs.items()}
        if not leads:
            return "no other scheme was evaluated by then", None
        best = min(leads, key=lambda name: Statistic.of(leads[name]).median)
        ours, theirs = (with_range(values) for values in zip(*pairs[best], strict=True))
        sign = {"holds": 1, "doesn't hold": -1}.get(judge(Statistic.of(leads[best])), 0)
        won = in_seeds(leads[best], len(outcome.summary.seeds))
        return f"{ours} % against {theirs} % ({best}), {won}", sign


@dataclass(frozen=True)
class MoreAccurate(ClaimOfEach):
    """Than one other scheme, after as many rounds, or as much time or energy."""

    than: str
    by: float
    """Below 0: no more than so much behind."""
    ours: str = OURS
    at: Axis = "rounds"

    def say(self, outcome: Outcome) -> Said | None:
        if {self.ours, self.than} - outcome.summary.runs.keys():
            return None
        leads = [ours - theirs for ours, theirs in at_equal(outcome, self.ours, self.than, self.at)]
        shown = [lead - self.by for lead in leads] if self.by < 0 else leads
        by = f"at most {-100 * self.by:g} points less" if self.by < 0 else f"{100 * self.by:g} points more"
        claim = f"{_of(self.ours)}{by} accurate than {self.than} at {EQUAL[self.at]}"
        won = f"{with_range(leads)} points, {in_seeds(shown, len(outcome.summary.seeds))}"
        return claim, won if leads else "nothing to compare", judge(Statistic.of(shown), max(self.by, 0.0))


@dataclass(frozen=True)
class NeverBehind(ClaimOfEach):
    """At no time, or on no energy, is another scheme more accurate by more than `by`, while both train."""

    resource: Resource
    by: float
    ours: str
    among_all = True

    def say(self, outcome: Outcome) -> Said | None:
        worst = list(filter(None, map(partial(self._worst, outcome), outcome.summary.seeds)))
        if not worst:
            return None
        what = "time" if self.resource == "delay_s" else "energy"
        claim = f"{self.ours} never more than {100 * self.by:g} points behind another scheme at equal {what}"
        leads, others = [ahead for ahead, _ in worst], ", ".join(sorted({name for _, name in worst}))
        margins = [lead + self.by for lead in leads]
        won = in_seeds(margins, len(outcome.summary.seeds))
        here = f"at worst {with_range(leads)} points ahead of the best other ({others}), {won}"
        return claim, here, judge(Statistic.of(margins))

    def _worst(self, outcome: Outcome, seed: int) -> tuple[float, str] | None:
        """How far ours is ahead of the best other where that is least, while both train; and which one that is."""
        runs = {run.scheme: run for run in outcome.runs if run.seed == seed and not run.is_ceiling}
        if self.ours not in runs:
            return None
        axis = self.resource.partition("_")[0]
        ours, leads = Curve.of(runs.pop(self.ours).records), []
        for name, run in runs.items():
            theirs = Curve.of(run.records)
            at, known = np.asarray(ours.along(axis)), np.asarray(theirs.along(axis))
            if known.size and (both := (at >= known[0]) & (at <= known[-1])).any():
                lead = np.asarray(ours.smoothed) - np.interp(at, known, theirs.smoothed)
                leads.append((float(lead[both].min()), name))
        return min(leads, default=None)


@dataclass(frozen=True)
class Lower(ClaimOfEach):
    """A number of ASFL's runs is below that of another scheme, after as many rounds."""

    quantity: str
    than: str

    def say(self, outcome: Outcome) -> Said | None:
        if {OURS, self.than} - outcome.summary.runs.keys():
            return None
        quantity = QUANTITIES[self.quantity]
        ours, theirs = (outcome.summary.by_seed(scheme, self.quantity) for scheme in (OURS, self.than))
        lower = [their - our for our, their in paired(ours, theirs)]
        our, their = (with_range(list(values.values()), None, quantity.scale) for values in (ours, theirs))
        unit = " %" if quantity.unit == "%" else ""
        here = f"{our} against {their}{unit}, {in_seeds(lower, len(outcome.summary.seeds))}"
        return f"{quantity.in_words} below that of {self.than}", here, judge(Statistic.of(lower))


@dataclass(frozen=True)
class ShareOfDelay(ClaimOfEach):
    """Re-splits take no more than this share of the delay."""

    at_most: float

    def say(self, outcome: Outcome) -> Said:
        shares = list(outcome.summary.by_seed(OURS, "resplit_share").values())
        below = [self.at_most - one for one in shares]
        claim = f"re-splits take no more than {percent(self.at_most)} of the delay"
        here = f"{with_range(shares)} %, {in_seeds(below, len(outcome.summary.seeds))}"
        return claim, here, judge(Statistic.of(below))


@dataclass(frozen=True)
class MovesLessLater(ClaimOfEach):
    """The cut moves in most of the first three quarters of the rounds, and less often in the last."""

    def say(self, outcome: Outcome) -> Said:
        every = [moves(run.records) for run in outcome.runs if run.scheme == OURS]
        parts = [(moved[: 3 * len(moved) // 4], moved[3 * len(moved) // 4 :]) for moved in every]
        early, late = ([fmean(part) if part else math.nan for part in of_one] for of_one in zip(*parts, strict=True))
        fewer = [before - after for before, after in zip(early, late, strict=True)]
        claim = "the cut moves in almost every round at first, and seldom in the last quarter"
        here = f"in {with_range(early, 0)} % of the rounds, then in {with_range(late, 0)} %"
        often = Statistic.of(early).median > 0.5
        return claim, here, judge(Statistic.of(fewer)) if often else "doesn't hold"


@dataclass(frozen=True)
class Rises:
    """A number of ASFL's runs rises with what is varied, from the first value to the last."""

    quantity: str

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        quantity = QUANTITIES[self.quantity]
        values = [outcome.summary.by_seed(OURS, self.quantity) for outcome in outcomes]
        rise = [after - before for before, after in paired(values[0], values[-1])]
        medians = [number(quantity.scale * Statistic.of(one.values()).median) for one in values]
        steps = [f"{outcome.label}: {median}" for outcome, median in zip(outcomes, medians, strict=True)]
        claim, unit = f"{quantity.in_words} rises", " %" if quantity.unit == "%" else ""
        here = f"{', '.join(steps)}{unit}; {in_seeds(rise, max(len(one.summary.seeds) for one in outcomes))}"
        verdict = judge(Statistic.of(rise)) if len(outcomes) > 1 else "not shown"
        yield _finding(outcomes, "", claim, here, verdict, among_all=False)
