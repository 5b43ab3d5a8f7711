"""`asfl reproduce`: the experiments of the paper, each by its name."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.compare import print_failures, train_runs
from asfl.cli.output import console, print_json
from asfl.config.errors import AsflError
from asfl.results.curves import Run
from asfl.results.reproduce.archive import Found, RunKey, joined, read_archive, runs_of, write_archive
from asfl.results.reproduce.recharge import recharge_all
from asfl.results.reproduce.recipes import RECIPES, Plan, Scale, on_traces, plan_recipe, recipe_named
from asfl.results.summary import with_note
from asfl.results.tables import Table
from asfl.runs.comparison import Comparison
from asfl.runs.files import writing
from asfl.runs.jobs import Engine, run_name
from asfl.runs.training import ThreadsARun, engine_named

ALL, TRACED = "all", "measured-channel"


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="Recipes; all: every one.", show_default=False)
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="digits in minutes; real CIFAR, narrow networks; or the paper's models.")
    ] = "demo",
    seeds: Annotated[
        int | None, typer.Option(min=1, max=options.MAX_SEEDS, help="How many seeds. Default: 1 for demo, else 3 or 5.")
    ] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A measured channel, for measured-channel; repeatable.")
    ] = None,
    tuned: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Instead of the preset it starts from, as in docs/results/tuned; repeatable."
        ),
    ] = None,
    overrides: options.Set = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep all runs shown in this .xz file, for --from, both charges with --recharge; what it has isn't "
            "trained again.",
        ),
    ] = None,
    drawn_from: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Draw from an archive; train nothing.")
    ] = None,
    recharge: Annotated[
        bool,
        typer.Option(
            "--recharge",
            help="With --from: charge all rounds anew, by today's rules and --set; beside it, as recorded.",
        ),
    ] = False,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    workers: options.Workers = None,
    engine: options.Engine = "processes",
    address: options.Address = None,
    as_json: options.Json = False,
) -> None:
    """Repeat experiments of the paper and say which of its claims hold. Called again, it goes on.

    --scale demo takes minutes, evidence hours; paper is meant for a GPU. asfl list recipes names the experiments.
    """
    if drawn_from is not None:
        more = ["recharge", "overrides", "trace", "workers", "archive"] if recharge else []
        options.refuse_all_but(["names", "drawn_from", "out", "as_json", *more], "--from draws what is in the archive")
        found = _in_archive(drawn_from, options.listed(names or []))
        if recharge:
            found = recharge_all(found, overrides or [], trace or [], workers)
            if archive is not None:
                write_archive(archive, found)
        _show_all(found, out or Path("runs/reproduced"), as_json)
        return
    if recharge:
        raise AsflError("--recharge doesn't count here: it is for --from")
    folder = out or Path("runs") / f"reproduce-{scale}"
    plans = [
        plan_recipe(
            on_traces(recipe, trace) if recipe.name == TRACED and trace else recipe,
            scale,
            folder,
            overrides=overrides or [],
            seeds=seeds,
            data_dir=data_dir,
            tuned=tuned or [],
        )
        for recipe in map(recipe_named, _chosen(options.listed(names or []), bool(trace)))
    ]
    trainer = engine_named(engine, workers, address)
    before = read_archive(archive) if archive is not None and archive.exists() else []
    kept = _still_valid(before, plans)
    with writing(folder):
        failed = _train(plans, kept, data_dir, trainer)
        found = [plan.found(kept) for plan in plans]
        _show_all(found, folder, as_json)
    if archive is not None:
        print(f"{write_archive(archive, joined(before, found))} runs: {archive}", file=sys.stderr)
    print_failures(failed)
    if failed:
        raise typer.Exit(2)


def _still_valid(before: Sequence[Found], plans: Sequence[Plan]) -> dict[RunKey, Run]:
    """The runs of an archive; an error if any of them would be trained otherwise."""
    kept = runs_of(before)
    for plan in plans:
        moved = plan.moved(before)
        outdated = (f"{run_name(key[1], key[2], key[0])} with {what}" for key, what in plan.outdated(kept).items())
        if difference := next(chain(moved, outdated), None):
            raise AsflError(f"the archive holds {difference}; give the settings it has, or another --archive")
    return kept


def _chosen(names: Sequence[str], with_traces: bool) -> list[str]:
    if not names:
        raise AsflError(f"name a recipe (asfl list recipes tells about them): {', '.join(RECIPES)}, or {ALL}")
    if list(names) != [ALL]:
        if ALL in names:
            raise AsflError(f"{ALL} is every recipe: name it alone")
        if with_traces and TRACED not in names:
            raise AsflError(f"--trace doesn't count here: it is for {TRACED}")
        return list(names)
    skipped = () if with_traces else (TRACED,)
    for name in skipped:
        print(f"left out: {name}, which needs --trace FILE", file=sys.stderr)
    return [name for name in RECIPES if name not in skipped]


def _train(
    plans: Sequence[Plan], kept: Collection[RunKey], data_dir: Path | None, trainer: tuple[Engine, ThreadsARun]
) -> dict[str, str]:
    """Train what all recipes need together, each run once, but for those that are kept in an archive."""
    worlds: dict[Path, Comparison] = {}
    for one in (point.comparison for plan in plans for point in plan.points):
        other = worlds.get(one.folder, one)
        schemes, seeds = (
            tuple(dict.fromkeys([*a, *b])) for a, b in ((other.schemes, one.schemes), (other.seeds, one.seeds))
        )
        worlds[one.folder] = replace(one, schemes=schemes, seeds=seeds)
    for plan in plans:
        plan.remember()
    left = [
        one.kept([(scheme, seed) for world, scheme, seed in kept if world == one.folder.name])
        for one in worlds.values()
    ]
    return train_runs(left, data_dir, *trainer)


def _in_archive(file: Path, names: Sequence[str]) -> list[Found]:
    """The recipes asked for; all, if none is named."""
    found = {one.recipe: one for one in read_archive(file)}
    chosen = list(found) if names in ([], [ALL]) else [recipe_named(name).name for name in names]
    for name in chosen:
        if name not in found:
            raise AsflError(f"{file} holds no runs of {name}; it has {', '.join(found) or 'none'}")
    return [found[name] for name in chosen]


def _show_all(every: Sequence[Found], folder: Path, as_json: bool) -> None:
    """Write page, claims and pictures of recipes; print their claims."""
    from asfl.results.reproduce.page import show_found

    shown = []
    for found in every:
        there = folder / found.recipe
        findings, pictures, data = show_found(found, there)
        shown.append(data)
        if as_json:
            continue
        title = f"{found.recipe} ({RECIPES[found.recipe].source})"
        columns = ("world", "claim", "here", "verdict")
        rows = [(one.preset, with_note(one.claim, one.label), one.here, one.in_words) for one in findings]
        if findings:
            console().print(Table(header=columns, rows=rows, title=title, words=4).terminal())
        print(f"{found.recipe}: {there / 'results.md'} and {len(pictures)} pictures beside it\n")
    if as_json:
        print_json(shown)
