"""The command line. Each command reads its input, calls one library function and shows the result."""

import sys
from typing import Annotated

import typer

from asfl._version import __version__
from asfl.cli import (
    compare,
    config,
    cost,
    data,
    decide,
    export,
    fleet,
    profile,
    report,
    reproduce,
    run,
    scenario,
    sweep,
)
from asfl.errors import AsflError
from asfl.plugins import load_plugin

app = typer.Typer(
    name="asfl",
    help="Adaptive split federated learning over wireless networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.command("scenario")(scenario.scenario)
app.command("profile")(profile.profile)
app.command("cost")(cost.cost)
app.command("decide")(decide.decide)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("fleet")(fleet.fleet)
app.command("sweep")(sweep.sweep)
app.command("reproduce")(reproduce.reproduce)
app.command("export")(export.export)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("watch")(report.watch)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"asfl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True)
    ] = False,
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="FILE",
            help="Load a Python file with schemes, channels, models or data sets of your own; may be repeated. "
            "The environment variable ASFL_PLUGINS names such files too. "
            "The file is run: name only what you trust.",
        ),
    ] = None,
) -> None:
    for file in plugins or []:
        load_plugin(file)


def main() -> None:
    """Run the command line; a mistake of the user ends with one message and exit code 2."""
    try:
        app()
    except AsflError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stderr.close()
        sys.exit(0)
