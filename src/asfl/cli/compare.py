"""`asfl compare`: all schemes in the same world, side by side, then tables and pictures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import console, json_text, print_json
from asfl.cli.progress import print_failures, train_runs
from asfl.config.errors import AsflError
from asfl.config.show import own_settings
from asfl.config.units import number, percent
from asfl.results.charts.comparison import along_front, front_of, fronts, places_at, write_figures
from asfl.results.charts.files import save_figure
from asfl.results.curves import finished_runs
from asfl.results.summary import Outcome, Summary
from asfl.results.tables import Table, amount, tables_of
from asfl.results.words import in_words
from asfl.runs.comparison import PRICES, Comparison, plan_comparison, plan_front, read_comparison
from asfl.runs.files import write_whole, writing
from asfl.runs.training import engine_named


def compare(
    preset: options.Preset = "demo",
    schemes: options.Schemes = None,
    seeds: options.Seeds = 1,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    overrides: options.Set = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs go. Default: runs/compare-PRESET.")
    ] = None,
    data_dir: options.DataDir = None,
    targets: options.Targets = None,
    workers: options.Workers = None,
    engine: options.Engine = "processes",
    address: options.Address = None,
    front: Annotated[
        bool,
        typer.Option("--front", help=f"Also schemes that price energy, at {', '.join(PRICES)}: delay against energy."),
    ] = False,
    redraw: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Show an earlier comparison; train nothing.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Train all schemes in the same world and compare accuracy, delay and energy. Called again, it goes on."""
    wanted, names = options.accuracies(targets), options.schemes_named(schemes)
    if redraw is not None:
        options.refuse_all_but(
            ["redraw", "schemes", "targets", "as_json"],
            "--from shows what is there, and goes with --schemes, --targets and --json",
        )
        there = read_comparison(redraw)
        some = replace(there, schemes=tuple(names)) if schemes else there
        _show(some, wanted, {}, as_json, write=some.schemes == there.schemes)
        return
    config = options.configuration(preset, options.with_shorthands(overrides, rounds=rounds, seed=seed)).config
    first = config.scenario.seed
    folder = out or Path("runs") / f"compare-{Path(preset).stem}"
    every = range(first, first + seeds)
    comparison = plan_comparison(config, names, every, folder, data_dir)
    others = plan_front(comparison, data_dir) if front else []
    trainer = engine_named(engine, workers, address)
    with writing(folder):
        failed = train_runs([comparison, *others], data_dir, *trainer)
        _show(comparison, wanted, failed, as_json)
    if failed:
        raise typer.Exit(2)


def _show(
    comparison: Comparison, targets: list[float] | None, failed: dict[str, str], as_json: bool, *, write: bool = True
) -> None:
    """Write summary, table and pictures; print tables and words, or JSON."""
    runs, folder = finished_runs(comparison), comparison.folder
    if not runs:
        print_failures(failed)
        raise AsflError(f"{folder} has no finished run to show")
    summary = Summary.of(runs, targets)
    outcomes = along_front(comparison, summary, runs)
    sentences = in_words(summary)
    data = {**summary.to_json(), "words": sentences, "failed": failed}
    pictures: list[Path] = []
    if write:
        write_whole(folder / "summary.json", json_text(data))
        write_whole(folder / "table.csv", summary.to_csv())
        pictures = write_figures(summary, runs, folder)
        for name, chart in fronts(outcomes) if len(outcomes) > 1 else ():
            pictures.append(folder / f"{name}.png")
            save_figure(replace(chart, subtitle=summary.model), pictures[-1])
    if as_json:
        print_json(data)
    else:
        out = console()
        for table in [*tables_of(summary), *_front_table(outcomes, comparison.config.decision.energy_price)]:
            out.print(table.terminal())
            print()
        if own := own_settings(comparison.config):
            out.print(f"Trained with settings of their own: {own}.")
        for sentence in sentences:
            out.print(sentence)
        if write:
            print(f"numbers: {folder / 'summary.json'}, {folder / 'table.csv'}")
        for picture in pictures:
            print(f"picture: {picture}")
        missing = comparison.num_runs - len(runs) - len(failed)
        if missing:
            print(f"not shown: {missing} runs that aren't finished")
    print_failures(failed)


def _front_table(outcomes: Sequence[Outcome], usual_price: float) -> list[Table]:
    """Delay and energy to the main target, the fastest first; nothing if no energy had another price."""
    target = outcomes[0].summary.main_target()
    if len(outcomes) == 1 or target is None:
        return []
    places = places_at(outcomes, target)
    best, priced = front_of(places), {place.scheme for place in places if place.setting}
    rows = []
    for place in sorted(places, key=lambda one: one.delay_s.median):
        price = place.setting.rpartition(" ")[2] or (number(usual_price) if place.scheme in priced else "")
        rows.append([place.scheme, price, amount(place.delay_s), amount(place.energy_j), "yes" * (place in best)])
    header = ["scheme", "energy price", "delay, s", "energy, J", "unbeaten in both"]
    return [Table(key="front", title=f"What {percent(target)} accuracy takes", header=header, rows=rows)]
