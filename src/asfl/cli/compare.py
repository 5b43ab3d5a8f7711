"""`asfl compare`: all schemes in the same world, side by side, then one table and pictures."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from asfl.cli import options
from asfl.cli.output import console, json_text, print_json
from asfl.cli.training import print_failures, train_runs
from asfl.config.errors import AsflError
from asfl.config.show import own_settings
from asfl.config.units import number, percent
from asfl.results.charts.comparison import along_front, front_of, fronts, places_at, write_figures
from asfl.results.charts.files import save_figure
from asfl.results.curves import SMOOTHED_OVER, finished_runs
from asfl.results.quantities import ABOUT_COSTS, ABOUT_ROUNDS, COSTS, OF_ROUNDS, Quantity, amount, share
from asfl.results.summary import Outcome, Saving, Summary, with_note
from asfl.results.words import in_words
from asfl.runs.comparison import PRICES, Comparison, plan_comparison, plan_front, read_comparison
from asfl.runs.files import write_whole, writing
from asfl.runs.training import engine_named
from asfl.schemes import OURS


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
    changed_data: options.ChangedData = False,
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
    folder = out or Path(config.output.folder) / f"compare-{Path(preset).stem}"
    every = range(first, first + seeds)
    comparison = plan_comparison(config, names, every, folder, data_dir, changed_data=changed_data)
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
        _print_reached(summary)
        _print_front(outcomes, comparison.config.decision.energy_price)
        _print_rounds(summary, "what a round takes", COSTS, ABOUT_COSTS)
        _print_rounds(summary, "what the rounds look like", OF_ROUNDS, ABOUT_ROUNDS)
        out = console()
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


def _table(title: str) -> Table:
    """Narrow enough for a terminal of 80 columns."""
    table = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    table.add_column("scheme", overflow="fold")
    return table


def _print_reached(summary: Summary) -> None:
    main, several = summary.main_target(), len(summary.seeds) > 1
    table = _table(with_note("what it reaches", summary.model))
    table.add_column("accuracy\nend, best", justify="right", overflow="fold")
    for target in summary.targets:
        table.add_column(f"delay, energy\nto {percent(target)}", justify="right", overflow="fold")
    saves = main if OURS in summary.runs and len(summary.ranked) > 1 else None
    if saves is not None:
        table.add_column(f"asfl saves\nto {percent(saves)}", justify="right", overflow="fold")
    for name in summary.runs:
        final, best = (summary.over_seeds(name, key) for key in ("final_accuracy", "best_accuracy"))
        row = [
            f"{share(final, sign=' %')}\n{share(best, sign=' %')}",
            *(_reached(summary, name, target) for target in summary.targets),
        ]
        table.add_row(name, *row, *([] if saves is None else [_saved(summary.saving(name, saves))]))
    out = console()
    out.print(table)
    out.print(
        "accuracy: of the average model, at the last evaluation and the best one; delay and energy: until the mean of "
        f"{SMOOTHED_OVER} evaluations is at the target; "
        + ("median and 95 % bootstrap interval over the seeds that got there" if several else "one seed")
        + ("; asfl saves: of the other's delay, of its energy\n" if saves is not None else "\n")
    )


def _print_front(outcomes: Sequence[Outcome], usual_price: float) -> None:
    """Delay and energy to the main target, the fastest first; nothing if no energy had another price."""
    target = outcomes[0].summary.main_target()
    if len(outcomes) == 1 or target is None:
        return
    places = places_at(outcomes, target)
    best, priced = front_of(places), {place.scheme for place in places if place.setting}
    table = _table(f"what {percent(target)} accuracy takes")
    for column in ("energy price", "delay\ns", "energy\nJ", "unbeaten\nin both"):
        table.add_column(column, justify="right", overflow="fold")
    for place in sorted(places, key=lambda one: one.delay_s.median):
        price = place.setting.rpartition(" ")[2] or (number(usual_price) if place.scheme in priced else "")
        table.add_row(place.scheme, price, amount(place.delay_s), amount(place.energy_j), "yes" * (place in best))
    console().print(table)
    print()


def _reached(summary: Summary, scheme: str, target: float) -> str:
    delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
    if not delay.seeds:
        return "not reached" if scheme in summary.ranked else "–"
    runs = len(summary.runs[scheme])
    partly = f"\n{delay.seeds} of {runs} seeds" if delay.seeds < runs else ""
    return f"{amount(delay)} s\n{amount(energy)} J{partly}"


def _saved(saving: Saving | None) -> str:
    if saving is None:
        return ""
    if saving.delay.seeds:
        return f"{share(saving.delay, 0, ' %')}\n{share(saving.energy, 0, ' %')}"
    only = [word for word, count in (("only asfl", saving.only_ours), ("only it", saving.only_theirs)) if count]
    return "\n".join(only) or "neither"


def _print_rounds(summary: Summary, title: str, columns: Sequence[Quantity], about: str) -> None:
    table = _table(with_note(title, summary.model))
    for one in columns:
        table.add_column(f"{one.title}\n{one.unit}".strip(), justify="right", overflow="fold")
    for scheme in summary.runs:
        means = [one.scale * summary.over_seeds(scheme, one.name).mean for one in columns]
        table.add_row(scheme, *("–" if math.isnan(mean) else number(mean) for mean in means))
    out = console()
    out.print(table)
    out.print(f"means over rounds and seeds; {about}\n")
