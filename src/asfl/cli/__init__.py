"""The command line. Each command reads its input, calls one library function and shows the result."""

import sys
from importlib import import_module
from typing import Annotated

import typer
from click import Command, Context, HelpFormatter
from typer.core import TyperGroup

from asfl._version import __version__
from asfl.cli.terminal import write_what_terminals_have
from asfl.config.errors import AsflError, nearest, short
from asfl.config.plugins import load_plugin

_COMMANDS = {
    "config": ("config", "Show and check configurations."),
    "data": ("data", "Get data sets, and see how they are spread over the clients."),
    "scenario": ("scenario", "Who is where, and what each cut would cost."),
    "profile": ("profile", "Bits and FLOPs of a model, layer by layer."),
    "cost": ("cost", "Delay and energy of one round."),
    "decide": ("decide", "Decide cut, resource blocks and power."),
    "run": ("run", "Train one scheme."),
    "resume": ("run", "Go on with a run that was stopped or killed."),
    "fleet": ("fleet", "Train with real clients, in processes on this machine."),
    "serve": ("serve", "Train with devices that join by one command."),
    "join": ("join", "Be a device: enrol once, then take part in every run."),
    "devices": ("devices", "Which devices there are; invite and revoke them."),
    "tune": ("tune", "Find the learning rate that suits each scheme best."),
    "sweep": ("sweep", "Compare schemes for every value of some fields."),
    "reproduce": ("reproduce", "Repeat the experiments of the paper."),
    "check": ("check", "Say what is intact in run folders."),
    "export": ("export", "Write runs as one table, Parquet or CSV."),
    "compare": ("compare", "Train all schemes in the same world and compare them."),
    "report": ("report", "Runs as one HTML page, figures and tables for a paper."),
    "watch": ("report", "Follow running experiments in the browser."),
}
"""The module of each command, and what `asfl --help` says of it. The module has a function of the command's name, or
an `app` with commands of its own."""


class _Commands(TyperGroup):
    """Imports a command when it is needed: none for `asfl --help`, and one for what a person does."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command:
        if cmd_name not in _COMMANDS:
            raise AsflError(f"unknown command {short(cmd_name)}: {nearest(cmd_name, _COMMANDS)}")
        module_name, summary = _COMMANDS[cmd_name]
        module = import_module(f"asfl.cli.{module_name}")
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        if hasattr(module, "app"):
            one.add_typer(module.app, name=cmd_name, help=summary)
            group = typer.main.get_group(one)
            return group.commands[cmd_name]
        one.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(one)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


app = typer.Typer(
    name="asfl",
    cls=_Commands,
    help="Adaptive split federated learning over wireless networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    """Run the command line; a mistake of the user, or a no of the machine, ends with one message and exit code 2."""
    write_what_terminals_have()
    try:
        app()
    except AsflError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print("error: out of memory", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a full disk, a folder that can't be written, a name that is too long
        where = f"{short(error.filename, 200)}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
