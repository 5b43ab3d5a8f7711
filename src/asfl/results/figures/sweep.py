"""Numbers of several comparisons side by side, against what is varied between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from asfl.config.units import percent
from asfl.results.curves import Resource
from asfl.results.figures.figure import drawing, scale, spans_magnitudes
from asfl.results.figures.training import style_of
from asfl.results.quantities import QUANTITIES
from asfl.results.summary import Statistic, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """One number of every scheme in every comparison."""

    title: str
    unit: str
    values: Mapping[str, Sequence[Statistic]]
    """By scheme, in the order of the comparisons."""
    scale: float = 1.0


def quantity_panel(summaries: Sequence[Summary], name: str) -> Panel:
    """A number of `RunSummary`."""
    shown = QUANTITIES[name]
    title = shown.in_words.capitalize() + (" after the last round" if name == "final_accuracy" else "")
    return _panel(title, shown.unit, summaries, lambda summary, scheme: summary.over_seeds(scheme, name), shown.scale)


def total_panels(summaries: Sequence[Summary]) -> list[Panel]:
    """Accuracy, and what all rounds took."""
    return [quantity_panel(summaries, name) for name in ("final_accuracy", "total_delay_s", "total_energy_j")]


def way_panels(summaries: Sequence[Summary], target: float) -> list[Panel]:
    """Accuracy, and delay and energy to a target accuracy."""

    def to_reach(resource: Resource) -> Callable[[Summary, str], Statistic]:
        return lambda summary, scheme: summary.to_reach(scheme, target, resource)

    return [
        quantity_panel(summaries, "final_accuracy"),
        _panel(f"Delay to {percent(target)}", "s", summaries, to_reach("delay_s")),
        _panel(f"Energy to {percent(target)}", "J", summaries, to_reach("energy_j")),
    ]


def _panel(
    title: str, unit: str, summaries: Sequence[Summary], value: Callable[[Summary, str], Statistic], scale: float = 1.0
) -> Panel:
    schemes = dict.fromkeys(scheme for summary in summaries for scheme in summary.runs)
    return Panel(title, unit, {scheme: [value(summary, scheme) for summary in summaries] for scheme in schemes}, scale)


def draw_sweep(varied: str, labels: Sequence[str], panels: Sequence[Panel]) -> "Figure":
    """One line per scheme in each panel; bars are intervals of the median over seeds."""
    places = np.arange(len(labels))
    turned = max(map(len, labels)) > 8
    with drawing(3.4 * len(panels) + 1.6, 4.2) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            shown: list[float] = []
            for scheme, stats in panel.values.items():
                medians = panel.scale * np.array([stat.median for stat in stats])
                ends = panel.scale * np.array([[stat.low, stat.high] for stat in stats]).T
                around = np.nan_to_num(np.abs(ends - medians))
                style = {**style_of(scheme), "marker": "o", "markersize": 4, "capsize": 2, "elinewidth": 1}
                axes.errorbar(places, medians, around, label=scheme, **style)
                shown += medians.tolist()
            axes.set(title=panel.title, ylabel=panel.unit, xlabel=varied)
            logarithmic = spans_magnitudes(shown)
            scale(axes, "y", logarithmic=logarithmic)
            if not logarithmic:
                axes.set_ylim(bottom=0)
            axes.set_xticks(places, labels, rotation=20 if turned else 0, ha="right" if turned else "center")
            axes.set_xlim(-0.4, len(labels) - 0.6)
        handles = axes.get_legend_handles_labels()
        figure.legend(*handles, loc="outside right center", handlelength=3.2)
    return figure
