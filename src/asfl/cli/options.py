"""Options that several commands share, and what is wrong with some of them together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import click
import typer
from click.core import ParameterSource

from asfl.config import Resolved, load_config
from asfl.config.errors import AsflError

STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""


def _picture(path: Path | None) -> Path | None:
    if path is not None:
        from asfl.results.charts.files import check_figure_path

        check_figure_path(path)
    return path


def _picture_or_trace(path: Path | None) -> Path | None:
    if path is not None:
        from asfl.results.charts.files import check_figure_path

        check_figure_path(path, trace=True)
    return path


def _fields(incomplete: str) -> list[str]:
    """For the shell: fields that begin with what was typed."""
    from asfl.config.show import field_names

    return [f"{name}=" for name in field_names() if name.startswith(incomplete)]


def _presets(incomplete: str) -> list[str]:
    from asfl.config import preset_names

    files = [str(file) for file in Path().glob(f"{incomplete}*.toml")] if "/" not in incomplete else []
    return [name for name in [*preset_names(), *files] if name.startswith(incomplete)]


def _scheme_names(incomplete: str) -> list[str]:
    from asfl.schemes import SCHEMES

    *before, last = incomplete.split(",")
    return [",".join([*before, name]) for name in SCHEMES if name.startswith(last)]


Preset = Annotated[
    str, typer.Argument(metavar="[PRESET|FILE]", help="A preset's name or a TOML file.", autocompletion=_presets)
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Override one field; may be repeated.", autocompletion=_fields),
]
Rounds = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Short for --set training.rounds=N.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="K", help="Short for --set scenario.seed=K.")]
Scheme = Annotated[str, typer.Option("--scheme", help="Which scheme to train.", autocompletion=_scheme_names)]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The folder for data sets. Default: ASFL_DATA_DIR, else ./data."),
]
Schemes = Annotated[
    list[str] | None,
    typer.Option(
        "--schemes",
        metavar="NAME,…",
        help="Schemes, separated by commas or repeated. Default: all.",
        autocompletion=_scheme_names,
    ),
]
MAX_SEEDS = 10_000
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=MAX_SEEDS, help="How many seeds, from the preset's on.")]
Targets = Annotated[
    list[str] | None,
    typer.Option("--targets", metavar="SHARE,…", help="Accuracies to reach: 0.5,0.6. Default: chosen from the runs."),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, max=1000, help="Runs side by side. Default: as many as there are cores."),
]
Engine = Annotated[
    Literal["processes", "ray"],
    typer.Option("--engine", help="Processes of this machine, or a Ray cluster (extra asfl[ray])."),
]
ClientEngine = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="Where clients are: in this process, or each an actor on a Ray cluster (asfl[ray])."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Of a running Ray cluster. Default: the one on this machine (ray start --head).",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where it goes. Default: a folder below runs, by its name.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw a picture into this .png, .svg or .pdf file.", callback=_picture),
]

PlotOrTrace = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Draw a picture into this .png, .svg or .pdf file, or write timelines into this .json file, "
        "which Perfetto and chrome://tracing open.",
        callback=_picture_or_trace,
    ),
]


def with_shorthands(
    overrides: Sequence[str] | None, *, rounds: int | None = None, seed: int | None = None
) -> list[str]:
    """What `--set`, `--rounds` and `--seed` say together."""
    short = {"training.rounds": rounds, "scenario.seed": seed}
    return [*(overrides or []), *(f"{field}={value}" for field, value in short.items() if value is not None)]


def configuration(
    preset: str | Path, overrides: Sequence[str] | None, *, rounds: int | None = None, seed: int | None = None
) -> Resolved:
    """What a person asked for, with the names of schemes checked too."""
    resolved = load_config(preset, with_shorthands(overrides, rounds=rounds, seed=seed))
    if resolved.config.schemes:  # few configurations need the schemes, which are slow to import
        from asfl.schemes import check_scheme_settings

        check_scheme_settings(resolved.config)
    return resolved


def run_folder(out: Path | None, preset: str, scheme: str, seed: int) -> Path:
    return out or Path("runs") / f"{Path(preset).stem}-{scheme}-seed{seed}"


def refuse_all_but(allowed: Sequence[str], because: str) -> None:
    """Refuse whatever was given and can't count; `allowed` names the parameters that do, `because` says why."""
    context = click.get_current_context(silent=True)
    if context is None:  # called from Python, where nothing is given by accident
        return
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in allowed and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = parameter.opts[0] if isinstance(parameter, click.Option) else f"'{context.params[name]}'"
            raise AsflError(f"{shown} doesn't count here: {because}")


def listed(texts: Sequence[str]) -> list[str]:
    """What an option names, each once, whether it was repeated or given commas."""
    return list(dict.fromkeys(part.strip() for text in texts for part in text.split(",")))


def schemes_named(texts: Sequence[str] | None) -> list[str]:
    """The schemes of `--schemes`; without it, all but variants."""
    from asfl.schemes import scheme_named, split_names, usual_schemes

    return usual_schemes() if texts is None else [scheme_named(name).name for name in split_names(texts)]


def accuracies(texts: Sequence[str] | None) -> list[float] | None:
    """The accuracies of `--targets`."""
    if texts is None:
        return None
    try:
        values = [float(part) for part in listed(texts)]
    except ValueError:
        values = []
    if not values or not all(0 < value <= 1 for value in values):
        raise AsflError(
            f"--targets {','.join(texts)}: give accuracies between 0 and 1, separated by commas, such as 0.5,0.6"
        )
    return values
