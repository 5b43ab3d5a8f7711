"""What the paper claims, and what the runs say to it.

A difference is clear if 0 is outside the 95 % bootstrap interval of its median over seeds: of up to five seeds, if all
have its sign. A claim *holds* if the difference is clear, has the claimed sign, and its median at least the claimed
size. It *holds weaker* if just the size is missing. It is *mixed* if accuracies differ in what they say. Where the runs
of one scheme alone reached an accuracy, nothing is known of the other's costs: *not shown*. Accuracies are compared
after equally many mini-batches, seconds or joules, as many as both runs have.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

import numpy as np

from asfl.config.units import number, percent
from asfl.results.curves import Curve, Resource, Run
from asfl.results.quantities import QUANTITIES
from asfl.results.summary import Outcome, Statistic, Summary, moves, paired
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


class ClaimOfEach:
    """A claim that is checked in every world by itself."""

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        most = max(len(outcome.summary.runs) for outcome in outcomes)
        for outcome in outcomes:
            if len(outcome.summary.runs) == 1 < most:  # a scheme alone, with another setting than elsewhere
                continue
            claim, here, verdict = self.say(outcome)
            seeds, about = len(outcome.summary.seeds), about_runs(claim, [outcome], among_all=self.among_all)
            yield Finding(outcome.preset, outcome.label, claim, here, verdict, seeds, about)

    @property
    def among_all(self) -> bool:
        """Whether all schemes there matter to it."""
        return False

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        """The claim, what is found here, and the verdict."""
        raise NotImplementedError


def about_runs(claim: str, outcomes: Sequence[Outcome], *, among_all: bool) -> str:
    schemes = sorted({name for outcome in outcomes for name in outcome.summary.runs}) if among_all else []
    return "; ".join([claim, *(outcome.world for outcome in outcomes), *schemes])


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
    return median if math.isnan(stat.low) else f"{median} ({low} to {high})"


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
    def among_all(self) -> bool:
        return self.against == BEST

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        what = "delay" if self.resource == "delay_s" else "energy"
        summary, size = outcome.summary, f"{percent(self.by)} " if self.by else ""
        whose = "" if self.ours == OURS else f"{self.ours}: "
        claim = f"{whose}{what} to an accuracy {size}below {self.against}"
        absent = [one for one in (self.ours, self.against) if one != BEST and one not in summary.runs]
        if absent:
            return claim, f"no run of {absent[0]}", "not shown"
        known = [target for target in summary.targets if self._other(summary, target) in summary.runs]
        said = [self._at(summary, target) for target in known]
        here = "; ".join(text for text, _ in said if text)
        return claim, here or "no accuracy that either reached", agreement([verdict for _, verdict in said])

    def _other(self, summary: Summary, target: float) -> str:
        """The scheme it is compared with; the best one may be another for each accuracy."""
        if self.against != BEST:
            return self.against
        needed = {
            name: summary.to_reach(name, target, self.resource)
            for name in summary.ranked
            if not name.startswith(self.ours)
        }
        return min(needed, key=lambda name: needed[name].median if needed[name].seeds else math.inf, default="")

    def _at(self, summary: Summary, target: float) -> tuple[str, Verdict]:
        """What is found at one accuracy, and the verdict; an empty text if neither got there."""
        other = self._other(summary, target)
        ours, theirs = (summary.reached(scheme, target, self.resource) for scheme in (self.ours, other))
        saved = [1 - our / their for our, their in paired(ours, theirs) if their > 0]
        to, trained = f"to {percent(target)}", len(summary.seeds)
        if not saved:
            alone = self.ours if ours and not theirs else other if theirs and not ours else ""
            return (f"{to} only {alone}" if alone else f"{to} never with the same seed" if ours else ""), "not shown"
        named = f" ({other})" if self.against == BEST else ""
        text = f"{to} {with_range(saved, 0)} %{named}, {in_seeds(saved, trained)}"
        return text, judge(Statistic.of(saved), self.by) if 2 * len(saved) > trained else "not shown"


@dataclass(frozen=True)
class MostAccurate:
    """ASFL is ahead of every other scheme in most cases, after as many rounds or in as much time."""

    at: Axis

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        texts, places = [], []
        for outcome in outcomes:
            text, place = self._place(outcome)
            texts.append(f"{outcome.label}: {text}" if outcome.label else text)
            places.append(place)
        known = [place for place in places if place is not None]
        verdict: Verdict = "not shown"
        if known:
            first = sum(place > 0 for place in known)
            level = sum(place == 0 for place in known)
            won, not_lost = 2 * first > len(known), 2 * (first + level) > len(known)
            verdict = "holds" if won else "not clear" if not_lost else "doesn't hold"
        claim = f"most accurate at {EQUAL[self.at]}" + (" in most cases" if len(outcomes) > 1 else "")
        seeds, about = max(len(o.summary.seeds) for o in outcomes), about_runs(claim, outcomes, among_all=True)
        yield Finding(outcomes[0].preset, "", claim, "; ".join(texts), verdict, seeds, about)

    def _place(self, outcome: Outcome) -> tuple[str, int | None]:
        """A text, and +1 if ASFL is clearly ahead of the best other, −1 if clearly behind, 0 if neither."""
        if OURS not in outcome.summary.runs:
            return "no run of ASFL", None
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
class Lower(ClaimOfEach):
    """A number of ASFL's runs is below that of another scheme, after as many rounds."""

    quantity: str
    than: str

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        quantity = QUANTITIES[self.quantity]
        ours, theirs = (outcome.summary.by_seed(scheme, self.quantity) for scheme in (OURS, self.than))
        lower = [their - our for our, their in paired(ours, theirs)]
        our, their = (with_range(list(values.values()), None, quantity.scale) for values in (ours, theirs))
        unit = " %" if quantity.unit == "%" else ""
        here = f"{our} against {their}{unit}, {in_seeds(lower, len(outcome.summary.seeds))}"
        return f"{quantity.in_words} below that of {self.than}", here, judge(Statistic.of(lower))


