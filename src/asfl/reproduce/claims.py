"""What the paper claims, and what the runs say to it.

A difference is clear if its mean over seeds is larger than its standard deviation over seeds. A claim *holds* if the
difference is clear, has the claimed sign, and the claimed size is within one standard deviation or exceeded. It *holds
weaker* if just the size is missing. It is *mixed* if accuracies differ in what they say. With one seed there is no
deviation, and a verdict says so.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from asfl.reproduce.outcome import Outcome
from asfl.summary import OURS, Resource, Saving, Statistic, Summary, amount, moves, paired, percent, share

Verdict = Literal["holds", "holds weaker", "mixed", "not clear", "doesn't hold", "can't tell"]
Moment = Literal["rounds", "time"]

QUANTITIES: dict[str, tuple[str, float]] = {
    "final_accuracy": ("accuracy, %", 100),
    "total_delay_s": ("total delay, s", 1),
    "total_energy_j": ("total energy, J", 1),
    "packet_error_rate": ("packet errors, %", 100),
    "discrepancy": ("discrepancy", 1),
    "resplit_share": ("re-split share, %", 100),
}
"""Numbers of a run: what they are called, and the scale they are shown in."""


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


def judge(difference: Statistic, claimed: float = 0.0) -> Verdict:
    """`difference` and `claimed` are positive if they favour the claim."""
    if math.isnan(difference.mean):
        return "can't tell"
    spread = 0.0 if math.isnan(difference.sd) else difference.sd
    if abs(difference.mean) <= spread or difference.mean == 0:
        return "not clear"
    if difference.mean < 0:
        return "doesn't hold"
    return "holds" if difference.mean + spread >= claimed else "holds weaker"


def agreement(verdicts: Sequence[Verdict]) -> Verdict:
    """What several verdicts on one claim come to; those that can't tell have no say."""
    said = {verdict for verdict in verdicts if verdict != "can't tell"}
    if not said:
        return "can't tell"
    if said <= {"holds", "holds weaker"}:
        return "holds weaker" if "holds weaker" in said else "holds"
    return said.pop() if len(said) == 1 else "mixed"


@dataclass(frozen=True)
class Saves:
    """Less delay or energy than another scheme, to the same accuracy."""

    resource: Resource
    against: str
    by: float
    """As a share; 0 if the paper gives no figure."""

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        what = "delay" if self.resource == "delay_s" else "energy"
        size = f"{percent(self.by)} " if self.by else ""
        for outcome in outcomes:
            summary = outcome.summary
            claim = f"{what} to an accuracy {size}below {self.against}" + _at(outcome)
            if not summary.targets or {OURS, self.against} - summary.runs.keys():
                yield Finding(outcome.preset, claim, "no run reached any accuracy", "can't tell", len(summary.seeds))
                continue
            here = ", ".join(f"{self._text(summary, target)} to {percent(target)}" for target in summary.targets)
            verdict = agreement([self._verdict(summary, target) for target in summary.targets])
            yield Finding(outcome.preset, claim, here, verdict, len(summary.seeds))

    def _saved(self, summary: Summary, target: float) -> tuple[Saving, Statistic]:
        saving = summary.saving(self.against, target)
        assert saving is not None
        return saving, saving.delay if self.resource == "delay_s" else saving.energy

    def _text(self, summary: Summary, target: float) -> str:
        saving, saved = self._saved(summary, target)
        if saved.seeds:
            partly = f" ({saved.seeds} of {len(summary.seeds)} seeds)" if saved.seeds < len(summary.seeds) else ""
            return share(saved, 0, " %") + partly
        return "only ASFL" if saving.only_ours else f"only {self.against}" if saving.only_theirs else "neither"

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
        means = {name: Statistic.of(by_seed.values()) for name, by_seed in values.items()}
        others = {name: stat.mean for name, stat in means.items() if name != OURS and stat.seeds}
        if OURS not in means or not means[OURS].seeds or not others:
            return "no other scheme was evaluated by then" if OURS in means else "no run of ASFL", None
        best = max(others, key=lambda name: others[name])
        ahead = Statistic.of(ours - theirs for ours, theirs in paired(values[OURS], values[best]))
        verdict = judge(ahead)
        sign = {"holds": 1, "doesn't hold": -1}.get(verdict, 0)
        return f"{share(means[OURS], 1, ' %')} against {share(means[best], 1, ' %')} ({best})", sign

    def _accuracies(self, outcome: Outcome, scheme: str) -> Mapping[int, float]:
        if self.when == "time":
            return outcome.accuracy_in_our_time(scheme)
        return outcome.summary.by_seed(scheme, "final_accuracy")


