"""What the paper claims, and what the runs say to it.

A difference is clear if 0 is outside the 95 % bootstrap interval of its median over seeds. A claim *holds* if the
difference is clear, has the claimed sign, and the claimed size is within the interval or exceeded. It *holds weaker* if
just the size is missing. It is *mixed* if accuracies differ in what they say. With one seed there is no interval, and a
verdict says so.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import numpy as np

from asfl.config.units import percent
from asfl.results.curves import CEILING, OURS, Curve, Resource
from asfl.results.quantities import QUANTITIES, amount, partly, share
from asfl.results.reproduce.outcome import Outcome
from asfl.results.summary import Saving, Statistic, Summary, moves, paired

Verdict = Literal["holds", "holds weaker", "mixed", "not clear", "doesn't hold", "can't tell"]
Moment = Literal["rounds", "time"]
BEST = "the best other scheme"
"""Whichever needs least, of all that are neither ours nor a variant of ours."""


@dataclass(frozen=True)
class Finding:
    """One claim in one world."""

    preset: str
    claim: str
    here: str
    verdict: Verdict
    seeds: int

    @property
    def conclusion(self) -> str:
        return self.verdict + (", one seed" if self.seeds == 1 and self.verdict != "can't tell" else "")


class Claim(Protocol):
    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        """`outcomes`: those of one preset, in the order of what is varied."""
        ...


class ClaimOfEach:
    """A claim that is checked in every world by itself."""

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        for outcome in outcomes:
            if len(outcome.summary.runs) == 1 < len(outcomes):  # a scheme alone, with another setting than elsewhere
                continue
            claim, here, verdict = self.say(outcome)
            where = f" ({outcome.label})" if outcome.label else ""
            yield Finding(outcome.preset, claim + where, here, verdict, len(outcome.summary.seeds))

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        """The claim, what is found here, and the verdict."""
        raise NotImplementedError


def judge(difference: Statistic, claimed: float = 0.0) -> Verdict:
    """`difference` and `claimed` are positive if they favour the claim."""
    if not difference.seeds:
        return "can't tell"
    if not difference.is_clear:
        return "not clear"
    if difference.median < 0:
        return "doesn't hold"
    most = difference.median if math.isnan(difference.high) else difference.high
    return "holds" if most >= claimed else "holds weaker"


def agreement(verdicts: Sequence[Verdict]) -> Verdict:
    """What several verdicts on one claim come to; those that can't tell have no say."""
    said = {verdict for verdict in verdicts if verdict != "can't tell"}
    if not said:
        return "can't tell"
    if said <= {"holds", "holds weaker"}:
        return "holds weaker" if "holds weaker" in said else "holds"
    return said.pop() if len(said) == 1 else "mixed"


@dataclass(frozen=True)
class Saves(ClaimOfEach):
    """Less delay or energy than another scheme, to the same accuracy."""

    resource: Resource
    against: str
    """A scheme, or `BEST`."""
    by: float
    """As a share; 0 if the paper gives no figure."""
    ours: str = OURS

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        what = "delay" if self.resource == "delay_s" else "energy"
        summary, size = outcome.summary, f"{percent(self.by)} " if self.by else ""
        whose = "" if self.ours == OURS else f"{self.ours}: "
        claim = f"{whose}{what} to an accuracy {size}below {self.against}"
        known = [target for target in summary.targets if self._other(summary, target) in summary.runs]
        absent = [one for one in (self.ours, self.against) if one != BEST and one not in summary.runs]
        if absent or not known:
            return claim, f"no run of {absent[0]}" if absent else "no run reached any accuracy", "can't tell"
        here = ", ".join(f"{self._text(summary, target)} to {percent(target)}" for target in known)
        return claim, here, agreement([self._verdict(summary, target) for target in known])

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

    def _saved(self, summary: Summary, target: float) -> tuple[Saving, Statistic]:
        saving = summary.saving(self._other(summary, target), target, self.ours)
        assert saving is not None
        return saving, saving.delay if self.resource == "delay_s" else saving.energy

    def _text(self, summary: Summary, target: float) -> str:
        saving, saved = self._saved(summary, target)
        other = self._other(summary, target)
        if saved.seeds:
            named = f" ({other})" if self.against == BEST else ""
            return share(saved, 0, " %") + partly(saved, len(summary.seeds)) + named
        ours = "ASFL" if self.ours == OURS else self.ours
        return f"only {ours}" if saving.only_ours else f"only {other}" if saving.only_theirs else "neither"

    def _verdict(self, summary: Summary, target: float) -> Verdict:
        saving, saved = self._saved(summary, target)
        if saved.seeds:
            lucky = saved.seeds == 1 < len(summary.seeds)  # one seed of several got there with both
            return "can't tell" if lucky else judge(saved, self.by)
        return "holds" if saving.only_ours else "doesn't hold" if saving.only_theirs else "can't tell"


