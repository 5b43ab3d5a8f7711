"""Delay against energy at equal accuracy, and what each decision of a scheme is worth there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from asfl.config.units import percent
from asfl.results.compare import Comparison, read_front
from asfl.results.curves import CEILING, PLUS, Resource, Run
from asfl.results.figures.figure import (
    BUDGET,
    FAINT,
    drawing,
    scale,
    spans_magnitudes,
)
from asfl.results.figures.training import style_of
from asfl.results.reproduce.outcome import Outcome
from asfl.results.summary import Statistic, Summary, paired

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Place:
    """What one scheme, with one setting, needs to reach an accuracy."""

    scheme: str
    setting: str
    """Empty: as it is."""
    delay_s: Statistic
    energy_j: Statistic


def front_of(places: Sequence[Place]) -> list[Place]:
    """Those that nobody beats in both, by their delay."""
    best: list[Place] = []
    for place in sorted(places, key=lambda one: (one.delay_s.median, one.energy_j.median)):
        if not best or place.energy_j.median < best[-1].energy_j.median:
            best.append(place)
    return best


def draw_front(outcomes: Sequence[Outcome]) -> "Iterator[tuple[str, Figure]]":
    """For the accuracy that most schemes reach and the highest that any reaches: name and figure."""
    main = outcomes[0].summary.main_target()
    highest = [t for t in outcomes[0].summary.targets if places_at(outcomes, t)][-1:]
    for target in dict.fromkeys([*([] if main is None else [main]), *highest]):
        places = places_at(outcomes, target)
        if places:
            figure = _draw(places, target)
            there = {place.scheme for place in places}
            never = [name for name in outcomes[0].summary.ranked if name not in there]
            if never:
                note = f"not there with every seed: {', '.join(never)}"
                figure.supxlabel(note, fontsize=8, color="#666666")
            yield f"pareto-{100 * target:.0f}", figure


def along_front(comparison: Comparison, summary: Summary, runs: Sequence[Run]) -> list[Outcome]:
    """A comparison as it is, and at the other prices of energy that were asked for."""
    every = {"": runs, **read_front(comparison)}
    return [Outcome("", label, some, Summary.of(some, summary.targets)) for label, some in every.items()]


def places_at(outcomes: Sequence[Outcome], target: float) -> list[Place]:
    """Of every scheme that reaches the target with every seed."""
    found = []
    for outcome in outcomes:
        for scheme in outcome.summary.ranked:
            delay, energy = (outcome.summary.to_reach(scheme, target, of) for of in ("delay_s", "energy_j"))
            if delay.seeds == len(outcome.summary.runs[scheme]):
                found.append(Place(scheme, outcome.label, delay, energy))
    return found


def _draw(places: Sequence[Place], target: float) -> "Figure":
    with drawing(8.2, 5.4) as figure:
        axes = figure.subplots()
        best = front_of(places)
        axes.plot(
            [one.delay_s.median for one in best], [one.energy_j.median for one in best],
            color=FAINT, linewidth=5, alpha=0.4, solid_capstyle="round", zorder=1, label="front: unbeaten in both",
        )  # fmt: skip
        for place in places:
            colour = style_of(place.scheme)["color"]
            x, y = place.delay_s, place.energy_j
            around = {"xerr": _around(x), "yerr": _around(y), "elinewidth": 1, "ecolor": colour, "zorder": 3}
            face = "none" if place.setting else colour
            axes.errorbar(x.median, y.median, marker="o", markersize=7, color=colour, markerfacecolor=face, **around)
            text = place.setting or place.scheme
            looks = {"fontsize": 7.5 if place.setting else 9, "color": colour}
            beside = (7, -10) if place.setting else (7, 4)
            axes.annotate(text, (x.median, y.median), beside, textcoords="offset points", **looks)
        axes.set(xlabel="delay [s]", ylabel="energy of all clients [J]", title=f"What {percent(target)} accuracy takes")
        scale(axes, "x", logarithmic=spans_magnitudes([place.delay_s.median for place in places]))
        scale(axes, "y", logarithmic=spans_magnitudes([place.energy_j.median for place in places]))
        axes.margins(0.15)
        if len(best) > 1:  # one that is unbeaten by all is no line
            axes.legend(loc="best")
    return figure


def _around(stat: Statistic) -> list[list[float]] | None:
    return [[stat.median - stat.low], [stat.high - stat.median]] if stat.seeds > 1 else None


def draw_ablation(summary: Summary, target: float) -> "Figure":
    """Delay and energy to a target as multiples of the whole scheme's, paired by seed; and the final accuracy."""
    schemes = [PLUS, *(name for name in summary.ranked if name != PLUS)]
    with drawing(11.5, 1.4 + 0.42 * len(schemes)) as figure:
        delay, energy, accuracy = figure.subplots(1, 3, sharey=True)
        ways: tuple[tuple[Axes, Resource], ...] = ((delay, "delay_s"), (energy, "energy_j"))
        for axes, resource in ways:
            whole = summary.reached(PLUS, target, resource)
            for row, name in enumerate(schemes):
                theirs = summary.reached(name, target, resource)
                _draw_bar(axes, row, name, [their / our for our, their in paired(whole, theirs) if our > 0])
            axes.axvline(1, color=BUDGET, linewidth=1)
        for row, name in enumerate(schemes):
            _draw_bar(accuracy, row, name, [100 * one for one in summary.by_seed(name, "final_accuracy").values()])
        if CEILING in summary.runs:
            accuracy.axvline(100 * summary.over_seeds(CEILING, "final_accuracy").median, **_line(CEILING))
            accuracy.set_xlabel("%; dashed: the ceiling, central")
        delay.set(title=f"Delay to {percent(target)}", xlabel=f"times that of {PLUS}")
        energy.set(title=f"Energy to {percent(target)}", xlabel=f"times that of {PLUS}")
        accuracy.set_title("Accuracy at the end")
        delay.set_yticks(range(len(schemes)), schemes)
        delay.set_ylim(len(schemes) - 0.5, -0.5)
        for axes in (delay, energy, accuracy):
            axes.grid(axis="y", visible=False)
            axes.set_xlim(left=0)
    return figure


def _line(scheme: str) -> dict[str, object]:
    return {name: value for name, value in style_of(scheme).items() if name != "zorder"}


def _draw_bar(axes: "Axes", row: int, scheme: str, values: Sequence[float]) -> None:
    """Median and a dot per seed."""
    if not values:
        axes.annotate(
            "not reached", (0, row), (6, 0), ("axes fraction", "data"), "offset points",
            color=FAINT, va="center", style="italic",
        )  # fmt: skip
        return
    axes.barh(row, float(np.median(values)), height=0.66, color=style_of(scheme)["color"], zorder=2)
    axes.plot(values, np.full(len(values), row), ".", color=BUDGET, markersize=4, zorder=4)
