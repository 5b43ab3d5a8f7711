"""A walk through a city: buildings, server, and ways coloured by how well the server hears."""

from typing import TYPE_CHECKING, Any

import numpy as np

from asfl.config import Radio
from asfl.config.errors import AsflError
from asfl.config.units import from_db
from asfl.radio.city.streets import ROOF_M
from asfl.radio.traces import Surroundings, Trace
from asfl.results.figures.figure import drawing, headline
from asfl.results.heard import full_power_snr_db

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

SNR_LABEL = "SNR of one resource block at full power (dB)"
WEAKEST_DB, STRONGEST_DB = -10.0, 40.0
"""Ends of the scale of colours."""


def draw_city(trace: Trace, radio: Radio | None = None) -> "Figure":
    """The map on the left, each client's SNR over time on the right."""
    where = trace.surroundings
    if where is None:
        raise AsflError(f"{trace.source}: says nothing of positions, so there is no map")
    radio = radio or Radio()
    snr_db = full_power_snr_db(from_db(np.array(trace.values)), radio)
    with drawing(12.5, 6.2) as figure:
        city, time = figure.subplots(1, 2, width_ratios=[1.25, 1])
        ways = draw_ways(city, where, snr_db)
        figure.colorbar(ways, ax=city, shrink=0.85).set_label(SNR_LABEL)
        seconds = np.arange(snr_db.shape[1]) * trace.sample_period_s
        image = time.imshow(
            snr_db,
            aspect="auto",
            cmap="viridis",
            vmin=WEAKEST_DB,
            vmax=STRONGEST_DB,
            interpolation="nearest",
            extent=(0, float(seconds[-1]), len(snr_db) - 0.5, -0.5),
        )
        image.set_clim(WEAKEST_DB, STRONGEST_DB)
        time.set(title="What each client hears over time", xlabel="s", ylabel="client", yticks=range(len(snr_db)))
        time.grid(visible=False)
        headline(figure, f"{trace.source}: {len(snr_db)} clients, {seconds[-1]:.0f} s")
    return figure


def draw_ways(axes: "Axes", where: Surroundings, snr_db: Any) -> "LineCollection":
    """Buildings, the server, and the way of every client in the colour of its SNR."""
    from matplotlib.collections import LineCollection

    draw_buildings(axes, where)
    pieces = np.stack([where.position_m[:, :-1], where.position_m[:, 1:]], axis=2).reshape(-1, 2, 2)
    ways = LineCollection(list(pieces), cmap="viridis", linewidths=2.2, zorder=3)
    ways.set_array(snr_db[:, :-1].ravel())
    ways.set_clim(WEAKEST_DB, STRONGEST_DB)
    axes.add_collection(ways)
    for client, (x, y) in enumerate(where.position_m[:, 0]):
        axes.annotate(str(client), (x, y), xytext=(4, 4), textcoords="offset points", weight="bold", zorder=5)
    axes.set(title="Who walks where (triangle: server)", xlabel="m", ylabel="m", aspect="equal")
    return ways


def draw_buildings(axes: "Axes", where: Surroundings) -> None:
    """The city from above: higher is darker, a triangle is the server."""
    roofs = np.ma.masked_less_equal(where.height_m, ROOF_M)
    axes.imshow(roofs, origin="lower", extent=where.extent_m, cmap="Greys", vmin=-20, vmax=60, zorder=1)
    x, y = where.server_m[:2]
    axes.scatter(x, y, marker="^", s=120, color="#c2452d", edgecolors="white", zorder=6)
    axes.grid(visible=False)
