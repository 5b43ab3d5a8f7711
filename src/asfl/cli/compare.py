"""`asfl compare`: all schemes in the same world; `asfl sweep`: any fields × schemes × seeds."""

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Annotated

import typer

from asfl.api.run import train_shown
from asfl.cli import options
from asfl.cli.output import console, json_text, print_json
from asfl.config.errors import AsflError
from asfl.config.show import own_settings
from asfl.config.units import percent
from asfl.results.charts.files import save_figure
from asfl.results.charts.runs import sweep_chart, write_figures
from asfl.results.curves import finished_runs
from asfl.results.summary import Statistic, Summary, choose_targets, said_once, trained_and_charged
from asfl.results.tables import QUANTITIES, Table, amount, in_words, tables_of
from asfl.runs.comparison import Axis, Comparison, Sweep, plan_comparison, plan_sweep
from asfl.runs.files import cell, write_whole, writing
from asfl.runs.jobs import Engine
from asfl.runs.training import ThreadsARun, engine_named


def compare(
    preset: options.Preset = "demo",
    schemes: options.Schemes = None,
    seeds: options.Seeds = 1,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    overrides: options.Set = None,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    targets: options.Targets = None,
    workers: options.Workers = None,
    engine: options.Engine = "processes",
    address: options.Address = None,
    as_json: options.Json = False,
) -> None:
    """Train all schemes in the same world and compare accuracy, delay and energy. Called again, it goes on."""
    wanted, names = options.accuracies(targets), options.schemes_named(schemes)
    config = options.configuration(preset, overrides, rounds=rounds, seed=seed).config
    first = config.scenario.seed
    folder = out or Path("runs") / f"compare-{Path(preset).stem}"
    every = range(first, first + seeds)
    comparison = plan_comparison(config, names, every, folder, data_dir)
    trainer = engine_named(engine, workers, address)
    with writing(folder):
        failed = train_runs([comparison], data_dir, *trainer)
        _show(comparison, wanted, failed, as_json)
    if failed:
        raise typer.Exit(2)


def _show(comparison: Comparison, targets: list[float] | None, failed: dict[str, str], as_json: bool) -> None:
    """Write summary, table and pictures; print tables and words, or JSON."""
    runs, folder = finished_runs(comparison), comparison.folder
    if not runs:
        print_failures(failed)
        raise AsflError(f"{folder} has no finished run to show")
    summary = Summary.of(runs, targets)
    sentences = in_words(summary)
    data = {**summary.to_json(), "words": sentences, "failed": failed}
    write_whole(folder / "summary.json", json_text(data))
    pictures = write_figures(summary, runs, folder)
    if as_json:
        print_json(data)
    else:
        out = console()
        for table in tables_of(summary):
            out.print(table.terminal())
            print()
        if own := own_settings(comparison.config):
            out.print(f"Trained with settings of their own: {own}.")
        for sentence in sentences:
            out.print(sentence)
        print(f"numbers: {folder / 'summary.json'}")
        for picture in pictures:
            print(f"picture: {picture}")
    print_failures(failed)


# ---------------------------------------------------------------------- any fields
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
    out: options.Out = None,
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
        _show_sweep(planned)
    print_failures(failed)
    if failed:
        raise typer.Exit(2)


def _show_sweep(planned: Sweep) -> None:
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


# ---------------------------------------------------------------------- many runs
def train_runs(
    comparisons: Sequence[Comparison],
    data_dir: Path | None,
    engine: Engine,
    threads_a_run: ThreadsARun = lambda runs: 1,
) -> dict[str, str]:
    """Train what is left of comparisons; why runs failed, by name. Ctrl-C ends the command when all runs are saved.

    The caller holds the lock of the folder they are in.
    """
    failed, stopped = train_shown(comparisons, data_dir, engine, threads_a_run)
    if stopped:
        print_failures(failed)
        every = sum(one.num_runs for one in comparisons)
        print(f"stopped with {stopped} of {every} runs unfinished; the same command goes on where it stopped")
        raise typer.Exit(options.STOPPED)
    return failed


def print_failures(failed: Mapping[str, str]) -> None:
    for name, reason in failed.items():
        print(f"error: {name} failed: {reason}", file=sys.stderr)
