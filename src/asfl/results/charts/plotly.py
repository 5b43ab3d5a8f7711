"""Panels as the page reads them: plain JSON for Plotly's script.

Only what the page shows is drawn here: lines, rows of bars, heat maps; `files` draws all of `chart`.
"""

import base64
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.results.charts.chart import (
    SHADES,
    Axis,
    Bars,
    Heat,
    Level,
    Line,
    Look,
    Note,
    Panel,
    Points,
)

Json = dict[str, Any]
INK, PAPER, LINE, GRID = "#1d1f23", "#ffffff", "#dedbd4", "#e8e6e0"
_AXIS = {"gridcolor": GRID, "zerolinecolor": LINE, "linecolor": LINE, "automargin": True, "title": {"standoff": 8}}
TEMPLATE: Json = {
    "layout": {
        "title": {"font": {"size": 14}, "x": 0, "xref": "paper", "xanchor": "left", "y": 0.98, "yanchor": "top"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, 'Segoe UI', Roboto, Arial, sans-serif", "size": 12, "color": INK},
        "showlegend": False,
        "barmode": "overlay",
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": LINE, "font": {"color": INK}, "namelength": -1},
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 1, "xanchor": "right", "font": {"size": 11}},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    },
}
LONG_LEGEND = 5
"""With more names it isn't beside the title, but below."""


def figure(panel: Panel, *, legend: bool = False) -> Json:
    """Traces and layout; a click on a name in the legend hides all that is drawn of it."""
    traces: list[Json] = []
    long = sum(bool(getattr(series, "name", "")) for series in panel.series) > LONG_LEGEND
    layout: Json = {
        "margin": {"l": 48, "r": 12, "t": (56 if long else 34) if panel.title else 30, "b": 42},
        "xaxis": _axis(panel.x),
        "yaxis": _axis(panel.y),
        "showlegend": panel.legend or legend,
        "shapes": [],
        "annotations": [],
    }
    if panel.title:
        layout["title"] = {"text": f"<b>{plain(panel.title)}</b>"}
    for series in panel.series:
        if isinstance(series, Line):
            traces += _line(series)
        elif isinstance(series, Points):
            traces.append(_points(series))
        elif isinstance(series, Bars):
            traces.append(_bars(series))
        elif isinstance(series, Heat):
            traces.append(_heat(series))
        elif isinstance(series, Level):
            layout["shapes"].append(_level(series))
        else:
            layout["annotations"].append(_note(series, panel.x.scale == "log"))
    traces.sort(key=lambda trace: trace.get("fill") != "toself")  # bands behind all lines
    return {"data": traces, "layout": layout}


def _axis(axis: Axis) -> Json:
    made: Json = {"title": {"text": axis.label}, "showgrid": axis.grid}
    if axis.scale == "log":
        made |= {"type": "log", "dtick": "D2", "tickformat": ",~r"}
    elif axis.whole:
        made["tickformat"] = "d"
    if axis.ticks is not None:
        made |= {"tickvals": list(axis.ticks), "ticktext": [plain(text, 24) for text in axis.ticks.values()]}
    if axis.low is not None and axis.high is not None:
        ends = [math.log10(end) for end in (axis.low, axis.high)] if axis.scale == "log" else [axis.low, axis.high]
        made["range"] = ends[::-1] if axis.reversed else ends
    elif axis.low == 0:
        made["rangemode"] = "tozero"
    return made