@dataclass(frozen=True)
class MoreAccurate(ClaimOfEach):
    """Than one other scheme, after as many rounds, or as much time or energy."""

    than: str
    by: float
    """Below 0: no more than so much behind."""
    ours: str = OURS
    at: Axis = "rounds"

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        leads = [ours - theirs for ours, theirs in at_equal(outcome, self.ours, self.than, self.at)]
        shown = [lead - self.by for lead in leads] if self.by < 0 else leads
        whose = "" if self.ours == OURS else f"{self.ours}: "
        by = f"at most {-100 * self.by:g} points less" if self.by < 0 else f"{100 * self.by:g} points more"
        claim = f"{whose}{by} accurate than {self.than} at {EQUAL[self.at]}"
        here = (
            f"{with_range(leads)} points, {in_seeds(shown, len(outcome.summary.seeds))}"
            if leads
            else "nothing to compare"
        )
        return claim, here, judge(Statistic.of(shown), max(self.by, 0.0))


@dataclass(frozen=True)
class NeverBehind(ClaimOfEach):
    """At no time, or on no energy, is another scheme more accurate by more than `by`, while both train."""

    resource: Resource
    by: float
    ours: str

    @property
    def among_all(self) -> bool:
        return True

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        what = "time" if self.resource == "delay_s" else "energy"
        claim = f"{self.ours}: at no equal {what} more than {100 * self.by:g} points behind any other scheme"
        worst = dict(filter(None, map(partial(self._worst, outcome), outcome.summary.seeds)))
        leads = [ahead for ahead, _ in worst.values()]
        whom = ", ".join(sorted({name for _, name in worst.values()}))
        won = in_seeds([lead + self.by for lead in leads], len(outcome.summary.seeds))
        here = (
            f"at worst {with_range(leads)} points ahead of the best other ({whom}), {won}" if worst else "no other run"
        )
        return claim, here, judge(Statistic.of(lead + self.by for lead in leads))

    def _worst(self, outcome: Outcome, seed: int) -> tuple[int, tuple[float, str]] | None:
        """How far ours is ahead of the best other where that is least, while both train; and who that is."""
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
        return (seed, min(leads)) if leads else None


@dataclass(frozen=True)
class ShareOfDelay(ClaimOfEach):
    """Re-splits take no more than this share of the delay."""

    at_most: float

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        shares = list(outcome.summary.by_seed(OURS, "resplit_share").values())
        below = [self.at_most - one for one in shares]
        claim = f"re-splits take no more than {percent(self.at_most)} of the delay"
        here = f"{with_range(shares)} %, {in_seeds(below, len(outcome.summary.seeds))}"
        return claim, here, judge(Statistic.of(below))


@dataclass(frozen=True)
class MovesLessLater(ClaimOfEach):
    """The cut moves in most of the first three quarters of the rounds, and less often in the last."""

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        parts = [_moves_early_and_late(moves(run.records)) for run in outcome.runs if run.scheme == OURS]
        fewer = [before - after for before, after in parts]
        early, late = (with_range(values, 0) for values in zip(*parts, strict=True))
        claim = "the cut moves in almost every round at first, and seldom in the last quarter"
        here = f"in {early} % of the rounds, then in {late} %"
        often = Statistic.of(before for before, _ in parts).median > 0.5
        return claim, here, judge(Statistic.of(fewer)) if often else "doesn't hold"


def _moves_early_and_late(moved: Sequence[bool]) -> tuple[float, float]:
    split = 3 * len(moved) // 4
    early, late = moved[:split], moved[split:]
    return (sum(early) / len(early) if early else math.nan), (sum(late) / len(late) if late else math.nan)


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
        seeds = max(len(outcome.summary.seeds) for outcome in outcomes)
        claim, unit = f"{quantity.in_words} rises", " %" if quantity.unit == "%" else ""
        yield Finding(
            outcomes[0].preset,
            "",
            claim,
            f"{', '.join(steps)}{unit}; {in_seeds(rise, seeds)}",
            judge(Statistic.of(rise)) if len(outcomes) > 1 else "not shown",
            seeds,
            about_runs(claim, outcomes, among_all=False),
        )
