"""The pictures of a comparison: accuracy against what it cost, the way to a target, and the decisions underway."""

from collections.abc import Iterator, Mapping, Sequence
from colorsys import hls_to_rgb
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from asfl.config.units import number, percent
from asfl.results.curves import CEILING, OURS, PLUS, Curve, Resource, Run, together
from asfl.results.figures.blocks import draw_blocks
from asfl.results.figures.figure import (
    BUDGET,
    FAINT,
    drawing,
    save_figure,
    scale,
    spans_magnitudes,
    subtitle,
    whole_numbers,
)
from asfl.results.figures.links import draw_links, is_measured
from asfl.results.quantities import CURVE_AXES, partly
from asfl.results.summary import Summary
from asfl.schemes import ABLATION, SCHEMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUEUE_WINDOW = 10
"""Rounds a queue is averaged over, to show where it tends."""
CROWDED = 6
"""With more schemes than this, only our band is more than a hint."""
_COLOURS = (
    *("#c2452d", "#1b7f5c", "#3565a8", "#e0952b", "#8a4fa3", "#2aa3b8"),
    *("#6b6b6b", "#a0522d", "#d65f9e", "#7f9a2a", "#1f2f6b", "#c9a800"),
    *("#7a1f5c", "#5f8fb0", "#9c7a5b", "#000000"),
)
_FIRST = ("asfl", "asfl-plus", "sfl-best", "acc-sfl", "epsl", "fedavg", "sl-best", "asfl-pmax", *ABLATION)
"""Schemes that meet most often: each has a colour of its own, and so do the next few."""
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (2.5, 1)))


