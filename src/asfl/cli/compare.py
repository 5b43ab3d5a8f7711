"""`asfl compare`: all schemes in the same world, side by side, then one table and pictures."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from asfl.cli.options import (
    AddressOption,
    DataDirOption,
    EngineOption,
    JsonOption,
    PresetArgument,
    SchemesOption,
    SeedsOption,
    SetOption,
    WorkersOption,
    console,
    print_json,
)
from asfl.cli.training import engine_named, print_failures, train_jobs
from asfl.compare import Comparison, plan_comparison, read_comparison
from asfl.config import load_config
from asfl.errors import AsflError
from asfl.files import write_whole
from asfl.report.training import write_figures
from asfl.schemes import SCHEMES, scheme_named
from asfl.summary import OURS, SMOOTHED_OVER, Saving, Summary, amount, number, percent, share
from asfl.words import in_words


def compare(
    preset: PresetArgument = "demo",
    schemes: SchemesOption = None,
    seeds: SeedsOption = 1,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs go. Default: runs/compare-PRESET.")
    ] = None,
    data_dir: DataDirOption = None,
    targets: Annotated[
        str | None, typer.Option(help="Accuracies to reach, such as 0.5,0.6. Default: chosen from the runs.")
    ] = None,
    workers: WorkersOption = None,
    engine: EngineOption = "processes",
    address: AddressOption = None,
    redraw: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Show an earlier comparison; train nothing.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train all schemes in the same world and compare accuracy, delay and energy. Called again, it goes on."""
    wanted = accuracies(targets)
    names = schemes.split(",") if schemes is not None else None
    for name in names or []:
        scheme_named(name)
    if redraw is not None:
        if overrides or out:
            raise AsflError("--from shows what is there; it goes with --schemes and --targets, not with --set or --out")
        there = read_comparison(redraw)
        shown = Comparison(there.folder, there.config, tuple(names or there.schemes), there.seeds)
        _show(shown, wanted, {}, as_json)
        return
    config = load_config(preset, overrides or []).config
    first = config.scenario.seed
    folder = out or Path(config.output.folder) / f"compare-{Path(preset).stem}"
    comparison = plan_comparison(config, names or list(SCHEMES), range(first, first + seeds), folder, data_dir)
    trainer = engine_named(engine, workers, address)
    jobs = comparison.jobs(data_dir)
    comparison.remember()
    failed = train_jobs(jobs, comparison.num_runs, trainer)
    _show(comparison, wanted, failed, as_json)
    if failed:
        raise typer.Exit(2)


def accuracies(text: str | None) -> list[float] | None:
    """The accuracies of `--targets`."""
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value <= 1 for value in values):
        raise AsflError(f"--targets {text}: give accuracies between 0 and 1, separated by commas, such as 0.5,0.6")
    return values


def _show(comparison: Comparison, targets: list[float] | None, failed: dict[str, str], as_json: bool) -> None:
    """Write summary, table and pictures; print tables and words, or JSON."""
    runs = comparison.finished_runs()
    if not runs:
        print_failures(failed)
        raise AsflError(f"{comparison.folder} has no finished run to show")
    summary = Summary.of(runs, targets)
    sentences = in_words(summary)
    data = {**summary.to_json(), "words": sentences, "failed": failed}
    write_whole(comparison.folder / "summary.json", json.dumps(data, indent=2, allow_nan=False).encode())
    write_whole(comparison.folder / "table.csv", summary.to_csv().encode())
    pictures = write_figures(summary, runs, comparison.folder)
    if as_json:
        print_json(data)
    else:
        _print_reached(summary)
        _print_rounds(summary)
        out = console()
        for sentence in sentences:
            out.print(sentence)
        print(f"numbers: {comparison.folder / 'summary.json'}, {comparison.folder / 'table.csv'}")
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
    table.add_column("scheme", no_wrap=True)
    return table


def _print_reached(summary: Summary) -> None:
    main, several = summary.main_target(), len(summary.seeds) > 1
    table = _table("what it reaches")
    table.add_column("accuracy\nend, best", justify="right")
    for target in summary.targets:
        table.add_column(f"delay, energy\nto {percent(target)}", justify="right")
    saves = main if OURS in summary.runs and len(summary.runs) > 1 else None
    if saves is not None:
        table.add_column(f"asfl saves\nto {percent(saves)}", justify="right")
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
        + ("± standard deviation over the seeds that got there" if several else "one seed")
        + ("; asfl saves: of the other's delay, of its energy\n" if saves is not None else "\n")
    )


def _reached(summary: Summary, scheme: str, target: float) -> str:
    delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
    if not delay.seeds:
        return "not reached"
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


_ROUNDS: dict[str, tuple[str, float]] = {
    "delay_s": ("delay\ns", 1),
    "energy_j": ("energy\nJ", 1),
    "packet_error_rate": ("errors\n%", 100),
    "updates_per_round": ("arrived", 1),
    "cut": ("cut", 1),
    "cut_moves": ("moves\n%", 100),
    "resplit_share": ("re-split\n%", 100),
    "discrepancy": ("dis-\ncrep.", 1),
    "delay_over": ("delay\nover %", 100),
    "energy_over": ("energy\nover %", 100),
}
"""Numbers of a run: header and scale."""


def _print_rounds(summary: Summary) -> None:
    table = _table("what the rounds look like")
    for header, _ in _ROUNDS.values():
        table.add_column(header, justify="right", no_wrap=True)
    for scheme in summary.runs:
        means = [scale * summary.over_seeds(scheme, key).mean for key, (_, scale) in _ROUNDS.items()]
        table.add_row(scheme, *("–" if math.isnan(mean) else number(mean) for mean in means))
    out = console()
    out.print(table)
    out.print(
        "means over rounds and seeds; errors: expected, of those who took part; moves: rounds with another cut than "
        "the one before; re-split: share of the delay; over: beyond the budget (energy: the worst client)\n"
    )
