"""`asfl report` and `asfl export`: runs as one page, as figures and tables for a paper, as data for other programs."""

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from asfl.cli import options
from asfl.config.errors import AsflError
from asfl.results.charts.runs import write_figures
from asfl.results.page import Report, chart_library, page, place_for
from asfl.results.page.collect import signature
from asfl.results.page.serve import ADDRESS, LivePage, open_server
from asfl.results.tables import latex_tables
from asfl.runs.files import write_whole


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR…", help="Run folders of one world, or their comparison.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page. Default: report.html in the folder; here, if there are several."),
    ] = None,
    no_figures: Annotated[
        bool, typer.Option("--no-figures", help="The page only; else PDF, SVG and LaTeX go to NAME-figures beside it.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Write nothing; show the page at a local address, renewed as rounds are played."),
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --watch: on 127.0.0.1; 0 is any free one.")] = 8321,
    targets: options.Targets = None,
) -> None:
    """Runs and comparisons as one self-contained HTML page, with figures and tables for a paper beside it."""
    if watch:
        options.refuse_all_but(["folders", "watch", "port", "targets"], "--watch writes nothing")
        _watch(folders, port, options.accuracies(targets))
        return
    if port != 8321:
        raise AsflError("--port doesn't count here: it is for --watch")
    if no_figures:
        options.refuse_all_but(["folders", "out", "no_figures", "targets"], "--no-figures makes the page only")
    place, library = place_for(folders, out), chart_library()
    made = Report.of(folders, options.accuracies(targets))
    if not made.collected.runs:
        raise AsflError(f"{', '.join(map(str, folders))}: no run has begun yet; there is nothing to report")
    write_whole(place, page(made, library=library))
    print(f"page: {place}")
    if no_figures:
        return
    folder = place.with_name(f"{place.stem}-figures")
    if made.summary.runs:
        write_figures(made.summary, made.collected.counted, folder, ("pdf", "svg"))
    write_whole(folder / "tables.tex", latex_tables(made.tables))
    print(f"figures and tables: {folder}")


def _watch(folders: list[Path], port: int, targets: list[float] | None) -> None:
    """Serve the report while experiments run, until Ctrl-C."""

    def build(version: str) -> str:
        return page(Report.of(folders, targets), version=version)

    Report.of(folders, targets)  # mistakes are told here, not in the browser
    server = open_server(LivePage(lambda: signature(folders), build, chart_library()), port)
    address = f"http://{ADDRESS}:{server.server_port}/"
    try:
        # Shells start background jobs deaf to Ctrl-C, and Python then leaves it at that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"the report is at {address} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        server.server_close()


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
