"""The command line. Each command reads its input, calls one library function and shows the result."""

import signal
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, get_type_hints

import typer
import typer.core
from click import Argument, ClickException, Command, Context, HelpFormatter
from typer.core import TyperGroup

from asfl._version import __version__
from asfl.config.errors import AsflError, nearest, short
from asfl.config.files import is_out_of_memory
from asfl.config.names import in_words_of_plugin, load_plugin

typer.core.HAS_RICH = False  # or typer < 0.21 puts backslashes before the brackets of its help

_COMMANDS = {
    "list": ("listing", "Name schemes, presets, models, channels, data sets or recipes."),
    "explain": ("explain", "Explain a field; print a preset's configuration; show a model's layers."),
    "new": ("listing", "Write a scheme, channel, model or data set of your own to start from."),
    "doctor": ("check", "Show what this machine has, and what is missing for what."),
    "data": ("data", "Get data sets and traces; show how samples are spread over the clients."),
    "scenario": ("scenario", "Show where clients are, and what each cut would cost."),
    "decide": ("decide", "Decide cut, resource blocks and power; cost of a decision."),
    "advise": ("advise", "Which scheme suits a world, and what total budgets can buy."),
    "run": ("run", "Train one scheme."),
    "resume": ("run", "Continue a run that was stopped or killed, or make it longer."),
    "compare": ("compare", "Train all schemes in the same world and compare them."),
    "sweep": ("compare", "Compare schemes for every value of some fields; tune learning rates."),
    "report": ("report", "Runs as one HTML page, figures and tables; also while they run."),
    "export": ("report", "Write runs as one table, Parquet or CSV."),
    "check": ("check", "Verify run folders and configurations."),
    "reproduce": ("reproduce", "Repeat the experiments of the paper."),
    "fleet": ("serve", "Train with real clients, in processes on this machine."),
    "serve": ("serve", "Train with devices that join by one command."),
    "join": ("join", "Run this machine as a device."),
    "devices": ("serve", "List devices; invite and revoke them."),
}
"""The module of each command, and what `asfl --help` says of it. The module has a function of the command's name, or an
app with commands of its own."""

_TRAINING = {"run", "resume", "compare", "sweep", "reproduce", "fleet"}


class _Commands(TyperGroup):
    """Imports a command when it is needed: none for `asfl --help`, and one for what a person does."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command:
        if cmd_name not in _COMMANDS:
            raise AsflError(f"unknown command {short(cmd_name)}: {nearest(cmd_name, _COMMANDS)}")
        module_name, summary = _COMMANDS[cmd_name]
        module = import_module(f"asfl.cli.{module_name}")
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # until here it ended the process (asfl.__main__)
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        named = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        if isinstance(named, typer.Typer):
            one.add_typer(named, name=cmd_name, help=summary)
            group = typer.main.get_group(one).commands[cmd_name]
            assert isinstance(group, TyperGroup)
            group.suggest_commands = False  # click suggests them, too
            for command in group.commands.values():
                _say_what_arguments_are(command)
            return group
        one.command(cmd_name)(named)
        return _say_what_arguments_are(typer.main.get_command(one))

    def invoke(self, ctx: Context) -> Any:
        """A mistake of the user, or a no of the machine, ends with one message and exit code 2."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (ClickException, typer.Exit, typer.Abort):
            raise
        except AsflError as error:
            words: str | None = str(error)
        except KeyboardInterrupt:
            trains = not _TRAINING.isdisjoint(sys.argv[1:])
            how = " at once: finished rounds are kept, and the same command goes on after the last checkpoint"
            print(f"stopped{how if trains else ''}", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError as error:
            print(flush=True)  # raises it again if the reader has seen enough, as `head` has; click ends quietly then
            words = error.strerror
        except OSError as error:  # a full disk, a folder that can't be written, a name that is too long
            where = f"{short(error.filename, 200)}: " if error.filename else ""
            words = f"{where}{error.strerror or error}"
        except BaseException as error:
            words = "out of memory" if is_out_of_memory(error) else in_words_of_plugin(error)
            if words is None:
                raise
        print(f"error: {words}", file=sys.stderr)
        raise typer.Exit(2)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


def _say_what_arguments_are(command: Command) -> Command:
    """click 8.5 has a help of its own for arguments, and overwrites what typer < 0.21 wrote there."""
    command.format_arguments = lambda ctx, formatter: None  # type: ignore[method-assign]  # typer names them already
    hints = get_type_hints(getattr(command.callback, "__wrapped__", command.callback), include_extras=True)
    for parameter in command.params:
        if isinstance(parameter, Argument) and parameter.name in hints:
            parameter.help = parameter.help or hints[parameter.name].__metadata__[0].help
    return command


app = typer.Typer(
    name="asfl",
    cls=_Commands,
    help="Adaptive split federated learning over wireless networks.",
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    """Run the command line. A terminal without a letter of ours gets a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()
