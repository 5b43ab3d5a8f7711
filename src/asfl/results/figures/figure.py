"""How every figure looks, and how it reaches the disk: whole or not at all."""

import io
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from asfl.config.errors import AsflError
from asfl.runs.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

GOOD, MEDIAN, BAD, BUDGET = "#1b7f5c", "#3565a8", "#c2452d", "#333333"
"""Colours of a good, a median and a bad client, and of budgets; told apart also by colour-blind readers."""

OTHER, FAINT, NOTHING = "#b9c4d4", "#999999", "#ececec"
"""Bars that aren't the point; words about what isn't there; parts of bars that stand for nothing."""
CUT_LABEL = "cut: layers on the client"

LOGARITHMIC_FROM = 10
"""Ratio of the largest to the smallest value from which on a scale is logarithmic."""

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


def check_figure_path(path: Path) -> None:
    """Refuse a file name that can't become a figure before any work is done."""
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise AsflError(f"--plot {path}: the name must end in {', '.join('.' + name for name in FORMATS)}")
    if path.is_dir():
        raise AsflError(f"--plot {path} is a folder; give a file name")


def headline(figure: "Figure", text: str) -> None:
    """Over all panels."""
    figure.suptitle(text, fontsize=12, fontweight="bold")


def subtitle(figure: "Figure", text: str) -> None:
    """Small, over all panels, if there is anything to say: what a reader must know of every number in the picture."""
    if text:
        figure.suptitle(text, fontsize=8, color="#666666", x=0.01, ha="left")


def save_figure(figure: "Figure", path: Path) -> None:
    """Write the figure in one step, so that nobody ever sees half a file."""
    import matplotlib as mpl

    check_figure_path(path)
    kind = path.suffix.lower().removeprefix(".")
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else None
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    write_whole(path, buffer.getvalue())


def spans_magnitudes(values: Iterable[float]) -> bool:
    """Whether positive values differ so much that on a linear scale the small ones would be squeezed flat."""
    shown = [value for value in values if 0 < value < math.inf]
    return bool(shown) and max(shown) > LOGARITHMIC_FROM * min(shown)


def scale(axes: "Axes", which: Literal["x", "y"], *, logarithmic: bool) -> None:
    """Either way, with numbers people read."""
    (make_logarithmic if logarithmic else separate_thousands)(axes, which)


def make_logarithmic(axes: "Axes", which: Literal["x", "y"]) -> None:
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """Between powers of ten, where there is room for labels."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return _plain(x) if super().__call__(x, pos) else ""

    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    separate_thousands(axes, which)
    (axes.xaxis if which == "x" else axes.yaxis).set_minor_formatter(Plain(labelOnlyBase=False))


def separate_thousands(axes: "Axes", which: Literal["x", "y"]) -> None:
    (axes.xaxis if which == "x" else axes.yaxis).set_major_formatter(lambda value, _: _plain(value))


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def whole_numbers(axes: "Axes") -> None:
    """Mark only whole numbers on the x axis: cuts, clients, rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", visible=False)
