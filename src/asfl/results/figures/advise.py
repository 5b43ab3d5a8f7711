"""The map of advice: which scheme is best where."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asfl.results.advise_map import BANDWIDTHS, PRICES, SPREADS, Cell
from asfl.results.figures.figure import drawing, subtitle
from asfl.results.figures.training import style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALPHA = 0.4
_LONG = 15
"""Letters that fill a square."""


def draw_map(cells: Sequence[Cell], said: str) -> "Figure":
    """A panel per spread of processors; in each, bandwidth against the price of energy."""
    from matplotlib.patches import Patch, Rectangle

    with drawing(4.6 * len(SPREADS), 3.6) as figure:
        panels = figure.subplots(1, len(SPREADS), sharey=True)
        for axes, spread in zip(panels, SPREADS, strict=True):
            for cell in (one for one in cells if one.spread == spread):
                x, y = BANDWIDTHS.index(cell.bandwidth), list(PRICES).index(cell.price)
                colour = style_of(cell.best)["color"]
                axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=colour, alpha=_ALPHA))
                behind = _behind(cell)
                looks = {"ha": "center", "va": "center", "fontsize": 7.5 if len(behind) < _LONG else 6}
                axes.text(x, y, f"{cell.best}\n{behind}", **looks)
            axes.set(xlim=(-0.5, len(BANDWIDTHS) - 0.5), ylim=(-0.5, len(PRICES) - 0.5), title=spread)
            axes.set_xticks(range(len(BANDWIDTHS)), [f"× {one:g}" for one in BANDWIDTHS])
            axes.set_yticks(range(len(PRICES)), list(PRICES))
            axes.grid(visible=False)
            axes.set_xlabel("bandwidth")
        schemes = dict.fromkeys(cell.best for cell in cells)
        handles = [Patch(color=style_of(name)["color"], alpha=_ALPHA, label=name) for name in schemes]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        subtitle(figure, said)
    return figure


def _behind(cell: Cell) -> str:
    """The second, and how far it is behind."""
    return f"{cell.second}: {cell.ahead:.{0 if cell.ahead >= 10 else 1}f}×" if cell.second else ""
