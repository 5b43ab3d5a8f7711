"""How charts look: colours for light and dark, one template for all of them, and figures as small JSON.

A figure is built by plotly in the colours of a light page. The page swaps each colour for its dark twin when asked.
"""

import colorsys
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.results.curves import CEILING, OURS
from asfl.results.figures.training import style_of
from asfl.results.page.collect import Collected
from asfl.schemes import SCHEMES

Json = dict[str, Any]
Floats = NDArray[np.float64]

MOST_POINTS = 300
"""Of a curve; longer ones are thinned."""

INK, SOFT, PAPER, LINE, GRID = "#1d1f23", "#5c6270", "#ffffff", "#dedbd4", "#e8e6e0"
BAR, SECOND, LEVEL = "#b9c4d4", "#e0a33e", "#333333"
_RAMP = ("#f3f1ec", "#7fa3c7", "#17355c")
"""From nothing to much: one hue, so that it is read without telling colours apart."""
DARK = {
    **{INK: "#e9e7e2", SOFT: "#a2a7b3", PAPER: "#1b1d21", LINE: "#34373e", GRID: "#2b2e34"},
    **{BAR: "#55617a", SECOND: "#d9a441", LEVEL: "#d5d2ca"},
    **dict(zip(_RAMP, ("#24272d", "#4a7ba6", "#d6ebff"), strict=True)),
}
_AXIS = {"gridcolor": GRID, "zerolinecolor": LINE, "linecolor": LINE, "automargin": True, "title": {"standoff": 8}}
TEMPLATE: Json = {
    "layout": {
        "title": {"font": {"size": 14}, "x": 0, "xref": "paper", "xanchor": "left", "y": 0.98, "yanchor": "top"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, 'Segoe UI', Roboto, Arial, sans-serif", "size": 12, "color": INK},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": LINE, "font": {"color": INK}, "namelength": -1},
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 1, "xanchor": "right", "font": {"size": 11}},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": SOFT, "activecolor": INK},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    },
    "data": {
        "heatmap": [
            {
                "colorscale": [[place / 2, colour] for place, colour in enumerate(_RAMP)],
                "colorbar": {"thickness": 10, "outlinewidth": 0, "title": {"side": "top"}},
            }
        ]
    },
}
SHADES = ("#f3f1ec", "#bcd3e8", "#7fa3c7", "#4d7bab", "#2c568a", "#17355c", "#0b1d36")
"""From none to many, where each number has a bar of its own."""
DARK |= dict(zip(SHADES, ("#24272d", "#33506d", "#4a7ba6", "#6f9ec9", "#9dc3e6", "#d6ebff", "#ffffff"), strict=True))
LOG = {"type": "log", "dtick": 1, "tickformat": ",~r"}
FROM_ZERO = {"rangemode": "tozero"}


def chart(
    traces: Sequence[Any],
    title: str = "",
    x: str = "",
    y: str = "",
    *,
    when: Mapping[str, Json] | None = None,
    scale: str = "linear",
    **layout: Any,
) -> Json:
    """A figure as the page reads it. `when`: what to change in the layout if it is "log", "linear" or "narrow"."""
    from plotly import graph_objects as go

    xaxis, yaxis = ({"title": {"text": text}, **layout.pop(name, {})} for name, text in (("xaxis", x), ("yaxis", y)))
    layout = {"margin": {"l": 48, "r": 12, "t": 34 if title else 30, "b": 42}, **layout}
    heading = {"title": {"text": f"<b>{plain(title)}</b>"}} if title else {}
    figure = go.Figure(traces, {"template": "none", "xaxis": xaxis, "yaxis": yaxis, **heading, **layout}).to_dict()
    del figure["layout"]["template"]
    return {**figure, "when": when or {}, "scale": scale}


def plain(text: str, most: int = 200) -> str:
    """Text that plotly, which knows some markup, shows as it is; cut off if it is long."""
    return escape(text if len(text) <= most else text[: most - 1] + "…", quote=False)


# ---------------------------------------------------------------------- colours
def styles(collected: Collected) -> dict[str, Json]:
    """Colour and dashes by series: those of the pictures; of several worlds, a scheme's colour and a world's dashes."""
    dashes = ["solid", "6px,3px", "2px,2px", "9px,3px,2px,3px", "4px,2px"]
    several, only_one_scheme = len(collected.groups) > 1, len({run.scheme for run in collected.runs}) == 1
    found: dict[str, Json] = {}
    for place, group in enumerate(collected.groups):
        for scheme in group.schemes:
            looks = style_of(scheme)
            by_world = several and only_one_scheme
            colour = style_of(list(SCHEMES)[place % len(SCHEMES)])["color"] if by_world else looks["color"]
            found[group.series(scheme)] = {
                "color": colour,
                "dark": _for_dark(colour),
                "dash": dashes[place % len(dashes)] if several else _dash(looks["linestyle"], looks["linewidth"]),
                "width": looks["linewidth"],
                "ours": scheme == OURS,
                "ceiling": scheme == CEILING,
            }
    return found


def _dash(linestyle: Any, width: float) -> str:
    if linestyle == "--":
        return "6px,3px"
    return "solid" if linestyle == "-" else ",".join(f"{part * width:.3g}px" for part in linestyle[1])


def _for_dark(colour: str) -> str:
    """The same hue, light enough for a dark page."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    lighter = 0.92 if light < 0.05 else max(light, 0.62)
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lighter, saturation))


def shade(place: int, of: int) -> str:
    """The colour of one of so many steps from none to many."""
    return SHADES[round(place * (len(SHADES) - 1) / max(of - 1, 1)) if of > len(SHADES) else place]


# ---------------------------------------------------------------------- numbers
def compact(values: ArrayLike) -> NDArray[Any]:
    """As few bytes as a chart needs: whole numbers, or single precision; what isn't finite is NaN."""
    array = np.asarray(values, float)
    finite = np.isfinite(array)
    if finite.all() and (array == np.round(array)).all() and (abs(array) < 2**31).all():
        return array.astype(np.int64)  # plotly takes the smallest type that holds them
    return np.where(finite, array, np.nan).astype(np.float32)


def binned(values: ArrayLike, columns: int = MOST_POINTS) -> Floats:
    """Means of as many neighbouring entries (along the first axis) as it takes to have at most so many."""
    array = np.asarray(values, float)
    every = math.ceil(len(array) / columns)
    if every <= 1:
        return array
    starts = np.arange(0, len(array), every)
    known = np.isfinite(array)
    counts = np.add.reduceat(known.astype(float), starts, axis=0)
    sums = np.add.reduceat(np.where(known, array, 0.0), starts, axis=0)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan))


def rounds_axis(rounds: int, columns: int = MOST_POINTS) -> Json:
    """Where the entries of `binned` stand."""
    every = max(1, math.ceil(rounds / columns))
    return {"x0": 1 + (every - 1) / 2, "dx": every}
