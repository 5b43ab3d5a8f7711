"""`asfl sweep`: any fields × schemes × seeds."""

import csv
import io
import math
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import console
from asfl.cli.progress import print_failures, train_runs
from asfl.config.errors import AsflError
from asfl.config.units import percent
from asfl.results.charts.comparison import sweep_chart
from asfl.results.charts.files import save_figure
from asfl.results.curves import finished_runs
from asfl.results.summary import Statistic, Summary, choose_targets, said_once, trained_and_charged
from asfl.results.tables import QUANTITIES, Table, amount
from asfl.runs.comparison import Axis, Sweep, plan_sweep
from asfl.runs.files import cell, write_whole, writing
from asfl.runs.training import engine_named


def sweep(
    preset: options.Preset = "demo",
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="A.B=V1,V2,…", help="A field and its values; repeated, all combinations."),
    ] = None,
    schemes: options.Schemes = None,
    seeds: options.Seeds = 1,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    overrides: options.Set = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the runs go. Default: runs/sweep.")] = None,
    data_dir: options.DataDir = None,
    workers: options.Workers = None,
    engine: options.Engine = "processes",
    address: options.Address = None,
) -> None:
    """Compare schemes for every value of some fields. Called again, it does what is left.

    To tune learning rates on training images: --over training.learning_rate=1e-3,3e-3 --set data.validation=0.2
    --seed 1001.
    """
    axes = [Axis.parse(text) for text in over or []]
    trainer = engine_named(engine, workers, address)
    for text in overrides or []:
        if text.partition("=")[0].strip() in (axis.field for axis in axes):
            raise AsflError(f"--set {text} doesn't count here: --over gives that field its values")
    wished = options.with_shorthands(overrides, rounds=rounds, seed=seed)
    names = options.schemes_named(schemes)
    planned = plan_sweep(preset, wished, axes, names, seeds, out or Path("runs/sweep"), data_dir)
    with writing(planned.folder):
        planned.remember()
        failed = train_runs(planned.comparisons, data_dir, *trainer)
        _show(planned)
    print_failures(failed)
    if failed:
        raise typer.Exit(2)


def _show(planned: Sweep) -> None:
    """One row per point and scheme, as a table and as `sweep.csv`; a picture if one field is swept."""
    runs = [finished_runs(point.comparison) for point in planned.points]
    every = [run for of_point in runs for run in of_point]
    if not every:
        raise AsflError(f"{planned.folder} has no finished run to show")
    target = choose_targets(every)[:1]
    model = said_once(trained_and_charged(run.config) for run in every)
    header = [*(axis.field for axis in planned.axes), "scheme", "accuracy %"]
    header += [text for value in target for text in (f"s to {percent(value)}", f"J to {percent(value)}")]
    of_rounds = [
        QUANTITIES[key]
        for key in ("delay_s", "median_delay_s", "energy_j", "median_energy_j", "packet_error_rate", "discrepancy")
    ]
    header += [one.heading for one in of_rounds]
    rows: list[list[str]] = []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    statistics = [field.name for field in fields(Statistic)]
    writer.writerow([*(axis.field for axis in planned.axes), "scheme", "quantity", *statistics])
    summaries = [Summary.of(of_point, target) for of_point in runs]
    for point, summary in zip(planned.points, summaries, strict=True):
        values = [value for _, value in point.settings]
        for scheme in summary.runs:
            shown = {"accuracy": (summary.over_seeds(scheme, "final_accuracy"), 100.0)}
            for value in target:
                shown[f"delay_s to {value:g}"] = summary.to_reach(scheme, value, "delay_s"), 1
                shown[f"energy_j to {value:g}"] = summary.to_reach(scheme, value, "energy_j"), 1
            shown |= {one.name: (summary.over_seeds(scheme, one.name), one.scale) for one in of_rounds}
            rows.append([*values, scheme, *(amount(stat, scale) for stat, scale in shown.values())])
            for quantity, (stat, _) in shown.items():
                numbers = ("" if math.isnan(value) else value for value in astuple(stat))
                writer.writerow([*map(cell, [*values, scheme, quantity]), *numbers])
    console().print(Table(header=header, rows=rows, title=model, words=len(planned.axes) + 1).terminal())
    write_whole(planned.folder / "sweep.csv", text.getvalue())
    print(f"numbers: {planned.folder / 'sweep.csv'}")
    if len(planned.axes) == 1 and len(planned.points) > 1:
        picture = planned.folder / "sweep.png"
        labels = [point.settings[0][1] for point in planned.points]
        chart = sweep_chart(planned.axes[0].field, labels, summaries, ["final_accuracy"], *target)
        save_figure(replace(chart, subtitle=model), picture)
        print(f"picture: {picture}")
