"""The picture of a sweep over one field."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from asfl.report.figure import drawing
from asfl.report.training import style_of
from asfl.summary import Run, Summary, choose_targets, percent
from asfl.sweep import Axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_sweep(axis: Axis, points: Sequence[tuple[str, Sequence[Run]]]) -> "Figure":
    """Final accuracy, and delay and energy to an accuracy that most runs reach, against the values of the field."""
    target = choose_targets([run for _, runs in points for run in runs])[:1]
    summaries = [Summary.of(runs, target) for _, runs in points]
    schemes = list(dict.fromkeys(scheme for summary in summaries for scheme in summary.runs))
    places = np.arange(len(points))
    with drawing(11.5, 4.2) as figure:
        accuracy, delay, energy = figure.subplots(1, 3)
        for scheme in schemes:
            style = {**style_of(scheme), "marker": "o", "markersize": 4, "capsize": 2}
            stats = [summary.over_seeds(scheme, "final_accuracy") for summary in summaries]
            spread = [0.0 if math.isnan(stat.sd) else 100 * stat.sd for stat in stats]
            accuracy.errorbar(places, [100 * stat.mean for stat in stats], spread, label=scheme, **style)
            for axes, resource in ((delay, "delay_s"), (energy, "energy_j")):
                reached = [s.to_reach(scheme, value, resource) for s in summaries for value in target]  # type: ignore[arg-type]
                if target:
                    spread = [0.0 if math.isnan(stat.sd) else stat.sd for stat in reached]
                    axes.errorbar(places, [stat.mean for stat in reached], spread, **style)
        accuracy.set(title="Accuracy after the last round", ylabel="%")
        goal = percent(target[0]) if target else "any accuracy"
        delay.set(title=f"Delay to {goal}", ylabel="s", yscale="log")
        energy.set(title=f"Energy to {goal}", ylabel="J", yscale="log")
        for axes in (accuracy, delay, energy):
            axes.set_xticks(places, [value for value, _ in points])
            axes.set_xlabel(axis.field)
        figure.legend(loc="outside right center", handlelength=3.2)
    return figure
