"""`asfl tune`: the learning rate that suits each scheme best, found on seeds of its own."""

from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import console, table
from asfl.cli.training import engine_named, print_failures, train_runs
from asfl.config.errors import AsflError
from asfl.config.fields import MAX_COUNT
from asfl.config.units import number, percent
from asfl.results.quantities import share
from asfl.results.tune import FIRST_SEED, TUNED_FILE, Tuning, plan_tuning
from asfl.runs.files import write_whole, writing
from asfl.runs.records import DIVERGED


def tune(
    preset: options.Preset = "demo",
    schemes: options.Schemes = None,
    learning_rates: Annotated[
        list[str] | None,
        typer.Option(metavar="RATE,…", help="Which to try. Default: the configuration's, and 0.3 and 3 times that."),
    ] = None,
    local_steps: Annotated[
        list[str] | None, typer.Option(metavar="COUNT,…", help="Which to try. Default: the configuration's only.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=options.MAX_SEEDS, help=f"How many seeds, from {FIRST_SEED} on.")
    ] = 2,
    rounds: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Default: the configuration's.")] = None,
    overrides: options.Set = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where runs and choice go. Default: runs/tune-PRESET.")
    ] = None,
    data_dir: options.DataDir = None,
    workers: options.Workers = None,
    engine: options.Engine = "processes",
    address: options.Address = None,
) -> None:
    """Try learning rates for each scheme and write the best ones down. Called again, it does what is left."""
    rates, steps = _numbers("--learning-rates", learning_rates), _numbers("--local-steps", local_steps)
    if any(step != int(step) for step in steps):
        raise AsflError(f"--local-steps {','.join(local_steps or [])}: give whole numbers, such as 1,5")
    planned = plan_tuning(
        preset,
        overrides or [],
        options.schemes_named(schemes),
        rates,
        [int(step) for step in steps],
        seeds,
        rounds,
        out or Path("runs") / f"tune-{Path(preset).stem}",
        data_dir,
    )
    trainer = engine_named(engine, workers, address)
    with writing(planned.folder):
        planned.remember()
        failed = train_runs(planned.comparisons, data_dir, *trainer)
        complete = _show(planned, seeds)
    print_failures(failed)
    if not complete or any(DIVERGED not in reason for reason in failed.values()):
        raise typer.Exit(2)


def _show(planned: Tuning, seeds: int) -> bool:
    """Print what was measured and write the choice; whether there is one for every scheme."""
    rows = [
        (one.scheme, number(setting[0]), str(setting[1]), share(stat), ", ".join(one.remarks(setting)))
        for one in planned.measured()
        for setting, stat in sorted(one.tried.items())
    ]
    columns = ("scheme", "learning rate", "local steps", "accuracy %", "")
    console().print(table(columns, rows, left=("scheme", "")))
    last = FIRST_SEED + seeds - 1
    print(
        "accuracy: of the average model after the last round "
        + f"on {percent(planned.validation)} of the training images, held out; "
        + (f"median [interval] of the seeds {FIRST_SEED} to {last}" if seeds > 1 else f"of the seed {FIRST_SEED}")
        + "; –: not finished"
    )
    without = [one.scheme for one in planned.measured() if one.best is None]
    if len(without) < len(planned.sweeps):
        file = planned.folder / TUNED_FILE
        write_whole(file, planned.choice())
        print(f"choice: {file}; use it: asfl compare {file}")
    for scheme in without:
        print(f"no choice for {scheme}: no setting is finished")
    return not without


def _numbers(option: str, texts: list[str] | None) -> list[float]:
    try:
        values = [float(part) for part in options.listed(texts or [])]
    except ValueError:
        values = [0.0]
    if not all(0 < value < float("inf") for value in values):
        raise AsflError(f"{option} {','.join(texts or [])}: give numbers above 0, separated by commas")
    return list(dict.fromkeys(values))
