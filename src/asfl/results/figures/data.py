"""The picture of a partition: which labels each client holds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config, Data as DataSettings
from asfl.data import ImageData, deal, distance_from_global, label_counts
from asfl.results.figures.figure import MEDIAN, drawing, headline, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND_CLASSES = 20
"""Up to this many classes each has a colour with a name; more share a scale of colours."""


def rule_of(config: Config) -> str:
    """How samples are dealt out, in words."""
    data = config.data
    if data.partition == "shards":
        return f"{data.shards_per_client} shards of sorted labels each"
    if data.partition == "groups":
        return "whole groups"
    if data.partition == "quantity":
        return f"sizes ~ Dir({data.quantity_alpha:g}), {config.training.batch_size} at least"
    return f"label mix ~ Dir({data.dirichlet_alpha:g})"


@dataclass(frozen=True, eq=False)
class LabelMix:
    """A data set as it is spread over the clients of a configuration."""

    data: ImageData
    settings: DataSettings
    rule: str
    """How it was dealt out, in words."""
    seed: int
    counts: NDArray[np.int64]
    """[N, num_classes]: samples of each label."""
    distance: NDArray[np.float64]
    """[N]: total variation distance from the mix of the whole training set, 0 … 1."""

    @classmethod
    def of(cls, config: Config, data: ImageData) -> "LabelMix":
        counts = label_counts(data.train_labels, deal(data, config), data.num_classes)
        distance = distance_from_global(counts, data.train_labels)
        return cls(data, config.data, rule_of(config), config.scenario.seed, counts, distance)

    @property
    def samples(self) -> NDArray[np.int64]:
        """[N] of each client."""
        return np.asarray(self.counts.sum(axis=1))

    def commonest(self, client: int, how_many: int = 4) -> list[int]:
        """The labels this client has most of, the commonest first."""
        order = np.argsort(-self.counts[client], kind="stable")[:how_many]
        return [int(label) for label in order if self.counts[client, label] > 0]


def draw_label_mix(mix: LabelMix) -> "Figure":
    num_clients = len(mix.counts)
    with drawing(float(np.clip(5 + 0.16 * num_clients, 7.5, 16)), 6) as figure:
        uneven = mix.settings.partition == "quantity"
        bars, *below = figure.subplots(2 + uneven, 1, sharex=True, height_ratios=(3, 1, 1)[: 2 + uneven])
        _draw_bars(bars, mix)
        width = 0.9 if num_clients <= 100 else 1.0
        if uneven:
            below[0].bar(np.arange(num_clients), mix.samples, width, color=MEDIAN)
            below[0].set_title("Images of each client")
        distance = below[-1]
        distance.bar(np.arange(num_clients), mix.distance, width, color=MEDIAN)
        distance.set_title("Distance from the mix of the whole set (1: no label in common)")
        start, stop = _whole_bar(num_clients)
        distance.set(xlabel="client", ylim=(0, 1), xlim=(-0.6, stop + 0.1))
        whole_numbers(distance)
        ticks = [tick for tick in distance.get_xticks() if 0 <= tick < num_clients]
        distance.set_xticks([*ticks, (start + stop) / 2], [*(f"{tick:.0f}" for tick in ticks), "all"])
        images = " … ".join(f"{count:,}" for count in np.unique([mix.samples.min(), mix.samples.max()]))
        clients = f"{num_clients} client{'s' if num_clients > 1 else ''} with {images} images each"
        headline(figure, f"{mix.data.name}: {clients}, {mix.rule}")
    return figure


def _draw_bars(axes: "Axes", mix: LabelMix) -> None:
    """One stacked bar per client; apart from them, at the right, the whole training set."""
    import matplotlib as mpl

    num_clients, num_classes = mix.counts.shape
    named = num_classes <= _LEGEND_CLASSES
    colour_map = mpl.colormaps["tab10" if num_classes <= 10 else "tab20" if named else "turbo"]
    edges = np.arange(num_clients + 1) - 0.5
    corners = np.concatenate([np.repeat(edges, 2)[1:-1], _whole_bar(num_clients)])
    whole = np.bincount(mix.data.train_labels, minlength=num_classes)
    # [N + 1, classes + 1]: where each label's piece begins and ends, in percent; the last row is the whole set.
    table = np.vstack([mix.counts, whole])
    tops = np.cumsum(100 * table / table.sum(axis=1, keepdims=True), axis=1)
    tops = np.repeat(np.hstack([np.zeros((len(tops), 1)), tops]), 2, axis=0)
    # One area per label rather than one rectangle per label and client: 1,000 clients are drawn in seconds.
    bars = np.arange(len(corners)) < 2 * num_clients
    for label in range(num_classes):
        colour = colour_map(label if named else label / (num_classes - 1))
        for where in (bars, ~bars):
            axes.fill_between(
                corners[where], tops[where, label], tops[where, label + 1], color=colour, linewidth=0, label=str(label)
            )
    if num_clients <= 100:  # thin gaps between the bars, as long as there is room for them
        axes.vlines(edges, 0, 100, color="white", linewidth=1.5)
    axes.set_title("Share of each label, %")
    axes.set_ylim(0, 100)
    axes.grid(visible=False)
    if named:
        handles, names = axes.get_legend_handles_labels()
        axes.legend(handles[::-2], names[::-2], title="label", loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        scale = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, num_classes - 1), colour_map)
        axes.figure.colorbar(scale, ax=axes, label="label", pad=0.01)


def _whole_bar(num_clients: int) -> tuple[float, float]:
    """Where the bar of the whole set begins and ends: apart from the clients, and visible beside many."""
    width = max(1.0, num_clients / 50)
    return num_clients - 0.5 + 0.4 * width, num_clients - 0.5 + 1.4 * width
