"""Charts as files: drawn by matplotlib, written whole or not at all."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asfl.config.errors import AsflError
from asfl.results.charts.chart import SHADES, Axis, Bars, Chart, Heat, Level, Line, Look, Note, Panel, Points
from asfl.runs.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
TRACE = ".json"
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # publishers refuse the default, Type 3 fonts
    "svg.hashsalt": "asfl",  # the same figure gives the same file
}


@contextmanager
def drawing(width_in: float, height_in: float) -> Iterator["Figure"]:
    """A figure in our style that needs no screen, leaves pyplot's global state alone, and shows itself in notebooks."""
    import matplotlib as mpl
    from matplotlib import figure

    class Figure(figure.Figure):
        """pyplot would show only its own figures, and plain ones only once it is imported."""

        def _repr_png_(self) -> bytes:
            return as_png(self)

    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width_in, height_in))


def as_png(figure: "Figure") -> bytes:
    """As notebooks show it."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()


def check_figure_path(path: Path, *, trace: bool = False) -> None:
    """Refuse a file name that can't become a figure, or a trace, before any work is done."""
    if path.suffix.lower() != TRACE * trace and path.suffix.lower().removeprefix(".") not in FORMATS:
        more = f", or in {TRACE} for a trace" if trace else ""
        raise AsflError(f"--plot {path}: the name must end in {', '.join('.' + name for name in FORMATS)}{more}")
    if path.is_dir():
        raise AsflError(f"--plot {path} is a folder; give a file name")


def save_figure(chart: "Chart | Figure", path: Path) -> None:
    """Write a chart in one step: no reader ever sees half a file."""
    import matplotlib as mpl

    check_figure_path(path)
    kind, buffer = path.suffix.lower().removeprefix("."), io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else None
    figure = draw(chart) if isinstance(chart, Chart) else chart
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    write_whole(path, buffer.getvalue())