@dataclass(frozen=True)
class MostAccurate:
    """ASFL is ahead of every other scheme in most cases: after as many rounds, or when ASFL has done its rounds."""

    when: Moment

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        after = "after as many rounds" if self.when == "rounds" else "in the time ASFL takes"
        texts, places = [], []
        for outcome in outcomes:
            text, place = self._place(outcome)
            texts.append(f"{outcome.label}: {text}" if outcome.label else text)
            places.append(place)
        known = [place for place in places if place is not None]
        verdict: Verdict = "can't tell"
        if known:
            first = sum(place > 0 for place in known)
            level = sum(place == 0 for place in known)
            won, not_lost = 2 * first > len(known), 2 * (first + level) > len(known)
            verdict = "holds" if won else "not clear" if not_lost else "doesn't hold"
        where = " in most cases" if len(outcomes) > 1 else ""
        seeds = max(len(outcome.summary.seeds) for outcome in outcomes)
        yield Finding(outcomes[0].preset, f"most accurate {after}{where}", "; ".join(texts), verdict, seeds)

    def _place(self, outcome: Outcome) -> tuple[str, int | None]:
        """A text, and +1 if ASFL is clearly ahead of the best other, −1 if clearly behind, 0 if neither."""
        values = {name: self._accuracies(outcome, name) for name in outcome.summary.runs}
        stats = {name: Statistic.of(by_seed.values()) for name, by_seed in values.items()}
        ranked = {name: stat.median for name, stat in stats.items() if name != CEILING and stat.seeds}
        others = {name: accuracy for name, accuracy in ranked.items() if not name.startswith(OURS)}
        if OURS not in ranked or not others:
            return "no other scheme was evaluated by then" if OURS in stats else "no run of ASFL", None
        best = max(others, key=lambda name: others[name])
        ahead = Statistic.of(ours - theirs for ours, theirs in paired(values[OURS], values[best]))
        verdict = judge(ahead)
        sign = {"holds": 1, "doesn't hold": -1}.get(verdict, 0)
        return f"{share(stats[OURS], 1, ' %')} against {share(stats[best], 1, ' %')} ({best})", sign

    def _accuracies(self, outcome: Outcome, scheme: str) -> Mapping[int, float]:
        quantity = "final_accuracy" if self.when == "rounds" else "accuracy_in_our_time"
        return outcome.summary.by_seed(scheme, quantity)


@dataclass(frozen=True)
class Lower(ClaimOfEach):
    """A number of ASFL's runs is below that of another scheme, after as many rounds."""

    quantity: str
    than: str

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        quantity = QUANTITIES[self.quantity]
        ours, theirs = (outcome.summary.by_seed(scheme, self.quantity) for scheme in (OURS, self.than))
        difference = Statistic.of(their - our for our, their in paired(ours, theirs))
        our, their = (amount(Statistic.of(values.values()), quantity.scale) for values in (ours, theirs))
        here = f"{our} against {their}" + (" %" if quantity.unit == "%" else "")
        return f"{quantity.in_words} below that of {self.than}", here, judge(difference)


@dataclass(frozen=True)
class MoreAccurate(ClaimOfEach):
    """Than one other scheme, after as many rounds."""

    than: str
    by: float
    ours: str = OURS

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        ahead = Statistic.of(self._ahead(outcome))
        claim = f"{100 * self.by:g} points more accurate than {self.than}"
        return claim, f"{share(ahead)} points", judge(ahead, self.by)

    def _ahead(self, outcome: Outcome) -> list[float]:
        ours, theirs = (outcome.summary.by_seed(scheme, "final_accuracy") for scheme in (self.ours, self.than))
        return [our - their for our, their in paired(ours, theirs)]