# ---------------------------------------------------------------------- series
def _line(line: Line) -> list[Json]:
    look, x = line.look, np.asarray(line.x, float)
    stroke = {"color": look.color, "width": look.width, "dash": _dash(look), "shape": "hvh" if line.step else "linear"}
    traces: list[Json] = [
        {
            **{"type": "scatter", "mode": "lines" if len(x) > 1 else "markers", "legendgroup": line.group},
            **{"x": packed(x), "y": packed(line.y), "opacity": look.opacity, **_hover(line.hover)},
            **{"line": stroke, "marker": {"color": look.color}},
            **{"name": plain(line.name), "showlegend": bool(line.name)},
        }
    ]
    if line.low is not None and line.high is not None:
        low, high = np.asarray(line.low, float), np.asarray(line.high, float)
        traces[0]["customdata"] = packed(np.stack([low, high], axis=1))
        traces.append(
            {
                **{"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False},
                **{"x": packed([*x, *x[::-1]]), "y": packed([*high, *low[::-1]]), "fill": "toself"},
                **{"fillcolor": look.color, "opacity": line.band, "line": {"width": 0}, "legendgroup": line.group},
            }
        )
    return traces


def _points(points: Points) -> Json:
    """Their markers are circles, whatever they are in files."""
    colours = _colours(points.look)
    trace: Json = {
        **{"type": "scatter", "mode": "markers", "hoverinfo": "skip", "showlegend": False},
        **{"x": packed(np.atleast_1d(points.x)), "y": packed(np.atleast_1d(points.y))},
        **{"marker": {"color": colours, "size": 1.4 * points.size}, "legendgroup": points.group},
    }
    if points.x_ends is not None:
        middle = np.atleast_1d(np.asarray(points.x, float))
        less, more = (np.nan_to_num(np.abs(np.asarray(end, float) - middle)) for end in points.x_ends)
        trace["error_x"] = {
            "type": "data", "symmetric": False, "array": packed(more), "arrayminus": packed(less),
            "color": colours if isinstance(colours, str) else INK, "thickness": 1.2, "width": 3,
        }  # fmt: skip
    return trace


def _bars(bars: Bars) -> Json:
    """Rows."""
    return {
        **{"type": "bar", "orientation": "h", "y": packed(bars.places), "x": packed(bars.lengths)},
        **{"width": bars.width, "marker": {"color": _colours(bars.look)}, **_hover(bars.hover)},
        **({} if bars.base is None else {"base": packed(bars.base)}),
        **{"name": plain(bars.name), "showlegend": bool(bars.name)},
    }


def _hover(template: str) -> Json:
    return {"hovertemplate": template} if template else {"hoverinfo": "skip"}


def _heat(heat: Heat) -> Json:
    """From none to many, between edges that are given."""
    values = np.asarray(heat.values, float)
    assert heat.extent is not None
    left, right, bottom, top = heat.extent
    wide, high = (right - left) / values.shape[1], (top - bottom) / values.shape[0]
    return {
        **{"type": "heatmap", "z": packed(values), "zmin": heat.low, "zmax": heat.high, "hoverongaps": False},
        **{"x0": left + wide / 2, "dx": wide, "y0": bottom + high / 2, "dy": high, "hovertemplate": heat.hover},
        "colorscale": [[place / (len(SHADES) - 1), colour] for place, colour in enumerate(SHADES)],
        "colorbar": {"thickness": 10, "outlinewidth": 0, "title": {"text": heat.label, "side": "top"}},
    }


def _level(level: Level) -> Json:
    """Across the panel."""
    line = {"color": level.look.color, "width": level.look.width, "dash": _dash(level.look)}
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": level.value, "y1": level.value}
    return {"type": "line", "line": line, **ends, "name": level.name, "showlegend": bool(level.name)}


def _note(note: Note, log_x: bool) -> Json:
    where = {"x": 0, "xref": "paper"} if note.x is None else {"x": math.log10(note.x) if log_x else note.x}
    anchor = {} if note.place == "center" else {"xanchor": "left", "xshift": 7}
    looks = {"showarrow": False, "font": {"size": 1.35 * note.size, "color": note.color}}
    return {**where, **anchor, **looks, "y": note.y, "text": plain(note.text)}


def _colours(look: Look | Sequence[Look]) -> str | list[str]:
    return look.color if isinstance(look, Look) else [one.color for one in look]


def _dash(look: Look) -> str:
    return ",".join(f"{part * look.width:.3g}px" for part in look.dash) or "solid"


# ---------------------------------------------------------------------- text, numbers, colours
def plain(text: str, most: int = 200) -> str:
    """Text that Plotly, which knows some markup, shows as it is, line by line; cut off if it is long."""
    return escape(text if len(text) <= most else text[: most - 1] + "…", quote=False).replace("\n", "<br>")


def packed(values: ArrayLike) -> Json:
    """Numbers in few bytes, as Plotly reads them: whole ones, or single precision; what isn't finite is NaN."""
    array: NDArray[Any] = np.asarray(values, float)
    finite = np.isfinite(array)
    if finite.all() and (array == np.round(array)).all() and (abs(array) < 2**31).all():
        kind = next(kind for kind in ("i1", "i2", "i4") if (abs(array) <= np.iinfo(kind).max).all())
        array = array.astype(kind)
    else:
        array, kind = np.where(finite, array, np.nan).astype("<f4"), "f4"
    shape = {"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {}
    return {"dtype": kind, "bdata": base64.b64encode(array.tobytes()).decode(), **shape}
