"""A run over a real network: what the server measured of every link, and where it cut the model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.results.curves import Run
from asfl.results.figures.figure import BAD, BUDGET, drawing, make_logarithmic, whole_numbers
from asfl.runs.records import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_COLOURS = ("#3565a8", "#c2452d", "#1b7f5c", "#e0952b", "#8a4fa3", "#2aa3b8", "#6b6b6b", "#a0522d")
_MOST_NAMED = len(_COLOURS)


def is_measured(run: Run) -> bool:
    return any(record.measured for record in run.records)


def draw_links(run: Run) -> "Figure":
    """Uplink rates with their uncertainty, the cut, and the time of a round against its budget."""
    records = [record for record in run.records if record.measured]
    rounds = [record.round for record in records]
    with drawing(9.5, 7.2) as figure:
        rates, cuts, delays = figure.subplots(3, 1, sharex=True, height_ratios=[3, 1.6, 2])
        _draw_rates(rates, rounds, records)
        _mark_faults(rates, records)
        cuts.step(rounds, [record.mean_cut for record in records], where="mid", color=BUDGET, linewidth=2)
        cuts.set(title="Cut: layers on the client")
        cuts.set_ylim(bottom=0)
        _draw_stages(delays, rounds, records)
        if run.budgets is not None:
            delays.axhline(run.budgets.delay_s, color=BUDGET, linestyle="--", linewidth=1, label="budget")
        delays.set(title="Time of a round, by the clock [s]", xlabel="round")
        delays.set_xlim(rounds[0] - 0.5, rounds[-1] + 0.5)
        delays.set_ylim(top=1.25 * delays.get_ylim()[1])  # room for the names
        delays.legend(loc="upper left", ncols=4)
        whole_numbers(delays)
    return figure


def _draw_rates(axes: "Axes", rounds: Sequence[int], records: Sequence[RoundRecord]) -> None:
    rate, error = _table(records, "uplink_bps") / 1e6, _table(records, "uplink_bps_error")
    for client in range(rate.shape[1]):
        colour, named = _COLOURS[client % len(_COLOURS)], client < _MOST_NAMED
        spread = np.exp(np.where(np.isfinite(error[:, client]), error[:, client], 0.0))
        axes.plot(rounds, rate[:, client], color=colour, label=f"client {client}" if named else None)
        low, high = rate[:, client] / spread, rate[:, client] * spread
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    make_logarithmic(axes, "y")
    axes.set(title="Uplink as estimated, ± one standard error [Mbit/s]")
    axes.legend(loc="lower left", ncols=4)


def _mark_faults(axes: "Axes", records: Sequence[RoundRecord]) -> None:
    lost = [record.round for record in records if record.faults]
    if lost:
        axes.plot(lost, np.ones(len(lost)), "x", color=BAD, transform=axes.get_xaxis_transform(), clip_on=False)
        axes.annotate("× somebody was lost", (1, 1.02), xycoords="axes fraction", ha="right", color=BAD, fontsize=8)


def _draw_stages(axes: "Axes", rounds: Sequence[int], records: Sequence[RoundRecord]) -> None:
    stages = {
        "re-split": ("#c2452d", [record.resplit_delay_s for record in records]),
        "activations up": ("#9db7d9", [record.uplink_stage_delay_s for record in records]),
        "server, gradients down": ("#c9d8c5", [record.server_stage_delay_s for record in records]),
    }
    below = np.zeros(len(records))
    for name, (colour, seconds) in stages.items():
        axes.bar(rounds, seconds, width=1.0, bottom=below, label=name, color=colour)
        below += seconds


def _table(records: Sequence[RoundRecord], name: str) -> Floats:
    """[rounds, clients]; NaN where nothing is known."""
    return np.array([record.measured[name] for record in records if record.measured], dtype=float)
