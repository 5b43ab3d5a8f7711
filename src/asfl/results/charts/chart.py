"""What a chart shows, apart from what draws it: matplotlib for files (`files`), Plotly for the page (`plotly`)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass, field
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.schemes import ABLATION, CEILING, OURS, PLUS, SCHEMES

Floats = NDArray[np.float64]
GOOD, MEDIAN, BAD, BUDGET = "#1b7f5c", "#3565a8", "#c2452d", "#333333"
"""Colours of a good, a median and a bad client, and of budgets; colour-blind readers can tell them apart, too."""
OTHER, SECOND, FAINT = "#b9c4d4", "#e0a33e", "#999999"
"""Bars beside the point, the second of two quantities, notes."""
SHADES = ("#f3f1ec", "#bcd3e8", "#7fa3c7", "#4d7bab", "#2c568a", "#17355c", "#0b1d36")
"""Of a heat map, from none to many."""
CUT_LABEL = "cut: layers on the client"
LOGARITHMIC_FROM = 10
"""Ratio of the largest to the smallest value from which on a scale is logarithmic."""
MOST_POINTS = 300
"""Of a line; longer ones are thinned."""


@dataclass(frozen=True)
class Look:
    """How a line, a bar or a point is drawn."""

    color: str = MEDIAN
    dash: tuple[float, ...] = ()
    """Lengths of strokes and gaps, in widths of the line; empty: solid."""
    width: float = 1.4
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """Through points, with a band around it if `low` and `high` are given."""

    x: ArrayLike
    y: ArrayLike
    look: Look = Look()
    name: str = ""
    """In the legend; empty: not there."""
    group: str = ""
    """Whose it is; the page shows and hides all of a group together."""
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    band: float = 0.15
    """Opacity of the band."""
    step: bool = False
    hover: str = "%{x}: %{y:.4~g}"
    """What the page says of a point, as Plotly's templates have it; empty: nothing."""


@dataclass(frozen=True, kw_only=True)
class Points:
    """Markers, with whiskers where ends are given; coloured by `values` if there are any, which only files show."""

    x: ArrayLike
    y: ArrayLike
    look: Look | Sequence[Look] = Look()
    """One for each point, or the same for all."""
    name: str = ""
    group: str = ""
    marker: Literal["o", "^", "x"] = "o"
    size: float = 6.0
    hollow: bool = False
    x_ends: tuple[ArrayLike, ArrayLike] | None = None
    """Lowest and highest."""
    y_ends: tuple[ArrayLike, ArrayLike] | None = None
    values: ArrayLike | None = None
    value_label: str = ""
    value_range: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Bars:
    """From `base` (0, unless given) to `base` + `lengths`, at these places."""

    places: ArrayLike
    lengths: ArrayLike
    look: Look | Sequence[Look] = Look()
    name: str = ""
    base: ArrayLike | None = None
    width: float = 0.8
    horizontal: bool = False
    hover: str = ""
    """As of a line; empty: the page says nothing."""


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A table of numbers as colours: `values` [rows, columns], from the lowest row number up."""

    values: ArrayLike
    label: str = ""
    """At the scale of colours; empty: no such scale."""
    low: float | None = None
    high: float | None = None
    extent: tuple[float, float, float, float] | None = None
    """Left, right, bottom and top edge; without it cells are centred on 0, 1, 2, …"""
    colours: Literal["ramp", "viridis", "grey"] = "ramp"
    hover: str = "%{x}, %{y}: %{z:.3~g}<extra></extra>"


@dataclass(frozen=True)
class Level:
    """A line across the panel: at a y, or at an x if it is `upright`."""

    value: float
    name: str = ""
    look: Look = Look(BUDGET, (4, 2), 1.2)
    upright: bool = False


@dataclass(frozen=True)
class Note:
    """Words in a panel."""

    text: str
    x: float | None
    """None: at the left edge."""
    y: float
    color: str = BUDGET
    place: Literal["center", "right", "above"] = "right"
    """Where the words are, seen from the point."""
    size: float = 8.0


Series = Line | Points | Bars | Heat | Level | Note


@dataclass(frozen=True)
class Axis:
    label: str = ""
    scale: Literal["linear", "log"] = "linear"
    low: float | None = None
    high: float | None = None
    ticks: Mapping[Any, str] | None = None
    """Places and what stands there; None: numbers, wherever there is room."""
    whole: bool = False
    """Only whole numbers: clients, rounds, cuts."""
    reversed: bool = False
    grid: bool = True


ROUND = Axis("round", whole=True)


@dataclass(frozen=True)
class Panel:
    """One pair of axes and what is in it, drawn in this order."""

    title: str
    series: Sequence[Series]
    x: Axis = Axis()
    y: Axis = Axis()
    legend: bool = False
    """Whether its names stand in the panel, unless those of its chart stand beside all panels."""
    equal: bool = False
    """Whether a metre is as long on both axes."""


@dataclass(frozen=True)
class Chart:
    """What becomes a file: panels in rows, and what is said of all of them."""

    rows: Sequence[Sequence[Panel]]
    width_in: float = 9.5
    height_in: float = 5.2
    title: str = ""
    subtitle: str = ""
    """Small: what holds for every number in the picture."""
    note: str = ""
    """Below."""
    legend: Literal["", "right", "bottom"] = ""
    legend_title: str = ""
    heights: Sequence[float] = field(default=())

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row]


# ---------------------------------------------------------------------- colours
_COLOURS = (
    *("#c2452d", "#1b7f5c", "#3565a8", "#e0952b", "#8a4fa3", "#2aa3b8"),
    *("#6b6b6b", "#a0522d", "#d65f9e", "#7f9a2a", "#1f2f6b", "#c9a800"),
    *("#7a1f5c", "#5f8fb0", "#9c7a5b", "#000000"),
)
_FIRST = ("asfl", "asfl-plus", "sfl-best", "acc-sfl", "epsl", "fedavg", "sl-best", "asfl-pmax", *ABLATION)
"""Schemes that meet most often: each has a colour of its own, and so do the next few."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5), (2.5, 1))


