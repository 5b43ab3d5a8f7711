"""The picture of what a total budget buys."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from asfl.results.figures.figure import drawing, headline, whole_numbers
from asfl.results.figures.training import style_of
from asfl.runs.play import Playthrough

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plan(playthroughs: Sequence[Playthrough], model: str) -> "Figure":
    """Time left, batteries left (the median client, and all of them as a band) and cuts over rounds, by scheme."""
    with drawing(11, 8) as figure:
        time, battery, cuts = figure.subplots(3, 1, sharex=True)
        for played in playthroughs:
            reserves = [one.reserves for one in played.rounds if one.reserves is not None]
            rounds, style = np.arange(len(reserves) + 1), style_of(played.scheme)
            total_s, total_j = reserves[0].time_s, reserves[0].battery_j
            if np.isfinite(total_s):
                time.plot(rounds, [1.0, *(one.time_left_s / total_s for one in reserves)], **style)
            if np.isfinite(total_j).all():
                left = np.array([np.ones_like(total_j), *(one.battery_left_j / total_j for one in reserves)])
                battery.plot(rounds, np.median(left, axis=1), **style)
                battery.fill_between(rounds, left.min(axis=1), left.max(axis=1), color=style["color"], alpha=0.15)
            chosen = [one.cut if one.scheduled.any() else np.nan for one in played.rounds]
            cuts.step(rounds[1:], chosen, where="mid", label=played.scheme, **style)
        time.set(title="Time left")
        battery.set(title="Batteries left: the median client, and from the emptiest to the fullest")
        for axes in (time, battery):
            axes.set(ylim=(0, 1.03))
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
            if not axes.has_data():
                axes.text(0.5, 0.5, "no limit", transform=axes.transAxes, ha="center", color="#666666")
        cuts.set(title="Cut", xlabel="round", ylabel="layers on the client")
        whole_numbers(cuts)
        figure.legend(*cuts.get_legend_handles_labels(), loc="outside right center", handlelength=3.2)
        headline(figure, f"{model}: what the budget buys, without training")
    return figure