def write_figures(summary: Summary, runs: Sequence[Run], folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw and save all of them, in each format; those without anything to show are left out."""
    import matplotlib as mpl

    written = []
    with mpl.rc_context({"pdf.fonttype": 42}):  # publishers refuse the default, Type 3 fonts
        for name, figure in _figures(summary, runs):
            subtitle(figure, summary.model)
            for kind in formats:
                save_figure(figure, folder / f"{name}.{kind}")
                written.append(folder / f"{name}.{kind}")
    return written


def _figures(summary: Summary, runs: Sequence[Run]) -> "Iterator[tuple[str, Figure]]":
    if any(Curve.of(run.records).accuracy for run in runs):
        for axis in CURVE_AXES:
            yield f"accuracy-{axis}", draw_accuracy(runs, axis, summary.targets)
    target = summary.main_target()
    if target is not None:
        yield "time-to-accuracy", draw_way_to(summary, target)
    played = [run for run in runs if run.records and not run.is_ceiling]
    if played:
        yield "cut-queue", draw_cuts_and_queues(played)
        yield "blocks", draw_blocks(next((run for run in played if run.scheme == OURS), played[0]))
    measured = [run for run in runs if is_measured(run)]
    for run in measured:
        yield "links" if len(measured) == 1 else f"links-{run.scheme}-seed{run.seed}", draw_links(run)


def style_of(scheme: str) -> dict[str, Any]:
    """Colour and dashes of a scheme, the same in every picture; ours is thick and on top, and alone in its colour.

    The ceiling is a dashed line in the colour of budgets.

    A scheme that isn't known here, because its plugin isn't loaded, gets a look by its name.
    """
    if scheme == CEILING:
        return {"color": BUDGET, "linestyle": "--", "linewidth": 1.4, "zorder": 2}
    order = list(dict.fromkeys([*_FIRST, *SCHEMES]))
    number = order.index(scheme) if scheme in order else len(_COLOURS) + crc32(scheme.encode())
    ours = scheme in (OURS, PLUS)
    return {
        "color": _COLOURS[number] if number < len(_COLOURS) else _one_more_colour(number - len(_COLOURS)),
        "linestyle": _DASHES[number % len(_DASHES)],
        "linewidth": 2.8 if ours else 1.4,
        "zorder": 5 if ours else 3,
    }


def _one_more_colour(number: int) -> str:
    """Hues that stay apart however many there are, in turn a dark and a light one."""
    red, green, blue = hls_to_rgb((0.11 + number * 0.618034) % 1, (0.33, 0.5)[number % 2], (0.75, 0.5)[number % 2])
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def draw_accuracy(runs: Sequence[Run], axis: str, targets: Sequence[float] = ()) -> "Figure":
    """Accuracy against delay, energy or rounds: median over seeds, in a band from the lowest to the highest seed.

    The ceiling has no delay and no energy: it is a horizontal line at its best accuracy.
    """
    with drawing(9.5, 5.2) as figure:
        axes = figure.subplots()
        _draw_curves(axes, runs, axis, targets)
        axes.set_title(f"Accuracy against {axis} (mean of 3 evaluations{_band(runs)})")
        figure.legend(loc="outside right center", handlelength=3.2)
    return figure


def draw_headline(runs: Sequence[Run], targets: Sequence[float] = (), recorded: Sequence[Run] = ()) -> "Figure":
    """Accuracy against seconds, and against joules; thin and faint: ours as `recorded`, where runs are recharged."""
    with drawing(11.5, 5) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, axis in ((left, "delay"), (right, "energy")):
            _draw_curves(axes, runs, axis, targets)
            _draw_recorded(axes, [run for run in recorded if run.scheme in (OURS, PLUS)], axis)
        left.set_title("Accuracy against delay")
        right.set(title="… and against the energy of all clients", ylabel="")
        names: Any = {"ncols": 5, "handlelength": 3.2, "title": f"mean of 3 evaluations{_band(runs)}"}
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", title_fontsize=8, **names)
    return figure


def _draw_recorded(axes: "Axes", runs: Sequence[Run], axis: str) -> None:
    for name, group in _by_scheme(runs).items():
        x, accuracy = together([curve for curve in group if curve.accuracy], axis)
        if x.size:
            looks: Any = {**style_of(name), "linestyle": "-", "linewidth": 1.0, "alpha": 0.5}
            axes.plot(x, 100 * np.median(accuracy, axis=0), label=f"{name}, as recorded", **looks)


def _band(runs: Sequence[Run]) -> str:
    seeds = len({run.seed for run in runs})
    return f"; median and range of {seeds} seeds" if seeds > 1 else "; one seed"


def _draw_curves(axes: "Axes", runs: Sequence[Run], axis: str, targets: Sequence[float]) -> None:
    words, unit = CURVE_AXES[axis]
    curves = {name: [c for c in group if c.accuracy] for name, group in _by_scheme(runs).items()}
    ceiling = curves.pop(CEILING, [])
    ends = [max(curve.along(axis)) for group in curves.values() for curve in group]
    logarithmic = spans_magnitudes(ends)
    for target in targets:
        axes.axhline(100 * target, color=BUDGET, linestyle=":", linewidth=0.9, zorder=1)
    for name, group in curves.items():
        x, accuracy = together(group, axis)
        if not x.size:
            continue
        style = style_of(name)
        middle = 100 * np.median(accuracy, axis=0)
        axes.plot(x, middle, label=name, **style)
        axes.plot(x[-1], middle[-1], "o", color=style["color"], markersize=4, zorder=style["zorder"])
        if len(group) > 1:
            low, high = 100 * accuracy.min(axis=0), 100 * accuracy.max(axis=0)
            faint = name != OURS and len(curves) > CROWDED
            axes.fill_between(x, low, high, color=style["color"], alpha=0.05 if faint else 0.15, linewidth=0, zorder=2)
    if ceiling:
        _draw_ceiling(axes, ceiling)
    axes.set(xlabel=f"{words} [{unit}]" if unit else words, ylabel="accuracy of the average model [%]")
    scale(axes, "x", logarithmic=logarithmic)
    axes.set_ylim(bottom=0)


def _draw_ceiling(axes: "Axes", curves: Sequence[Curve]) -> None:
    best = [100 * max(curve.smoothed) for curve in curves]
    axes.axhline(float(np.median(best)), label=f"{CEILING} (ceiling)", **style_of(CEILING))
    if len(best) > 1:
        axes.axhspan(min(best), max(best), color=BUDGET, alpha=0.08, linewidth=0, zorder=1)


def _by_scheme(runs: Sequence[Run]) -> dict[str, list[Curve]]:
    grouped: dict[str, list[Curve]] = {}
    for run in runs:
        grouped.setdefault(run.scheme, []).append(Curve.of(run.records))
    return grouped


def draw_way_to(summary: Summary, target: float) -> "Figure":
    """Delay and energy to a target, the fastest scheme on top; who didn't reach it is named too."""
    order = summary.fastest_first(target)
    with drawing(10.5, 1.5 + 0.36 * len(order)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        _draw_bars(left, summary, target, "delay_s", order)
        _draw_bars(right, summary, target, "energy_j", order)
        left.set(title=f"Delay to {percent(target)} accuracy", xlabel="s")
        right.set(title=f"Energy to {percent(target)} accuracy, all clients", xlabel="J")
        left.set_yticks(range(len(order)), order)
        left.set_ylim(len(order) - 0.5, -0.5)
        for axes in (left, right):
            axes.tick_params(axis="y", length=0)
        for text in left.get_yticklabels():
            text.set_fontweight("bold" if text.get_text() == OURS else "normal")
        if len(summary.seeds) > 1:
            note = f"median and its interval over the seeds that reached it, of {len(summary.seeds)}; dots: seeds"
            figure.supxlabel(note, fontsize=8, color="#666666")
    return figure


def _draw_bars(axes: "Axes", summary: Summary, target: float, resource: Resource, order: Sequence[str]) -> None:
    values = {name: summary.reached(name, target, resource) for name in order}
    every = [value for by_seed in values.values() for value in by_seed.values() if value > 0]
    logarithmic = spans_magnitudes(every)
    floor = min(every) / 2 if logarithmic else 0.0
    top = max(every, default=1.0)
    for row, name in enumerate(order):
        stat, runs = summary.to_reach(name, target, resource), len(summary.runs[name])
        if not stat.seeds:
            axes.annotate("not reached", (0, row), (6, 0), *_BESIDE, color=FAINT, va="center", style="italic")
            continue
        colour = style_of(name)["color"]
        if logarithmic:  # where a bar would begin is arbitrary there
            axes.plot(stat.median, row, "o", color=colour, markersize=9, zorder=3)
        else:
            axes.barh(row, stat.median, height=0.66, color=colour, zorder=2)
        seen = np.array(list(values[name].values()))
        end = stat.median
        if stat.seeds > 1:
            around = [[stat.median - stat.low], [stat.high - stat.median]]
            axes.errorbar(stat.median, row, xerr=around, color=BUDGET, capsize=2.5, linewidth=1, zorder=4)
            axes.plot(seen, np.full(len(seen), row), ".", color=BUDGET, markersize=4, zorder=4, alpha=0.7)
            end = seen.max()
        text = number(stat.median) + partly(stat, runs)
        axes.annotate(text, (end, row), (8, 0), textcoords="offset points", va="center", fontsize=8)
        top = max(top, end)
    axes.grid(axis="y", visible=False)
    scale(axes, "x", logarithmic=logarithmic)
    axes.set_xlim(floor, floor * (top / floor) ** 1.35 if logarithmic else 1.35 * top)


_BESIDE = (("axes fraction", "data"), "offset points")


def draw_cuts_and_queues(runs: Sequence[Run]) -> "Figure":
    """The cut of every scheme, round after round, and the queues; of each scheme the first seed."""
    first = {run.scheme: run for run in reversed(runs) if run.records}
    first = {run.scheme: first[run.scheme] for run in runs if run.scheme in first}  # in the order of the schemes
    with drawing(11, 5.2 + 0.24 * len(first)) as figure:
        heights = [0.9 + 0.24 * len(first), 3.2]
        layout = figure.subplot_mosaic([["cuts", "cuts"], ["delay", "energy"]], height_ratios=heights)
        _draw_cuts(figure, layout["cuts"], first)
        for name, run in first.items():
            _draw_queue(layout["delay"], name, [record.delay_queue for record in run.records])
            _draw_queue(layout["energy"], name, [float(np.mean(record.energy_queue)) for record in run.records])
        layout["delay"].set(title=f"Delay queue (mean of {QUEUE_WINDOW} rounds)", ylabel="backlog (square-root scale)")
        layout["energy"].set(title="Energy queue, mean over clients")
        for axes in (layout["delay"], layout["energy"]):
            axes.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
            axes.set_ylim(bottom=0)
            axes.set_xlabel("round")
        names = layout["delay"].get_legend_handles_labels()
        figure.legend(*names, loc="outside lower center", ncols=min(6, len(first)), handlelength=3.2)
    return figure


def _draw_queue(axes: "Axes", scheme: str, values: Sequence[float]) -> None:
    ends = range(1, len(values) + 1)
    means = [np.mean(values[max(0, end - QUEUE_WINDOW) : end]) for end in ends]
    axes.plot(ends, means, label=scheme, **style_of(scheme))


def _draw_cuts(figure: "Figure", axes: "Axes", runs: Mapping[str, Run]) -> None:
    """A strip per scheme: the darker, the more layers are on the client; blank without a cut."""
    import matplotlib as mpl

    shown = {name: [record.mean_cut for record in run.records] for name, run in runs.items()}
    length = max(map(len, shown.values()))
    picture = np.full((len(shown), length), np.nan)
    for row, cuts in enumerate(shown.values()):
        picture[row, : len(cuts)] = cuts
    most = 2.0 if np.isnan(picture).all() else max(2.0, float(np.nanmax(picture)))
    colours: Any = {"cmap": mpl.colormaps["viridis_r"], "vmin": 1, "vmax": most, "interpolation": "nearest"}
    image = axes.imshow(picture, aspect="auto", extent=(0.5, length + 0.5, len(shown) - 0.5, -0.5), **colours)
    axes.set_yticks(range(len(shown)), list(shown))
    axes.set_yticks(np.arange(len(shown) + 1) - 0.5, minor=True)
    axes.grid(visible=False)
    axes.grid(axis="y", which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    for row in range(len(shown)):
        if np.isnan(picture[row]).all():
            looks: Any = {"color": FAINT, "fontsize": 8, "ha": "center", "va": "center"}
            axes.text(length / 2 + 0.5, row, "no cut: the whole model is on the client", **looks)
    axes.set_title(f"Cut: layers on the client (seed {next(iter(runs.values())).seed})")
    axes.set_xlabel("round")
    whole_numbers(axes)
    figure.colorbar(image, ax=axes, pad=0.01, aspect=12, label="layers")
