"""Tables and sentences in a terminal that has no room for them."""

import copy
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.table import Column, Table

_WRAPPED_FROM = 24
"""Letters: what is longer may be wrapped between words; what is shorter stays in a line."""
_PLENTY = 10_000


class InParts(RenderHook):
    """A table that is too wide becomes several, below each other; each has the first column, so that rows are known."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        parts = (self._parts(one) if isinstance(one, Table) else [one] for one in renderables)
        return [part for of_one in parts for part in of_one]

    def _parts(self, table: Table) -> list[Table]:
        if self._width(table) <= self._console.width:
            return [table]
        headers = [str(column.header) for column in table.columns]
        repeated = list(range(headers.index("scheme") + 1 if "scheme" in headers else 1))
        parts: list[list[int]] = []
        for place in range(len(repeated), len(headers)):
            if parts and self._width(self._part(table, [*parts[-1], place])) <= self._console.width:
                parts[-1].append(place)
            else:
                parts.append([*repeated, place])
        made = [self._widened(table, part) for part in parts]
        for later in made[1:]:
            later.title = None
        return made

    def _part(self, table: Table, places: Sequence[int]) -> Table:
        """With these columns, as narrow as they can be."""
        part = copy.copy(table)
        narrow = [(table.columns[place], self._needs(table.columns[place])) for place in places]
        part.columns = [replace(column, width=width, _index=index) for index, (column, width) in enumerate(narrow)]
        return part

    def _widened(self, table: Table, places: Sequence[int]) -> Table:
        """The same, with the room that is left for what was wrapped."""
        part = self._part(table, places)
        if self._width(part) > self._console.width:  # there is no room for its longest words
            for column in part.columns:
                column.width = None
            return part
        for column in part.columns:
            room = self._console.width - self._width(part)
            longest = max((self._measured(cell).maximum for cell in column.cells), default=0)
            column.width = (column.width or 0) + max(min(room, longest - (column.width or 0)), 0)
        return part

    def _needs(self, column: Column) -> int:
        sizes = [self._measured(cell) for cell in column.cells]
        return max(
            self._measured(column.header).minimum,
            *(max(size.minimum, min(size.maximum, _WRAPPED_FROM)) for size in sizes),
            1,
        )

    def _measured(self, cell: object) -> Measurement:
        return Measurement.get(self._console, self._console.options.update(width=_PLENTY), cell)  # type: ignore[arg-type]

    def _width(self, table: Table) -> int:
        return self._measured(table).maximum


def wrapped(text: str, width: int, indent: int = 0) -> str:
    """Broken between words; later lines are indented."""
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def listed(rows: Iterable[tuple[str, str]], width: int | None) -> Iterable[str]:
    """A name and what there is to say, beside each other; in half a `width` for names, else below each other."""
    rows = list(rows)
    names = max(len(name) for name, _ in rows)
    for name, about in rows:
        line = f"{name:<{names}}  {about}".rstrip()
        if width is None or len(line) <= width:
            yield line
        elif 2 * names <= width:
            yield wrapped(line, width, names + 2)
        else:
            yield name
            yield wrapped(f"    {about}", width, 4)
