"""The picture of who gets how many resource blocks."""

from typing import TYPE_CHECKING

import numpy as np

from asfl.results.blocks import block_shares
from asfl.results.curves import Run
from asfl.results.figures.figure import NOTHING, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_blocks(run: Run) -> "Figure":
    """A bar per client: in how many of the rounds it had no block, one, two, …"""
    import matplotlib as mpl

    shares = block_shares(run.records)
    clients = len(run.records[0].rb_count)
    with drawing(9.5, 1.6 + 0.24 * clients) as figure:
        axes = figure.subplots()
        start = np.zeros(clients)
        for place, (word, share) in enumerate(shares.items()):
            colour = mpl.colormaps["Blues"](0.25 + 0.75 * place / max(len(shares) - 1, 1)) if place else NOTHING
            axes.barh(range(clients), 100 * share, 0.8, left=start, color=colour, label=word)
            start = start + 100 * share
        mean = np.mean([record.rb_count for record in run.records], axis=0)
        for client, blocks in enumerate(mean):
            axes.annotate(f"{blocks:.2f}", (100, client), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_title(f"Who gets how many blocks: {run.scheme}, seed {run.seed} (right: mean)")
        axes.set(xlabel="share of the rounds [%]", ylabel="client", xlim=(0, 100), ylim=(clients - 0.5, -0.5))
        axes.set_yticks(range(clients))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside right center", title="blocks")
    return figure
