"""Options that several commands share."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""

EngineName = Literal["processes", "ray"]
ClientEngineName = Literal["local", "ray"]

PresetArgument = Annotated[str, typer.Argument(metavar="[PRESET|FILE]", help="A preset's name or a TOML file.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=VALUE", help="Override one field; may be repeated.")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The folder for data sets. Default: ASFL_DATA_DIR, else ./data."),
]
SchemesOption = Annotated[str | None, typer.Option("--schemes", help="Schemes, separated by commas. Default: all.")]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, help="How many seeds, from the preset's on.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Runs side by side. Default: as many as there are cores.")
]
EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="Processes of this machine, or a Ray cluster (extra asfl[ray]).")
]
ClientEngineOption = Annotated[
    ClientEngineName,
    typer.Option("--engine", help="Where clients are: in this process, or each an actor on a Ray cluster (asfl[ray])."),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="Of a running Ray cluster. Default: one on this machine."),
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
