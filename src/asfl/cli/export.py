"""`asfl export`: the rounds of many runs as one table for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders above them.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .parquet or .csv file.")] = Path("runs.parquet"),
    per: Annotated[
        Literal["round", "client", "run"], typer.Option(help="One row per round, per client and round, or per run.")
    ] = "round",
) -> None:
    """Write runs as one table: Parquet or CSV."""
    from asfl.results.frames import export_runs

    rows = export_runs(folders, out, per)
    print(f"{rows} rows: {out}")
