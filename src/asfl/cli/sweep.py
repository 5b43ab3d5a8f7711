"""`asfl sweep`: any fields × schemes × seeds."""

import csv
import io
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from asfl.cli.options import (
    AddressOption,
    DataDirOption,
    EngineOption,
    PresetArgument,
    SchemesOption,
    SeedsOption,
    SetOption,
    WorkersOption,
    console,
)
from asfl.cli.training import engine_named, print_failures, train_jobs
from asfl.errors import AsflError
from asfl.files import write_whole
from asfl.report.figure import save_figure
from asfl.schemes import SCHEMES, scheme_named
from asfl.summary import Summary, amount, choose_targets, percent
from asfl.sweep import Axis, Sweep, plan_sweep


def sweep(
    preset: PresetArgument = "demo",
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="A.B=V1,V2,…", help="A field and its values; repeated, all combinations."),
    ] = None,
    schemes: SchemesOption = None,
    seeds: SeedsOption = 1,
    overrides: SetOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the runs go.")] = Path("runs/sweep"),
    data_dir: DataDirOption = None,
    workers: WorkersOption = None,
    engine: EngineOption = "processes",
    address: AddressOption = None,
) -> None:
    """Compare schemes for every value of some fields. Called again, it does what is left."""
    names = schemes.split(",") if schemes is not None else list(SCHEMES)
    for name in names:
        scheme_named(name)
    axes = [Axis.parse(text) for text in over or []]
    planned = plan_sweep(preset, overrides or [], axes, names, seeds, out, data_dir)
    trainer = engine_named(engine, workers, address)
    jobs = planned.jobs(data_dir)
    planned.remember()
    failed = train_jobs(jobs, planned.num_runs, trainer)
    _show(planned)
    print_failures(failed)
    if failed:
        raise typer.Exit(2)


def _show(planned: Sweep) -> None:
    """One row per point and scheme, as a table and as `sweep.csv`; a picture if one field is swept."""
    runs = {point: point.comparison.finished_runs() for point in planned.points}
    every = [run for of_point in runs.values() for run in of_point]
    if not every:
        raise AsflError(f"{planned.folder} has no finished run to show")
    target = choose_targets(every)[:1]
    table = Table(header_style="bold")
    header = [*(axis.field for axis in planned.axes), "scheme", "accuracy %"]
    header += [text for value in target for text in (f"s to {percent(value)}", f"J to {percent(value)}")]
    for column in (*header, "delay / round s", "energy / round J", "errors %", "discrepancy"):
        table.add_column(column, justify="left" if column == "scheme" else "right")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(axis.field for axis in planned.axes), "scheme", "quantity", "mean", "sd", "seeds"])
    summaries = {point: Summary.of(of_point, target) for point, of_point in runs.items()}
    for point, summary in summaries.items():
        values = [value for _, value in point.settings]
        for scheme in summary.runs:
            shown = {"accuracy": (summary.over_seeds(scheme, "final_accuracy"), 100)}
            for value in target:
                shown[f"delay_s to {value:g}"] = summary.to_reach(scheme, value, "delay_s"), 1
                shown[f"energy_j to {value:g}"] = summary.to_reach(scheme, value, "energy_j"), 1
            for key, scale in (("delay_s", 1), ("energy_j", 1), ("packet_error_rate", 100), ("discrepancy", 1)):
                shown[key] = summary.over_seeds(scheme, key), scale
            table.add_row(*values, scheme, *(amount(stat, scale) for stat, scale in shown.values()))
            for quantity, (stat, _) in shown.items():
                numbers = ("" if math.isnan(number) else number for number in (stat.mean, stat.sd))
                writer.writerow([*values, scheme, quantity, *numbers, stat.seeds])
    console().print(table)
    write_whole(planned.folder / "sweep.csv", text.getvalue().encode())
    print(f"numbers: {planned.folder / 'sweep.csv'}")
    if len(planned.axes) == 1 and len(planned.points) > 1:
        from asfl.report.sweep import accuracy_panel, draw_sweep, way_panels

        picture = planned.folder / "sweep.png"
        labels = [point.settings[0][1] for point in summaries]
        compared = list(summaries.values())
        panels = way_panels(compared, target[0]) if target else [accuracy_panel(compared)]
        save_figure(draw_sweep(planned.axes[0].field, labels, panels), picture)
        print(f"picture: {picture}")
