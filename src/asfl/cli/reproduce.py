"""`asfl reproduce`: the experiments of the paper, each by its name."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich import box
from rich.table import Table

from asfl.cli.options import (
    AddressOption,
    DataDirOption,
    EngineOption,
    JsonOption,
    SetOption,
    WorkersOption,
    console,
    print_json,
)
from asfl.cli.training import engine_named, print_failures, train_jobs
from asfl.engines import Engine
from asfl.errors import AsflError
from asfl.files import write_whole
from asfl.report.figure import save_figure
from asfl.reproduce import RECIPES, Plan, Scale, plan_recipe, recipe_named
from asfl.reproduce.page import recipe_page
from asfl.reproduce.plan import estimated_duration_s
from asfl.reproduce.recipes import SEEDS, on_traces
from asfl.run import usual_threads

ALL = "all"


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="Recipes; all: every one.", show_default=False)
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="digits in minutes; real CIFAR with a small network; or the paper's models.")
    ] = "demo",
    show_list: Annotated[
        bool, typer.Option("--list", help="Say what each recipe shows and how long it takes.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds. Default: 1 for demo, else 3.")] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A measured channel, for measured-channel; repeatable.")
    ] = None,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where runs and results go. Default: runs/reproduce-SCALE.")
    ] = None,
    data_dir: DataDirOption = None,
    workers: WorkersOption = None,
    engine: EngineOption = "processes",
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat experiments of the paper and say which of its claims hold. Called again, it goes on."""
    if show_list:
        _print_list()
        return
    folder = out or Path("runs") / f"reproduce-{scale}"
    plans = [
        plan_recipe(
            on_traces(recipe, trace) if recipe.name == "measured-channel" and trace else recipe,
            scale,
            folder,
            overrides=overrides or [],
            seeds=seeds,
            data_dir=data_dir,
        )
        for recipe in map(recipe_named, _chosen(names or [], bool(trace)))
    ]
    trainer = engine_named(engine, workers, address)
    failed = _train(plans, data_dir, trainer)
    found = [_show(plan, as_json) for plan in plans]
    if as_json:
        print_json(found)
    print_failures(failed)
    if failed:
        raise typer.Exit(2)


def _chosen(names: Sequence[str], with_traces: bool) -> list[str]:
    if not names:
        raise AsflError(f"name a recipe (asfl reproduce --list tells about them): {', '.join(RECIPES)}, or {ALL}")
    if list(names) != [ALL]:
        return list(dict.fromkeys(names))
    skipped = () if with_traces else ("measured-channel",)
    for name in skipped:
        print(f"left out: {name}, which needs --trace FILE")
    return [name for name in RECIPES if name not in skipped]


def _train(plans: Sequence[Plan], data_dir: Path | None, trainer: Engine) -> dict[str, str]:
    """Train what all recipes need together, each run once."""
    jobs = {job.folder: job for plan in plans for job in plan.jobs(data_dir)}
    runs = {
        point.comparison.run_folder(scheme, seed)
        for plan in plans
        for point in plan.points
        for scheme in point.comparison.schemes
        for seed in point.comparison.seeds
    }
    for plan in plans:
        plan.remember()
    return train_jobs(list(jobs.values()), len(runs), trainer)


def _show(plan: Plan, quietly: bool) -> dict[str, object]:
    """Write page, claims and pictures of a recipe; print its claims."""
    from asfl.report.reproduce import recipe_figures

    outcomes = plan.outcomes()
    if not outcomes:
        raise AsflError(f"{plan.recipe.name} has no finished run to show")
    findings = list(plan.findings(outcomes))
    pictures = []
    for name, figure in recipe_figures(plan.recipe, outcomes):
        save_figure(figure, plan.results / f"{name}.png")
        pictures.append(f"{name}.png")
    data: dict[str, object] = {
        "recipe": plan.recipe.name,
        "scale": plan.scale,
        "worlds": [str(point.comparison.folder) for point in plan.points],
        "findings": [asdict(finding) for finding in findings],
        "summaries": {
            preset: {outcome.label or preset: outcome.summary.to_json() for outcome in of_preset}
            for preset, of_preset in outcomes.items()
        },
    }
    write_whole(plan.results / "results.json", json.dumps(data, indent=2, allow_nan=False).encode())
    write_whole(plan.results / "results.md", recipe_page(plan, outcomes, findings, pictures).encode())
    if not quietly:
        title = f"{plan.recipe.name} ({plan.recipe.paper} of the paper)"
        table = Table(title=title, title_justify="left", header_style="bold")
        for column in ("world", "claim of the paper", "here", "verdict"):
            table.add_column(column)
        for finding in findings:
            table.add_row(finding.preset, finding.claim, finding.here, finding.conclusion)
        if findings:
            console().print(table)
        print(f"{plan.recipe.name}: {plan.results / 'results.md'} and {len(pictures)} pictures beside it\n")
    return data


def _print_list() -> None:
    cores = usual_threads()
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("recipe", "in the paper", "what it shows"):
        table.add_column(column)
    scales: tuple[Scale, ...] = get_args(Scale)
    for scale in scales:
        table.add_column(f"--scale\n{scale}", justify="right", no_wrap=True)
    for name, recipe in RECIPES.items():
        durations = [_duration(estimated_duration_s(name, scale, cores)) for scale in scales]
        table.add_row(name, recipe.paper, recipe.shows, *durations)
    console().print(table)
    print(
        f"\nDurations are estimates for {cores} cores like those of a 2.8 GHz Xeon, without a GPU, with "
        f"{SEEDS['demo']}, {SEEDS['small']} and {SEEDS['paper']} seeds.\nRecipes share runs: all of them together take "
        "less than the sum. The paper's scale is meant for a GPU."
    )


def _duration(seconds: float) -> str:
    if seconds < 90 * 60:
        return f"{math.ceil(seconds / 60)} min"
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} days"
