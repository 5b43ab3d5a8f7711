"""What commands print: tables for people, JSON for programs, and where the picture is."""

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from asfl.results.charts.chart import Chart
from asfl.results.charts.files import TRACE, save_figure
from asfl.results.tables import Table
from asfl.runs.files import write_whole


def console() -> Console:
    """Where tables go; as wide as they need when the output isn't a terminal."""
    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=160, color_system=None)
    return out


def terminal_width() -> int | None:
    """Letters in a line; None: nobody looks at a terminal."""
    out = Console()
    return out.width if out.is_terminal else None


def say(text: str, indent: int = 0) -> None:
    """A sentence; on a terminal broken between words, later lines indented."""
    width = terminal_width()
    print(text if width is None else _wrapped(text, width, indent))


def _wrapped(text: str, width: int, indent: int) -> str:
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def print_listed(rows: Iterable[tuple[str, str]]) -> None:
    """Names and descriptions side by side; below each other where names take more than half of a terminal."""
    rows, width = list(rows), terminal_width()
    names = max(len(name) for name, _ in rows)
    for name, about in rows:
        line = f"{name:<{names}}  {about}".rstrip()
        if width is None or len(line) <= width:
            print(line)
        elif 2 * names <= width:
            print(_wrapped(line, width, names + 2))
        else:
            print(name)
            print(_wrapped(f"    {about}", width, 4))


def print_json(data: Any) -> None:
    print(json_text(data))


def json_text(data: Any) -> str:
    """As JSON has it: there is no infinity and no NaN in it, so such numbers are null."""
    return json.dumps(_finite(data), indent=2, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1, title: str = "") -> RichTable:
    """The first `words` columns hold words, the others numbers. What doesn't fit into a terminal is folded."""
    return Table(header=header, rows=list(rows), words=words, title=title).terminal()


def show(
    as_json: bool,
    plot: Path | None,
    *,
    data: Callable[[], object],
    tables: Callable[[Console], None],
    figure: Callable[[], Chart],
    trace: Callable[[], Sequence[dict[str, Any]]] = list,
) -> None:
    """A result as JSON or as tables, and as a picture or a trace if one is wished."""
    traced = plot is not None and plot.suffix.lower() == TRACE
    if plot is not None and traced:
        write_whole(plot, json.dumps({"traceEvents": trace(), "displayTimeUnit": "ms"}, allow_nan=False))
    elif plot is not None:
        save_figure(figure(), plot)
    if as_json:
        print_json(data())
        return
    tables(console())
    if plot is not None:
        print(f"{'trace' if traced else 'picture'}: {plot}")