def draw(chart: Chart) -> "Figure":
    with drawing(chart.width_in, chart.height_in) as figure:
        columns = math.lcm(*map(len, chart.rows))
        mosaic = [
            [f"{row}.{place}" for place in range(len(panels)) for _ in range(columns // len(panels))]
            for row, panels in enumerate(chart.rows)
        ]
        layout = figure.subplot_mosaic(mosaic, height_ratios=chart.heights or None)  # type: ignore[arg-type]
        named: dict[str, Any] = {}
        for axes, panel in zip(layout.values(), chart.panels, strict=True):
            _draw_panel(axes, panel)
            handles, names = axes.get_legend_handles_labels()
            if names and panel.legend and not chart.legend:
                axes.legend(loc="best", fontsize=8)
            else:
                named = dict(zip(names, handles, strict=True)) | named
        if chart.legend and named:
            where: Any = "outside right center" if chart.legend == "right" else "outside lower center"
            columns = 1 if chart.legend == "right" else min(5, len(named))
            looks: Any = {
                "ncols": columns,
                "handlelength": 3.2,
                "title": chart.legend_title or None,
                "title_fontsize": 8,
            }
            legend = figure.legend(list(named.values()), list(named), loc=where, **looks)
            for handle in filter(None, legend.legend_handles):
                handle.set_alpha(1)
        if chart.title:
            figure.suptitle(chart.title, fontsize=12, fontweight="bold")
        elif chart.subtitle:
            figure.suptitle(chart.subtitle, fontsize=8, color="#666666", x=0.01, ha="left")
        if chart.note:
            figure.supxlabel(chart.note, fontsize=8, color="#666666")
    return figure


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    axes.set_title(panel.title)
    for order, series in enumerate(panel.series):
        _DRAW[type(series)](axes, series, 2 + 0.01 * order)
    for which, axis in (("x", panel.x), ("y", panel.y)):
        _set_axis(axes, which, axis)
    if panel.equal:
        axes.set_aspect("equal")


def _set_axis(axes: "Axes", which: str, axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    ours, is_x = (axes.xaxis if which == "x" else axes.yaxis), which == "x"
    (axes.set_xlabel if is_x else axes.set_ylabel)(axis.label)
    if axis.scale == "log":
        _make_logarithmic(axes, which)
    elif axis.ticks is None:
        ours.set_major_formatter(lambda value, _: plain_number(value))
    (axes.set_xlim if is_x else axes.set_ylim)(axis.low, axis.high)
    if axis.ticks is not None:
        long = is_x and max(map(len, axis.ticks.values()), default=0) > 8
        turned: Any = {"rotation": 20 if len(axis.ticks) <= 12 else 60, "ha": "right"} if long else {}
        ours.set_ticks(list(axis.ticks), list(axis.ticks.values()), **turned)
        ours.set_tick_params(length=0)
    elif axis.whole:
        ours.set_major_locator(MaxNLocator(integer=True))
    if axis.reversed:
        ours.set_inverted(True)
    if not axis.grid:
        axes.grid(axis="x" if is_x else "y", visible=False)


def _make_logarithmic(axes: "Axes", which: str) -> None:
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """Between powers of ten, where there is room for labels."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return plain_number(x) if super().__call__(x, pos) else ""

    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    ours = axes.xaxis if which == "x" else axes.yaxis
    ours.set_major_formatter(lambda value, _: plain_number(value))
    ours.set_minor_formatter(Plain(labelOnlyBase=False))


def plain_number(value: float) -> str:
    return f"{value:,.10g}"


# ---------------------------------------------------------------------- series
def _draw_line(axes: "Axes", line: Line, order: float) -> None:
    looks = _looks(line.look)
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    if line.low is not None and line.high is not None:
        low, high = np.asarray(line.low, float), np.asarray(line.high, float)
        axes.fill_between(x, low, high, color=line.look.color, alpha=line.band, linewidth=0, zorder=1.5)
    style: Any = {"drawstyle": "steps-mid"} if line.step else {}
    axes.plot(x, y, label=line.name or None, zorder=order, **looks, **style)


def _draw_points(axes: "Axes", points: Points, order: float) -> None:
    x, y = np.atleast_1d(np.asarray(points.x, float)), np.atleast_1d(np.asarray(points.y, float))
    looks = _each(points.look, len(x))
    colours = [look.color for look in looks]
    for ends, which, middle in ((points.x_ends, "xerr", x), (points.y_ends, "yerr", y)):
        if ends is not None:
            around = np.nan_to_num(np.abs(np.array([np.atleast_1d(end) for end in ends], float) - middle))
            for place, colour in enumerate(colours):
                whiskers: Any = {which: around[:, [place]], "ecolor": colour, "elinewidth": 1, "capsize": 2.5}
                axes.errorbar(x[[place]], y[[place]], fmt="none", zorder=order, **whiskers)
    style: Any = {"marker": points.marker, "s": points.size**2, "zorder": order + 1, "label": points.name or None}
    if points.values is not None:
        low, high = points.value_range or (None, None)
        drawn = axes.scatter(x, y, c=points.values, cmap="viridis", vmin=low, vmax=high, linewidths=0, **style)
        axes.figure.colorbar(drawn, ax=axes, shrink=0.85, label=points.value_label)
    elif points.hollow:
        axes.scatter(x, y, facecolors="none", edgecolors=colours, linewidths=1.6, **style)
    else:
        axes.scatter(x, y, c=colours, alpha=looks[0].opacity, **style)


def _draw_bars(axes: "Axes", bars: Bars, order: float) -> None:
    places, lengths = np.asarray(bars.places, float), np.asarray(bars.lengths, float)
    base = np.zeros(len(lengths)) if bars.base is None else np.asarray(bars.base, float)
    looks = _each(bars.look, len(lengths))
    style: Any = {"color": [look.color for look in looks], "alpha": looks[0].opacity if looks else 1, "zorder": order}
    style["label"] = bars.name or None
    if bars.horizontal:
        axes.barh(places, lengths, bars.width, left=base, **style)
    else:
        axes.bar(places, lengths, bars.width, bottom=base, **style)


def _draw_heat(axes: "Axes", heat: Heat, order: float) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    ramp: Any = LinearSegmentedColormap.from_list("ramp", SHADES) if heat.colours == "ramp" else heat.colours
    values: Any = np.ma.masked_invalid(np.asarray(heat.values, float))
    extent = heat.extent or (-0.5, values.shape[1] - 0.5, -0.5, values.shape[0] - 0.5)
    style: Any = {"cmap": "Greys" if heat.colours == "grey" else ramp, "vmin": heat.low, "vmax": heat.high}
    image = axes.imshow(
        values, aspect="auto", origin="lower", extent=extent, interpolation="nearest", zorder=order - 1, **style
    )
    axes.grid(visible=False)
    if heat.label:
        axes.figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02, label=heat.label)


def _draw_level(axes: "Axes", level: Level, order: float) -> None:
    looks = {**_looks(level.look), "label": level.name or None, "zorder": order}
    (axes.axvline if level.upright else axes.axhline)(level.value, **looks)


def _draw_note(axes: "Axes", note: Note, order: float) -> None:
    where: Any = ("axes fraction" if note.x is None else "data", "data")
    offset = {"center": (0, 0), "right": (7, 0), "above": (7, 7)}[note.place]
    looks: Any = {"ha": "center" if note.place == "center" else "left", "va": "center", "color": note.color}
    looks |= {"fontsize": note.size, "zorder": order + 1}
    axes.annotate(note.text, (0 if note.x is None else note.x, note.y), offset, where, "offset points", **looks)


_DRAW: dict[type, Any] = {
    Line: _draw_line, Points: _draw_points, Bars: _draw_bars, Heat: _draw_heat, Level: _draw_level, Note: _draw_note,
}  # fmt: skip


def _looks(look: Look) -> dict[str, Any]:
    dash = (0, look.dash) if look.dash else "-"
    return {"color": look.color, "linestyle": dash, "linewidth": look.width, "alpha": look.opacity}


def _each(look: Any, count: int) -> list[Look]:
    return [look] * count if isinstance(look, Look) else list(look)