@dataclass(frozen=True)
class NearlyAsAccurate(MoreAccurate):
    """No more than `by` behind another scheme, or the ceiling, after as many rounds."""

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        ahead = self._ahead(outcome)
        claim = f"{self.ours}: at most {100 * self.by:g} points less accurate than {self.than}"
        return claim, f"{share(Statistic.of(ahead))} points", judge(Statistic.of(one + self.by for one in ahead))


@dataclass(frozen=True)
class NeverBehind(ClaimOfEach):
    """At no time, or on no energy, is another scheme more accurate by more than `by`, while ours trains."""

    resource: Resource
    by: float
    ours: str

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        what = "delay" if self.resource == "delay_s" else "energy"
        claim = f"{self.ours}: at no {what} more than {100 * self.by:g} points behind any other scheme"
        worst = dict(filter(None, map(partial(self._worst, outcome), outcome.summary.seeds)))
        ahead = Statistic.of(ahead for ahead, _ in worst.values())
        whom = ", ".join(sorted({name for _, name in worst.values()}))
        here = f"at worst {share(ahead)} points ahead of the best other ({whom})" if worst else "no other run"
        return claim, here, judge(Statistic.of(ahead + self.by for ahead, _ in worst.values()))

    def _worst(self, outcome: Outcome, seed: int) -> tuple[int, tuple[float, str]] | None:
        """How far ours is ahead of the best other where that is least; and who that is."""
        runs = {run.scheme: run for run in outcome.runs if run.seed == seed and not run.is_ceiling}
        if self.ours not in runs:
            return None
        axis = self.resource.partition("_")[0]
        ours, leads = Curve.of(runs.pop(self.ours).records), []
        for name, run in runs.items():
            theirs = Curve.of(run.records)
            at, known = np.asarray(ours.along(axis)), np.asarray(theirs.along(axis))
            if known.size and (later := at >= known[0]).any():
                lead = np.asarray(ours.smoothed) - np.interp(at, known, theirs.smoothed)
                leads.append((float(lead[later].min()), name))
        return (seed, min(leads)) if leads else None


@dataclass(frozen=True)
class ShareOfDelay(ClaimOfEach):
    """Re-splits take no more than this share of the delay."""

    at_most: float

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        shares = outcome.summary.over_seeds(OURS, "resplit_share")
        least = shares.median if math.isnan(shares.low) else shares.low
        verdict: Verdict = "holds" if least <= self.at_most else "doesn't hold"
        claim = f"re-splits take no more than {percent(self.at_most)} of the delay"
        return claim, share(shares, 1, " %"), verdict if shares.seeds else "can't tell"


@dataclass(frozen=True)
class MovesLessLater(ClaimOfEach):
    """The cut moves in most of the first three quarters of the rounds, and less often in the last."""

    def say(self, outcome: Outcome) -> tuple[str, str, Verdict]:
        parts = [_moves_early_and_late(moves(run.records)) for run in outcome.runs]
        early, late = (share(Statistic.of(values), 0, " %") for values in zip(*parts, strict=True))
        claim = "the cut moves in almost every round at first, and seldom in the last quarter"
        here = f"in {early} of the rounds, then in {late}"
        often = Statistic.of(before for before, _ in parts).median > 0.5
        return claim, here, judge(Statistic.of(before - after for before, after in parts)) if often else "doesn't hold"


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
        first, last = (outcome.summary.by_seed(OURS, self.quantity) for outcome in (outcomes[0], outcomes[-1]))
        rise = Statistic.of(after - before for before, after in paired(first, last))
        steps = [f"{o.label}: {amount(o.summary.over_seeds(OURS, self.quantity), quantity.scale)}" for o in outcomes]
        yield Finding(
            outcomes[0].preset,
            f"{quantity.in_words} rises",
            ", ".join(steps) + (" %" if quantity.unit == "%" else ""),
            judge(rise) if len(outcomes) > 1 else "can't tell",
            max(len(outcome.summary.seeds) for outcome in outcomes),
        )
