"""Numbers of several comparisons side by side, against what is varied between them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from asfl.report.figure import drawing
from asfl.report.training import LOGARITHMIC_FROM, style_of
from asfl.summary import Resource, Statistic, Summary, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """One number of a scheme in a comparison."""

    title: str
    unit: str
    value: Callable[[Summary, str], Statistic]
    scale: float = 1.0


ACCURACY = Panel("Accuracy after the last round", "%", lambda s, scheme: s.over_seeds(scheme, "final_accuracy"), 100)
TOTALS = (
    ACCURACY,
    Panel("Total delay", "s", lambda s, scheme: s.over_seeds(scheme, "total_delay_s")),
    Panel("Total energy", "J", lambda s, scheme: s.over_seeds(scheme, "total_energy_j")),
)


def way_to(target: float) -> tuple[Panel, Panel]:
    """Delay and energy to an accuracy."""

    def panel(title: str, unit: str, resource: Resource) -> Panel:
        name = f"{title} to {percent(target)}"
        return Panel(name, unit, lambda s, scheme: s.to_reach(scheme, target, resource))

    return panel("Delay", "s", "delay_s"), panel("Energy", "J", "energy_j")


def draw_sweep(varied: str, labels: Sequence[str], summaries: Sequence[Summary], panels: Sequence[Panel]) -> "Figure":
    """One panel per number, one line per scheme; bars are ± a standard deviation over seeds."""
    schemes = list(dict.fromkeys(scheme for summary in summaries for scheme in summary.runs))
    places = np.arange(len(labels))
    with drawing(3.4 * len(panels) + 1.6, 4.2) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            shown: list[float] = []
            for scheme in schemes:
                stats = [panel.value(summary, scheme) for summary in summaries]
                means = [panel.scale * stat.mean for stat in stats]
                spread = [0.0 if math.isnan(stat.sd) else panel.scale * stat.sd for stat in stats]
                style = {**style_of(scheme), "marker": "o", "markersize": 4, "capsize": 2, "elinewidth": 1}
                shown += [mean for mean in means if 0 < mean < math.inf]
                axes.errorbar(places, means, spread, label=scheme, **style)
            axes.set(title=panel.title, ylabel=panel.unit, xlabel=varied)
            if shown and max(shown) > LOGARITHMIC_FROM * min(shown):
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            else:
                axes.set_ylim(bottom=0)
            turned = max(map(len, labels)) > 8
            axes.set_xticks(places, labels, rotation=20 if turned else 0, ha="right" if turned else "center")
            axes.set_xlim(-0.4, len(labels) - 0.6)
        handles = axes.get_legend_handles_labels()
        figure.legend(*handles, loc="outside right center", handlelength=3.2)
    return figure