def look_of(scheme: str) -> Look:
    """Colour and dashes of a scheme, the same in every chart; ours is thick, and the ceiling looks like a budget.

    A scheme that isn't known here, because its plugin isn't loaded, gets a look by its name.
    """
    if scheme == CEILING:
        return Look(BUDGET, (4, 2))
    order = list(dict.fromkeys([*_FIRST, *SCHEMES]))
    place = order.index(scheme) if scheme in order else len(_COLOURS) + crc32(scheme.encode())
    color = _COLOURS[place] if place < len(_COLOURS) else _another_colour(place - len(_COLOURS))
    return Look(color, DASHES[place % len(DASHES)], 2.8 if is_ours(scheme) else 1.4)


def is_ours(scheme: str) -> bool:
    return scheme in (OURS, PLUS)


def _another_colour(number: int) -> str:
    """Hues that stay apart however many there are, in turn a dark and a light one."""
    red, green, blue = hls_to_rgb((0.11 + number * 0.618034) % 1, (0.33, 0.5)[number % 2], (0.75, 0.5)[number % 2])
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


# ---------------------------------------------------------------------- numbers
def spans_magnitudes(values: Iterable[float]) -> bool:
    """Whether positive values differ so much that on a linear scale the small ones would be squeezed flat."""
    shown = [value for value in values if 0 < value < math.inf]
    return bool(shown) and max(shown) > LOGARITHMIC_FROM * min(shown)


def scaled(label: str, values: Iterable[float]) -> Axis:
    """An axis that is logarithmic if the values differ that much, else from zero."""
    logarithmic = spans_magnitudes(values)
    return Axis(label, "log") if logarithmic else Axis(label, low=0)


def binned(values: ArrayLike, columns: int = MOST_POINTS) -> Floats:
    """Means of as many neighbouring entries (along the first axis) as it takes to have at most so many."""
    array = np.asarray(values, float)
    every = math.ceil(len(array) / columns)
    if every <= 1:
        return array
    starts, known = np.arange(0, len(array), every), np.isfinite(array)
    counts = np.add.reduceat(known.astype(float), starts, axis=0)
    sums = np.add.reduceat(np.where(known, array, 0.0), starts, axis=0)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan))


def over_rounds(values: Sequence[float] | NDArray[np.floating], look: Look, name: str = "", **more: object) -> Line:
    """A line from round 1 on, thinned to `MOST_POINTS` means."""
    every = max(1, math.ceil(len(values) / MOST_POINTS))
    y = binned(values)
    x = 1 + (every - 1) / 2 + every * np.arange(len(y))
    return Line(x=x, y=y, look=look, name=name, **more)  # type: ignore[arg-type]


def lines_panel(
    title: str,
    label: str,
    values: Mapping[str, Sequence[float] | NDArray[np.floating]],
    look: Callable[[str], Look] = look_of,
    *,
    step: bool = False,
) -> Panel:
    """A line from round 1 on for each name; logarithmic where the largest values of lines differ that much."""
    lines = [over_rounds(of_one, look(name), name, group=name, step=step) for name, of_one in values.items()]
    tops = [float(np.max(of_one)) for of_one in values.values() if len(of_one)]
    return Panel(title, lines, ROUND, scaled(label, tops))


def stacked(places: ArrayLike, parts: Mapping[str, tuple[ArrayLike, Look]], width: float = 0.8) -> list[Bars]:
    """Bars on top of each other."""
    made, base = list[Bars](), np.zeros(np.size(places))
    for name, (lengths, look) in parts.items():
        made.append(Bars(places=places, lengths=lengths, look=look, name=name, base=base, width=width))
        base = base + np.asarray(lengths, float)
    return made


def no_cut(rounds: int, y: float) -> Note:
    """In place of a scheme's cuts, in the middle of its rounds."""
    return Note("no cut: the whole model is on the client", rounds / 2, y, FAINT, "center")


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of so many entries up to each."""
    return [float(np.mean(values[max(0, end - window) : end])) for end in range(1, len(values) + 1)]
