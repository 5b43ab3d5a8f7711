"""An animation of a run: clients walk, the server hears them well or badly, and the cut moves."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from asfl.results.curves import Run
from asfl.results.figures.city import SNR_LABEL, STRONGEST_DB, WEAKEST_DB, draw_buildings
from asfl.results.figures.figure import BUDGET, CUT_LABEL, FAINT, drawing
from asfl.results.heard import Heard
from asfl.runs.files import write_whole

MOST_FRAMES = 80
FRAME_MS = 200
DPI = 70


def write_walk(run: Run, heard: Heard, path: Path) -> None:
    """As an animated GIF: filled clients take part in the round, hollow ones sit out."""
    import matplotlib as mpl
    from PIL import Image

    if heard.position_m is None:
        return
    shown = np.unique(np.linspace(0, len(run.records) - 1, MOST_FRAMES).astype(int))
    frames: list[Any] = []
    with drawing(10.5, 5.4) as figure:
        city, cuts = figure.subplots(1, 2, width_ratios=[1.2, 1])
        if heard.surroundings is not None:
            draw_buildings(city, heard.surroundings)
        else:
            city.scatter(0, 0, marker="^", s=110, color="black", zorder=3)
        corners = heard.position_m.reshape(-1, 2)
        city.plot(*corners.T, ".", color=FAINT, markersize=1, zorder=2)
        city.set(xlabel="m", ylabel="m", aspect="equal")
        x, y = heard.position_m[0].T
        clients = city.scatter(
            x, y, c=heard.snr_db[0], cmap="viridis", vmin=WEAKEST_DB, vmax=STRONGEST_DB, s=90, linewidths=2, zorder=5
        )
        figure.colorbar(clients, ax=city, shrink=0.85).set_label(SNR_LABEL)
        rounds = [record.round for record in run.records]
        cuts.step(rounds, [record.mean_cut for record in run.records], where="mid", color=BUDGET, linewidth=1.5)
        now = cuts.axvline(rounds[0], color="#c2452d")
        cuts.set(title="Where the model is cut", xlabel="round", ylabel=CUT_LABEL)
        cuts.set_ylim(bottom=0)
        for place in shown.tolist():
            record, colours = run.records[place], clients.to_rgba(heard.snr_db[place])
            clients.set_offsets(heard.position_m[place])
            clients.set_edgecolor(colours)
            clients.set_facecolor(
                [colour if count > 0 else (1, 1, 1, 1) for colour, count in zip(colours, record.rb_count, strict=True)]
            )
            city.set_title(f"{run.scheme}, round {record.round}: {record.total_delay_s - record.delay_s:,.0f} s")
            now.set_xdata([record.round, record.round])
            buffer = io.BytesIO()
            with mpl.rc_context():
                figure.savefig(buffer, format="png", dpi=DPI)
            frames.append(Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE, colors=96))
    whole = io.BytesIO()
    frames[0].save(whole, "GIF", save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0)
    write_whole(path, whole.getvalue())
