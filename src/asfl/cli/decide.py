"""`asfl decide`: the decision of one round, or of many."""

import os
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from asfl.cli.options import JsonOption, PlotOption, SetOption, console, print_json
from asfl.config import load_config
from asfl.errors import AsflError
from asfl.optimize import Solution, ooe_bcd, solve_jointly
from asfl.play import Playthrough, play_all
from asfl.report.decision import draw_decision, draw_playthroughs
from asfl.report.figure import check_figure_path, save_figure
from asfl.roundfile import read_round_file, solution_as_json
from asfl.schemes import SCHEMES
from asfl.summary import number
from asfl.units import format_si


def decide(
    file: Annotated[Path | None, typer.Argument(help="A round file (docs/round-file.md).")] = None,
    solver: Annotated[Literal["bcd", "joint"], typer.Option(help="OOE-BCD, or the joint solver.")] = "bcd",
    rounds: Annotated[int | None, typer.Option(min=1, help="Play this many rounds of a preset instead.")] = None,
    preset: Annotated[str, typer.Option(help="With --rounds: a preset's name or a TOML file.")] = "demo",
    scheme: Annotated[
        list[str] | None, typer.Option(help="With --rounds: a scheme, or several separated by commas. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="With --rounds: how many seeds, from the preset's on.")] = 1,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Decide cut, resource blocks and power: of the round in a file, or round after round (radio only, no training)."""
    if (file is None) == (rounds is None):
        raise AsflError("give a round file, or --rounds to play rounds of a preset (asfl decide --help)")
    if plot is not None:
        check_figure_path(plot)
    if file is not None:
        _decide_file(file, solver, as_json, plot)
    elif rounds is not None:
        names = [name for entry in scheme or SCHEMES for name in entry.split(",")]
        _play(preset, overrides or [], names, seeds, rounds, as_json, plot)


def _decide_file(file: Path, solver: str, as_json: bool, plot: Path | None) -> None:
    problem = read_round_file(file).to_problem()
    solution = ooe_bcd(problem) if solver == "bcd" else solve_jointly(problem)
    if plot is not None:
        save_figure(draw_decision(solution), plot)
    if as_json:
        print_json(solution_as_json(solution))
        return
    _print_solution(solution)
    if plot is not None:
        print(f"picture: {plot}")


def _print_solution(solution: Solution) -> None:
    out, decision, cost = console(), solution.decision, solution.expected
    rules, before = solution.problem.rules, solution.problem.round.previous_cut
    moved = "" if before is None else " (stays)" if before == decision.cut else f" (before: {before})"
    out.print(
        f"[bold]cut {decision.cut}[/]{moved}, expected delay {format_si(float(cost.delay_s), 's')} "
        f"(budget {format_si(rules.delay_budget_s, 's')}), decided in {format_si(solution.seconds, 's')} "
        f"and {solution.iterations} iteration{'s' if solution.iterations > 1 else ''}"
    )
    table = Table(header_style="bold")
    for name in ("client", "RBs", "power", "error rate", "uplink", "energy", "of its budget"):
        table.add_column(name, justify="right")
    for client, count in enumerate(decision.rb_count):
        energy = float(cost.energy_j[client])
        share = f"{100 * energy / rules.energy_budget_j:.0f} %" if rules.energy_budget_j else "no budget"
        if count == 0:
            table.add_row(str(client), "–", "", "sits out")
            continue
        table.add_row(
            str(client),
            f"{count:.3g}",
            format_si(decision.tx_power_w[client], "W"),
            f"{100 * cost.packet_error_rate[client]:.1f} %",
            format_si(cost.uplink_rate_bps[client], "bit/s"),
            format_si(energy, "J"),
            share,
        )
    out.print(table)
    steps = " -> ".join(f"{block} {value:.4g}" for block, value in solution.trace)
    out.print(f"objective (drift + V · objective): {steps}")
    missed = solution.missed_budgets()
    if not missed:
        out.print("this round keeps both budgets")
    if "delay_s" in missed:
        out.print(f"delay misses its budget by {format_si(missed['delay_s'], 's')}")
    if "energy_j" in missed:
        worst = max(missed["energy_j"], key=missed["energy_j"].get)
        out.print(
            f"energy: {len(missed['energy_j'])} of {len(decision.rb_count)} clients over budget, "
            f"client {worst} by most, {format_si(missed['energy_j'][worst], 'J')}"
        )


def _play(
    preset: str, overrides: list[str], names: list[str], seeds: int, rounds: int, as_json: bool, plot: Path | None
) -> None:
    config = load_config(preset, overrides).config
    first = config.scenario.seed
    workers = min(os.cpu_count() or 1, len(names) * seeds)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("playing", total=len(names) * seeds)
        played = play_all(
            config,
            names,
            range(first, first + seeds),
            rounds,
            workers=workers,
            progress=lambda _: progress.advance(task),
        )
    if plot is not None:
        save_figure(draw_playthroughs(played), plot)
    summaries = {name: [one.summary() for one in played if one.scheme == name] for name in dict.fromkeys(names)}
    if as_json:
        plain = {
            name: [{key: None if np.isnan(value) else value for key, value in row.items()} for row in rows]
            for name, rows in summaries.items()
        }
        print_json({"rounds": rounds, "seeds": list(range(first, first + seeds)), "schemes": plain})
        return
    _print_summaries(summaries, played, rounds, seeds)
    if plot is not None:
        print(f"picture: {plot}")


_TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "what it costs and what arrives": {
        "delay_s": ("delay / round", "s"),
        "median_delay_s": ("median", "s"),
        "energy_j": ("energy / round", "J"),
        "packet_error_rate": ("error rate", "%"),
        "updates_per_round": ("arrived", ""),
        "least_served_share": ("least served", "%"),
        "delay_violation": ("delay over", "%"),
        "energy_violation": ("energy over", "%"),
    },
    "what the decisions look like": {
        "cut": ("cut", ""),
        "cut_switches": ("cut moves", "%"),
        "resplit_share": ("re-split share", "%"),
        "spread": ("spread", ""),
        "delay_queue": ("delay queue", ""),
        "energy_queue": ("energy queue", ""),
    },
}


def _print_summaries(
    summaries: dict[str, list[dict[str, float]]], played: list[Playthrough], rounds: int, seeds: int
) -> None:
    out = console()
    out.print(
        f"{rounds} rounds, radio only, with a stand-in for learning; mean"
        + (f" ± standard deviation over {seeds} seeds" if seeds > 1 else " (one seed)")
    )
    for title, columns in _TABLES.items():
        table = Table(title=title, header_style="bold", title_justify="left")
        table.add_column("scheme", no_wrap=True)
        for name, _ in columns.values():
            table.add_column(name, justify="right")
        for scheme, rows in summaries.items():
            table.add_row(scheme, *(_mean_and_spread(rows, key, unit) for key, (_, unit) in columns.items()))
        out.print(table)
    budgets = played[0].budgets
    out.print(
        f"budgets (seed {played[0].seed}): {format_si(budgets.delay_s, 's')} a round, "
        f"{format_si(budgets.energy_j, 'J')} a round and client; 'over' is how far the averages exceed them "
        "(energy: the worst client)"
    )


def _mean_and_spread(rows: list[dict[str, float]], key: str, unit: str) -> str:
    values = np.array([row[key] for row in rows]) * (100 if unit == "%" else 1)
    if np.isnan(values).any():
        return "–"
    spread = f" ± {number(values.std(ddof=1), 2)}" if len(values) > 1 else ""
    return f"{number(values.mean(), 3)}{spread}" + (f" {unit}" if unit else "")
