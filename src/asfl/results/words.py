"""A comparison in plain words: what ASFL needs, who needs more, and who beats it."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from asfl.config.units import number, percent
from asfl.results.curves import Resource
from asfl.results.summary import Statistic, Summary, paired
from asfl.schemes import CEILING, OURS

NO_CLIENT = (
    "no client got a resource block in any round: nothing was learnt (decision.min_participants would change it)"
)


def in_words(summary: Summary) -> list[str]:
    """What the numbers say, in a few sentences: what ASFL needs, who needs more, and who beats it."""
    return list(_sentences(summary))


def _sentences(summary: Summary) -> Iterator[str]:
    target = summary.main_target()
    if target is None:
        yield "No run was evaluated, or none learnt anything; so there is no accuracy to compare at."
        return
    if OURS not in summary.runs:
        yield _ranking(summary, target)
    elif summary.reached(OURS, target, "delay_s"):
        yield from _on_the_way(summary, target)
    else:
        yield f"ASFL never reached {percent(target)} accuracy. {_ranking(summary, target)}"
    if OURS in summary.runs:
        yield from _at_the_end(summary)
    if CEILING in summary.runs:
        ceiling = summary.over_seeds(CEILING, "best_accuracy").median
        yield f"With all data in one place, at no cost, {percent(ceiling, 1)} would be the best: the ceiling."
    if len(summary.seeds) == 1:
        yield "One seed proves little: differences this size may be luck (--seeds 3 or more tells)."


def _ranking(summary: Summary, target: float) -> str:
    """Who reached it, the fastest first."""
    needed = {name: summary.to_reach(name, target, "delay_s") for name in summary.ranked if name != OURS}
    reached = sorted((stat.median, name) for name, stat in needed.items() if stat.seeds)
    never = [name for name, stat in needed.items() if not stat.seeds]
    shown = ", ".join(f"{name} ({number(delay)} s)" for delay, name in reached)
    return f"{percent(target)} accuracy, fastest first: {shown or 'no scheme'}." + _listed("Never reached it", never)


def _on_the_way(summary: Summary, target: float) -> Iterator[str]:
    """Delay and energy to the target, and who needs more or less of each."""
    others = [name for name in summary.ranked if name != OURS]
    delay, energy = (summary.to_reach(OURS, target, resource) for resource in ("delay_s", "energy_j"))
    runs = len(summary.runs[OURS])
    partly = f", with {delay.seeds} of {runs} seeds" if delay.seeds < runs else ""
    never = [name for name in others if not summary.reached(name, target, "delay_s")]
    yield (
        f"To reach {percent(target)} accuracy ASFL needs {number(delay.median)} s ({number(energy.median)} J){partly}."
        + _verdicts(summary, target, "delay_s", ("Slower", "Faster"))
        + _listed("Never reached it", never)
    )
    energies = _verdicts(summary, target, "energy_j", ("More", "Less"))
    if energies:
        yield f"Energy on the way there, compared with ASFL's {number(energy.median)} J.{energies}"


def _verdicts(summary: Summary, target: float, resource: Resource, words: tuple[str, str]) -> str:
    """Who needs more or less than ASFL, as multiples of what it needs: geometric means of theirs / ours over seeds."""
    ours, found = summary.reached(OURS, target, resource), _Found(*words)
    for name in (name for name in summary.ranked if name != OURS):
        theirs = summary.reached(name, target, resource)
        ratios = [math.log(their / our) for our, their in paired(ours, theirs) if our > 0 and their > 0]
        if ratios:
            reached, runs = len(theirs), len(summary.runs[name])
            partly = f", {reached} of {runs} seeds" if reached < runs else ""
            found.add(ratios, 0.01, fmean(ratios), f"{name} ({_times(math.exp(fmean(ratios)))}{partly})")
        elif theirs:
            found.lists["Reached it with other seeds only"].append((0, name))
    return str(found)


def _at_the_end(summary: Summary) -> Iterator[str]:
    """Final accuracy, and who is above or below."""
    ours, found = summary.by_seed(OURS, "final_accuracy"), _Found("Higher", "Lower")
    final = summary.over_seeds(OURS, "final_accuracy").median
    for name in (name for name in summary.ranked if name != OURS):
        pairs = paired(ours, summary.by_seed(name, "final_accuracy"))
        theirs = summary.over_seeds(name, "final_accuracy").median
        if pairs and not math.isnan(theirs):
            found.add([their - our for our, their in pairs], 0.005, -theirs, f"{name} ({percent(theirs, 1)})")
    rounds = max(run.rounds for run in summary.runs[OURS])
    yield f"After {rounds} round{'s' * (rounds != 1)} ASFL is at {percent(final, 1)}.{found}"


class _Found:
    """Names sorted into who is above ASFL, who is below, and who isn't clearly either."""

    def __init__(self, above: str, below: str) -> None:
        self.above, self.below, self.neither = above, below, "Not clearly different"
        names = (above, below, self.neither, "Reached it with other seeds only")
        self.lists: dict[str, list[tuple[float, str]]] = {name: [] for name in names}

    def add(self, differences: Sequence[float], least: float, place: float, text: str) -> None:
        """Clearly different: 0 is outside the interval of the median; with one seed, further away than `least`."""
        stat = Statistic.of(differences)
        clear = stat.is_clear if stat.seeds > 1 else abs(stat.median) > least
        self.lists[self.neither if not clear else self.above if stat.median > 0 else self.below].append((place, text))

    def __str__(self) -> str:
        return "".join(_listed(word, [text for _, text in sorted(entries)]) for word, entries in self.lists.items())


def _listed(word: str, names: Sequence[str]) -> str:
    return f" {word}: {', '.join(names)}." if names else ""


def _times(ratio: float) -> str:
    return f"{ratio:.2f}×" if ratio < 2 else f"{ratio:.1f}×" if ratio < 10 else f"{ratio:,.0f}×"
