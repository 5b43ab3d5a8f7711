"""The tables of a comparison for a paper: LaTeX with booktabs, as they are."""

from collections.abc import Sequence

from asfl.results.tables import NOT_REACHED, Table

_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "…": r"\dots{}",
    "\n": " ",
}


def latex_tables(groups: Sequence[tuple[str, Sequence[Table]]]) -> str:
    """All tables of all worlds; each group is the title of a world (empty if there is only one) and its tables."""
    parts = ["% Needs \\usepackage{booktabs}; wide tables also \\usepackage{graphicx}.\n"]
    for number, (title, tables) in enumerate(groups, start=1):
        prefix = f"tab:asfl-{number}" if len(groups) > 1 else "tab:asfl"
        parts += [_table(table, title, f"{prefix}-{table.key}") for table in tables]
    return "\n".join(parts)


def escape(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)


def _table(table: Table, title: str, label: str) -> str:
    caption = f"{table.title}{f' ({title})' if title else ''}. {table.note}"
    wide = len(table.header) > 7
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escape(caption)}}}",
        f"  \\label{{{label}}}",
        *([r"  \resizebox{\linewidth}{!}{%"] if wide else []),
        f"  \\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        r"    \toprule",
        f"    {_row(table.header)}",
        r"    \midrule",
        *(f"    {_row(row)}" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}" + ("}" if wide else ""),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(rf"\emph{{{cell}}}" if cell == NOT_REACHED else escape(cell) for cell in cells) + r" \\"
