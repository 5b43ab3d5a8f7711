"""The pictures of a recipe."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from asfl.config.units import percent
from asfl.results.charged import said_once
from asfl.results.curves import OURS, Run
from asfl.results.figures.figure import BUDGET, MEDIAN, drawing, scale, spans_magnitudes, subtitle
from asfl.results.figures.front import draw_ablation, draw_front
from asfl.results.figures.sweep import draw_sweep, quantity_panel, total_panels
from asfl.results.figures.training import draw_headline, draw_way_to, style_of
from asfl.results.quantities import QUANTITIES
from asfl.results.reproduce import Outcome, Recipe
from asfl.results.summary import Summary, moves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW = 10
"""Rounds over which moves of the cut are counted."""


def recipe_figures(
    recipe: Recipe,
    outcomes: Mapping[str, Sequence[Outcome]],
    recorded: Mapping[str, Sequence[Outcome]] = MappingProxyType({}),
) -> "Iterator[tuple[str, Figure]]":
    """(name, figure), of every preset; the name begins with the preset if there are several.

    `recorded`: as it was, where these outcomes are recharged.
    """
    for preset, of_preset in outcomes.items():
        prefix = f"{preset}-" if len(outcomes) > 1 else ""
        for name, figure in _figures(recipe, of_preset, recorded.get(preset, [])):
            subtitle(figure, said_once(outcome.summary.model for outcome in of_preset))
            yield prefix + name, figure


def _figures(
    recipe: Recipe, outcomes: Sequence[Outcome], recorded: Sequence[Outcome]
) -> "Iterator[tuple[str, Figure]]":
    before = {outcome.label: outcome.runs for outcome in recorded}
    labels, summaries = [outcome.label for outcome in outcomes], [outcome.summary for outcome in outcomes]
    for picture in recipe.pictures:
        if picture == "accuracy" and len(outcomes) == 1:
            yield ("accuracy", draw_bars(summaries[0], ["final_accuracy"]))
        elif picture == "accuracy":
            panels = [quantity_panel(summaries, name) for name in ("final_accuracy", "accuracy_in_our_time")]
            yield "accuracy", draw_sweep(recipe.varied, labels, panels)
        elif picture == "pareto":
            yield from draw_front(outcomes)
        elif picture == "totals":
            yield "totals", draw_sweep(recipe.varied, labels, total_panels(summaries))
        else:
            most = max(len(outcome.summary.runs) for outcome in outcomes)
            shown = [outcome for outcome in outcomes if len(outcome.summary.runs) > 1 or most == 1]
            for outcome in shown:  # a scheme alone, with another setting, is a point of the front
                prefix = f"{outcome.label}-" if len(shown) > 1 and outcome.label else ""
                for name, figure in _of_one_world(picture, outcome, before.get(outcome.label, ())):
                    yield prefix + name, figure


def _of_one_world(picture: str, outcome: Outcome, before: Sequence[Run]) -> "Iterator[tuple[str, Figure]]":
    target = outcome.summary.main_target()
    if picture == "curves":
        yield "accuracy-delay-energy", draw_headline(outcome.runs, outcome.summary.targets, before)
    elif picture == "way" and target is not None:
        yield "time-to-accuracy", draw_way_to(outcome.summary, target)
    elif picture == "ablation" and target is not None:
        yield "ablation", draw_ablation(outcome.summary, target)
    elif picture == "errors":
        yield "errors-discrepancy", draw_bars(outcome.summary, ["packet_error_rate", "discrepancy"])
    elif picture == "resplits":
        yield "resplits", draw_resplits([run for run in outcome.runs if run.scheme == OURS])


def draw_bars(summary: Summary, quantities: Sequence[str]) -> "Figure":
    """A bar per scheme, a dot per seed; points on a logarithmic scale if schemes differ by orders of magnitude."""
    schemes = list(summary.runs)
    with drawing(4.75 * len(quantities), 3.6) as figure:
        for axes, name in zip(figure.subplots(1, len(quantities), squeeze=False)[0], quantities, strict=True):
            shown = QUANTITIES[name]
            medians = [shown.scale * summary.over_seeds(scheme, name).median for scheme in schemes]
            colours = [style_of(scheme)["color"] for scheme in schemes]
            if spans_magnitudes(medians):  # where a bar would begin is arbitrary there
                axes.scatter(range(len(schemes)), medians, s=80, color=colours, zorder=3)
            else:
                axes.bar(range(len(schemes)), medians, color=colours, width=0.66)
            for place, scheme in enumerate(schemes):
                seen = np.array(list(summary.by_seed(scheme, name).values()))
                axes.plot(np.full(len(seen), place), shown.scale * seen, ".", color=BUDGET, markersize=4)
            scale(axes, "y", logarithmic=spans_magnitudes(medians))
            axes.set(title=shown.in_words.capitalize(), ylabel=shown.unit)
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
        _draw_lines(delays, totals, MEDIAN, "all of it")
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