@dataclass(frozen=True)
class Lower:
    """A number of ASFL's runs is below that of another scheme, after as many rounds."""

    quantity: str
    than: str

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        title, scale = QUANTITIES[self.quantity]
        name = title.partition(",")[0]
        for outcome in outcomes:
            ours, theirs = (outcome.summary.by_seed(scheme, self.quantity) for scheme in (OURS, self.than))
            difference = Statistic.of(their - our for our, their in paired(ours, theirs))
            shown = [amount(Statistic.of(values.values()), scale) for values in (ours, theirs)]
            yield Finding(
                outcome.preset,
                f"{name} below that of {self.than}" + _at(outcome),
                f"{shown[0]} against {shown[1]}" + (" %" if scale == 100 else ""),
                judge(difference),
                len(outcome.summary.seeds),
            )


@dataclass(frozen=True)
class MoreAccurate:
    """Than one other scheme, after as many rounds."""

    than: str
    by: float

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        for outcome in outcomes:
            ours, theirs = (outcome.summary.by_seed(scheme, "final_accuracy") for scheme in (OURS, self.than))
            ahead = Statistic.of(our - their for our, their in paired(ours, theirs))
            yield Finding(
                outcome.preset,
                f"{100 * self.by:g} points more accurate than {self.than}" + _at(outcome),
                f"{share(ahead)} points",
                judge(ahead, self.by),
                len(outcome.summary.seeds),
            )


@dataclass(frozen=True)
class ShareOfDelay:
    """Re-splits take no more than this share of the delay."""

    at_most: float

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        for outcome in outcomes:
            shares = outcome.summary.over_seeds(OURS, "resplit_share")
            spread = 0.0 if math.isnan(shares.sd) else shares.sd
            verdict: Verdict = "holds" if shares.mean - spread <= self.at_most else "doesn't hold"
            yield Finding(
                outcome.preset,
                f"re-splits take no more than {percent(self.at_most)} of the delay" + _at(outcome),
                share(shares, 1, " %"),
                "can't tell" if math.isnan(shares.mean) else verdict,
                len(outcome.summary.seeds),
            )


@dataclass(frozen=True)
class MovesLessLater:
    """The cut moves less often in the last quarter of the rounds than in the first three."""

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        for outcome in outcomes:
            halves = [_moves_early_and_late(moves(run.records)) for run in outcome.runs]
            early, late = (Statistic.of(values) for values in zip(*halves, strict=True))
            yield Finding(
                outcome.preset,
                "the cut moves in almost every round at first, and seldom in the last quarter" + _at(outcome),
                f"in {share(early, 0, ' %')} of the rounds, then in {share(late, 0, ' %')}",
                judge(Statistic.of(before - after for before, after in halves)),
                len(outcome.summary.seeds),
            )


def _moves_early_and_late(moved: Sequence[bool]) -> tuple[float, float]:
    split = 3 * len(moved) // 4
    early, late = moved[:split], moved[split:]
    return (sum(early) / len(early) if early else math.nan), (sum(late) / len(late) if late else math.nan)


@dataclass(frozen=True)
class Rises:
    """A number of ASFL's runs rises with what is varied, from the first value to the last."""

    quantity: str

    def check(self, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
        title, scale = QUANTITIES[self.quantity]
        first, last = (outcome.summary.by_seed(OURS, self.quantity) for outcome in (outcomes[0], outcomes[-1]))
        rise = Statistic.of(after - before for before, after in paired(first, last))
        steps = [f"{o.label}: {amount(o.summary.over_seeds(OURS, self.quantity), scale)}" for o in outcomes]
        yield Finding(
            outcomes[0].preset,
            f"{title.partition(',')[0]} rises",
            ", ".join(steps) + (" %" if scale == 100 else ""),
            judge(rise) if len(outcomes) > 1 else "can't tell",
            max(len(outcome.summary.seeds) for outcome in outcomes),
        )


def _at(outcome: Outcome) -> str:
    return f" ({outcome.label})" if outcome.label else ""
