"""The pictures of a recipe."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from asfl.report.figure import BUDGET, drawing, make_logarithmic, spans_magnitudes
from asfl.report.sweep import Panel, accuracy_panel, draw_sweep, total_panels
from asfl.report.training import draw_accuracy, draw_way_to, style_of
from asfl.reproduce import Outcome, Recipe
from asfl.summary import OURS, Run, Statistic, Summary, moves, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW = 10
"""Rounds over which moves of the cut are counted."""


def recipe_figures(recipe: Recipe, outcomes: Mapping[str, Sequence[Outcome]]) -> "Iterator[tuple[str, Figure]]":
    """(name, figure), of every preset; the name begins with the preset if there are several."""
    for preset, of_preset in outcomes.items():
        prefix = f"{preset}-" if len(outcomes) > 1 else ""
        for name, figure in _figures(recipe, of_preset):
            yield prefix + name, figure


def _figures(recipe: Recipe, outcomes: Sequence[Outcome]) -> "Iterator[tuple[str, Figure]]":
    labels, summaries = [outcome.label for outcome in outcomes], [outcome.summary for outcome in outcomes]
    for picture in recipe.pictures:
        if picture == "accuracy" and len(outcomes) == 1:
            yield (
                "accuracy",
                draw_bars(summaries[0], [ACCURACY]),
            )
        elif picture == "accuracy":
            panels = [accuracy_panel(summaries), _panel_in_our_time(outcomes)]
            yield "accuracy", draw_sweep(recipe.varied, labels, panels)
        elif picture == "totals":
            yield "totals", draw_sweep(recipe.varied, labels, total_panels(summaries))
        else:
            for outcome in outcomes:
                prefix = f"{outcome.label}-" if len(outcomes) > 1 else ""
                for name, figure in _of_one_world(picture, outcome):
                    yield prefix + name, figure


def _panel_in_our_time(outcomes: Sequence[Outcome]) -> Panel:
    schemes = dict.fromkeys(scheme for outcome in outcomes for scheme in outcome.summary.runs)
    values = {
        scheme: [Statistic.of(outcome.accuracy_in_our_time(scheme).values()) for outcome in outcomes]
        for scheme in schemes
    }
    return Panel("… when ASFL has done its rounds", "%", values, 100)


def _of_one_world(picture: str, outcome: Outcome) -> "Iterator[tuple[str, Figure]]":
    target = outcome.summary.main_target()
    if picture == "curves":
        for axis in ("delay", "energy"):
            yield f"accuracy-{axis}", draw_accuracy(outcome.runs, axis, outcome.summary.targets)
    elif picture == "way" and target is not None:
        yield "time-to-accuracy", draw_way_to(outcome.summary, target)
    elif picture == "errors":
        yield "errors-discrepancy", draw_bars(outcome.summary, ERRORS_AND_DISCREPANCY)
    elif picture == "resplits":
        yield "resplits", draw_resplits([run for run in outcome.runs if run.scheme == OURS])


@dataclass(frozen=True)
class Bars:
    """One number of a run."""

    quantity: str
    title: str
    unit: str = ""
    scale: float = 1.0


ACCURACY = Bars("final_accuracy", "Accuracy after the last round", "%", 100)
ERRORS_AND_DISCREPANCY = (
    Bars("packet_error_rate", "Packet error rate", "%", 100),
    Bars("discrepancy", "Model discrepancy, in updates"),
)


def draw_bars(summary: Summary, panels: Sequence[Bars]) -> "Figure":
    """A bar per scheme, a dot per seed; on a logarithmic scale if schemes differ by orders of magnitude."""
    schemes = list(summary.runs)
    with drawing(4.75 * len(panels), 3.6) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            means = [panel.scale * summary.over_seeds(scheme, panel.quantity).mean for scheme in schemes]
            colours = [style_of(OURS)["color"] if scheme == OURS else "#b9c4d4" for scheme in schemes]
            axes.bar(range(len(schemes)), means, color=colours, width=0.66)
            for place, scheme in enumerate(schemes):
                seen = np.array(list(summary.by_seed(scheme, panel.quantity).values()))
                axes.plot(np.full(len(seen), place), panel.scale * seen, ".", color=BUDGET, markersize=4)
            if spans_magnitudes(means):
                make_logarithmic(axes, "y")
            axes.set(title=panel.title, ylabel=panel.unit)
            axes.set_xticks(range(len(schemes)), schemes, rotation=20, ha="right")
            axes.grid(axis="x", visible=False)
    return figure


def draw_resplits(runs: Sequence[Run]) -> "Figure":
    """How delay and the delay of re-splits add up, and how often the cut moves; a faint line per seed."""
    with drawing(9.5, 3.8) as figure:
        delays, moving = figure.subplots(1, 2)
        totals, resplits, shares = [], [], []
        for run in runs:
            totals.append(list(accumulate(record.delay_s for record in run.records)))
            resplits.append(list(accumulate(record.resplit_delay_s for record in run.records)))
            moved = moves(run.records)
            shares.append([100 * fmean(moved[max(0, end - WINDOW) : end]) for end in range(1, len(moved) + 1)])
        _draw_lines(delays, totals, "#3565a8", "all of it")
        _draw_lines(delays, resplits, style_of(OURS)["color"], "re-splits")
        _draw_lines(moving, shares, style_of(OURS)["color"], "")
        share = np.mean([part[-1] / whole[-1] for part, whole in zip(resplits, totals, strict=True) if whole[-1]])
        delays.set(title=f"Delay so far; re-splits take {percent(float(share), 1)}", ylabel="s", xlabel="round")
        moving.set(title=f"Rounds where the cut moves, of the last {WINDOW}", ylabel="%", xlabel="round", ylim=(0, 100))
        delays.legend()
    return figure


def _draw_lines(axes: "Axes", lines: Sequence[Sequence[float]], colour: str, label: str) -> None:
    for line in lines:
        axes.plot(range(1, len(line) + 1), line, color=colour, linewidth=0.8, alpha=0.35)
    shortest = min(map(len, lines))
    mean = np.mean([line[:shortest] for line in lines], axis=0)
    axes.plot(range(1, shortest + 1), mean, color=colour, linewidth=2.2, label=label)
