"""How gains change: over time where a clock moves the clients, over resource blocks where these differ."""

from typing import TYPE_CHECKING, Any

import numpy as np

from asfl.costs.world import World
from asfl.results.figures.city import SNR_LABEL, STRONGEST_DB, WEAKEST_DB
from asfl.results.heard import full_power_snr_db

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOMENTS = 240


def draw_gains(time: "Axes", blocks: "Axes", world: World) -> None:
    """Clients × moments on the left, clients × blocks on the right."""
    radio = world.config.radio
    rounds = [world.begin_round(index, time_s=float(index)) for index in range(MOMENTS)]
    over_time = full_power_snr_db(np.array([one.channel_gain for one in rounds]).T, radio)
    unit = "s" if world.has_clock else "round"
    _heat(time, over_time, f"SNR of every client over {MOMENTS} {'seconds' if world.has_clock else 'rounds'}", unit)
    first = rounds[0].block_gain
    gains = np.repeat(rounds[0].channel_gain[:, None], radio.num_rbs, axis=1) if first is None else first
    same = " (all alike)" if first is None else ""
    _heat(blocks, full_power_snr_db(gains, radio), f"SNR of every resource block at the beginning{same}", "block")


def _heat(axes: "Axes", values: Any, title: str, across: str) -> None:
    image = axes.imshow(
        values, aspect="auto", cmap="viridis", vmin=WEAKEST_DB, vmax=STRONGEST_DB, interpolation="nearest"
    )
    axes.set(title=title, xlabel=across, ylabel="client")
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes, shrink=0.85).set_label(SNR_LABEL)
