"""Options that several commands share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

PresetArgument = Annotated[str, typer.Argument(metavar="[PRESET|FILE]", help="A preset's name or a TOML file.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=VALUE", help="Override one field; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw a picture into this .png, .svg or .pdf file."),
]


def console() -> Console:
    """Where tables go; as wide as they need when the output isn't a terminal."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=160, color_system=None)


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, allow_nan=False))
