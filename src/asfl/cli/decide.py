"""`asfl decide`: the decision of one round, or of many."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from asfl.cli import options
from asfl.cli.output import console, print_json, show, table
from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.fields import MAX_COUNT
from asfl.config.units import format_si, number
from asfl.costs.modelled import RoundCost
from asfl.costs.round import Decision
from asfl.costs.timeline import Timeline
from asfl.optimize import Solution, solve
from asfl.optimize.roundfile import RoundFile, cost_as_json, json_schema, read_round_file, solution_as_json
from asfl.results.charts.chart import Chart
from asfl.results.curves import Run
from asfl.results.recorded import Met, timelines
from asfl.results.summary import still_owed, trained_and_charged
from asfl.results.tables import NO_CLIENT
from asfl.runs.estimate import check_count
from asfl.runs.play import Playthrough, held_out_as_json, held_out_in_words, play_all, with_seed
from asfl.runs.this_process import usual_threads
from asfl.schemes import CEILING


def decide(
    file: Annotated[Path | None, typer.Argument(help="A round file (docs/decision.md).")] = None,
    solver: Annotated[
        Literal["bcd", "joint", "printed"] | None,
        typer.Option(help="With a file: OOE-BCD, the joint solver, or OOE-BCD as printed, instead of rules.solver."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="Play this many rounds of a preset instead.")
    ] = None,
    preset: Annotated[str, typer.Option(help="With --rounds: a preset's name or a TOML file.")] = "demo",
    schemes: options.Schemes = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=options.MAX_SEEDS, help="With --rounds: how many seeds, from the preset's on.")
    ] = 1,
    cost: Annotated[
        bool, typer.Option("--cost", help="With a file: what the decision in it costs, instead of a new one.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of round files.")] = False,
    overrides: options.Set = None,
    as_json: options.Json = False,
    plot: options.PlotOrTrace = None,
) -> None:
    """Decide cut, resource blocks and power: of the round in a file, or round after round (radio only, no training).

    With --plot: the round in a file, and a single round of one scheme, is drawn as a timeline too.
    With --cost: delay and energy of the decision in the file, realised if it says who arrived, else expected.
    """
    if schema:
        options.refuse_all_but(["schema", "as_json"], "--schema prints the schema and reads no file")
        print_json(json_schema())
        return
    if cost:
        options.refuse_all_but(["file", "cost", "as_json"], "--cost is about the decision in a file")
        if file is None:
            raise AsflError("which round? For example: asfl decide round.json --cost")
        _show_cost(read_round_file(file), as_json)
        return
    if (file is None) == (rounds is None):
        raise AsflError("give either a round file, or --rounds, and --preset if it isn't demo (asfl decide --help)")
    if file is not None:
        options.refuse_all_but(["file", "solver", "as_json", "plot"], "everything about the round is in its file")
        solution = solve(read_round_file(file), solver)
        show(
            as_json,
            plot,
            data=lambda: solution_as_json(solution),
            tables=lambda out: _print_solution(solution, out),
            figure=lambda: _drawn(solution),
            trace=lambda: solution.timeline().trace_events(),
        )
    elif rounds is not None:
        options.refuse_all_but(
            ["rounds", "preset", "schemes", "seeds", "overrides", "as_json", "plot"],
            "with --rounds the scheme chooses its solver, as in --schemes asfl,asfl-joint",
        )
        names = [one for one in options.schemes_named(schemes) if schemes or one != CEILING]
        _play(preset, overrides or [], names, seeds, rounds, as_json, plot)


def _drawn(solution: Solution) -> Chart:
    from asfl.results.charts.world import decision_chart  # few decisions are drawn

    return decision_chart(solution)


def _drawn_rounds(played: list[Playthrough], config: Config, model: str) -> Chart:
    """Of one round of one scheme, its timeline."""
    from asfl.results.charts.timeline import timeline_chart
    from asfl.results.charts.world import playthroughs_chart

    if len(played) == 1 and len(played[0].rounds) == 1:
        for met, timeline in _timelines(played[0], config):
            overlaps = met.round.equations.timing == "overlap"
            barriers = met.timeline(barriers=True) if overlaps else None
            return timeline_chart(timeline, barriers, f"{played[0].scheme}, seed {played[0].seed}, {model}")
    return playthroughs_chart(played)


def _timelines(played: Playthrough, config: Config) -> Iterator[tuple[Met, Timeline]]:
    config = with_seed(config.for_scheme(played.scheme), played.seed)
    return timelines(Run(played.scheme, played.seed, played.rounds, played.budgets, config))


def _trace(played: list[Playthrough], config: Config) -> list[dict[str, Any]]:
    """All rounds, one after the other; a process for each scheme and seed."""
    events = list[dict[str, Any]]()
    for process, one in enumerate(played):
        name = {"name": f"{one.scheme}, seed {one.seed}"}
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": name})
        for met, timeline in _timelines(one, config):
            events += timeline.trace_events(process, met.record.total_delay_s - met.record.delay_s)
    return events


def _show_cost(given: RoundFile, as_json: bool) -> None:
    result, realised = given.cost(), given.arrived is not None
    if as_json:
        print_json(cost_as_json(result, realised=realised))
    elif given.decision is not None:
        _print_cost(result, given.decision, given.round.previous_cut, realised=realised)


def _print_cost(result: RoundCost, decision: Decision, previous_cut: int | None, *, realised: bool) -> None:
    kind = "realised" if realised else "expected"
    before = "" if previous_cut is None else f" (before: {previous_cut})"
    out = console()
    out.print(
        f"[bold]{kind} delay {format_si(float(result.delay_s), 's')}[/], cut {decision.cut}{before}: "
        f"re-split {format_si(float(result.resplit_delay_s), 's')} + "
        f"uplink stage {format_si(float(result.uplink_stage_delay_s), 's')} + "
        f"server stage {format_si(float(result.server_stage_delay_s), 's')}"
    )
    columns = {
        "client": [str(client) for client in range(len(decision.rb_count))],
        "RBs": [f"{count:g}" for count in decision.rb_count],
        "power": [format_si(power, "W") for power in decision.tx_power_w],
        "error rate": [f"{100 * rate:.2f} %" for rate in result.packet_error_rate],
        "uplink": [format_si(rate, "bit/s") for rate in result.uplink_rate_bps],
        "downlink": [format_si(rate, "bit/s") for rate in result.downlink_rate_bps],
        "re-split": _seconds(result.resplit_delay_by_client_s),
        "forward": _seconds(result.client_forward_delay_s),
        "send": _seconds(result.uplink_delay_s),
        "server": _seconds(result.server_delay_s),
        "receive": _seconds(result.downlink_delay_s),
        "backward": _seconds(result.client_backward_delay_s),
        "energy": [format_si(energy, "J") for energy in result.energy_j],
    }
    out.print(table(list(columns), zip(*columns.values(), strict=True)))
    silent = np.flatnonzero(decision.scheduled & ~np.isfinite(result.uplink_delay_s))
    if silent.size:
        out.print(f"client {silent[0]} has resource blocks but no power or no gain, so the round never ends")


def _seconds(delays: NDArray[np.float64]) -> list[str]:
    return [format_si(delay, "s") for delay in delays]


def _print_solution(solution: Solution, out: Console) -> None:
    decision, cost = solution.decision, solution.expected
    rules, before = solution.problem.rules, solution.problem.round.previous_cut
    moved = "" if before is None else " (stays)" if before == decision.cut else f" (before: {before})"
    out.print(
        f"[bold]cut {decision.cut}[/]{moved}, expected delay {format_si(float(cost.delay_s), 's')} "
        f"(budget {format_si(rules.delay_budget_s, 's')}), decided in {format_si(solution.seconds, 's')} "
        f"and {solution.iterations} iteration{'s' if solution.iterations > 1 else ''}"
    )
    rows: list[list[str]] = []
    for client, count in enumerate(decision.rb_count):
        energy = float(cost.energy_j[client])
        share = f"{100 * energy / rules.energy_budget_j:.0f} %" if rules.energy_budget_j else "no budget"
        took_part = [
            f"{count:.3g}",
            format_si(decision.tx_power_w[client], "W"),
            f"{100 * cost.packet_error_rate[client]:.1f} %",
            format_si(cost.uplink_rate_bps[client], "bit/s"),
            format_si(energy, "J"),
            share,
        ]
        rows.append([str(client), *(took_part if count else ["–", "", "sits out"])])
    out.print(table(("client", "RBs", "power", "error rate", "uplink", "energy", "of its budget"), rows))
    steps = " -> ".join(f"{block} {value:.4g}" for block, value in solution.trace)
    out.print(f"objective (drift + V · objective): {steps}")
    if not decision.scheduled.any():
        out.print("no client gets a resource block: by this objective and these rules that is the best round")
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
    if CEILING in names:
        raise AsflError(f"--schemes {CEILING}: it has no radio, so there are no rounds to decide")
    config = options.configuration(preset, overrides).config
    model = trained_and_charged(config) or config.model_spec.name
    played = played_with_progress(config, names, seeds, rounds)
    summaries = {name: [one.summary() | _owed(one, config) for one in played if one.scheme == name] for name in names}
    plain = {
        name: [{key: None if np.isnan(value) else value for key, value in row.items()} for row in rows]
        for name, rows in summaries.items()
    }
    show(
        as_json,
        plot,
        data=lambda: {
            "model": model,
            "rounds": rounds,
            "seeds": [config.scenario.seed + number for number in range(seeds)],
            "held_out": held_out_as_json(names),
            "schemes": plain,
        },
        tables=lambda out: _print_summaries(summaries, played, model, seeds, out),
        figure=lambda: _drawn_rounds(played, config, model),
        trace=lambda: _trace(played, config),
    )


_TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "what it costs and what arrives": {
        "delay_s": ("delay / round", "s"),
        "median_delay_s": ("median", "s"),
        "energy_j": ("energy / round", "J"),
        "median_energy_j": ("median", "J"),
        "packet_error_rate": ("error rate", "%"),
        "updates_per_round": ("arrived", ""),
        "least_served_share": ("least served", "%"),
        "delay_violation": ("delay over", "%"),
        "delay_owed": ("owed", "%"),
        "energy_violation": ("energy over", "%"),
        "energy_owed": ("owed", "%"),
    },
    "what the decisions look like": {
        "cut": ("cut", ""),
        "cut_switches": ("cut moves", "%"),
        "resplit_share": ("re-split share", "%"),
        "delay_queue": ("delay queue", ""),
        "energy_queue": ("energy queue", ""),
    },
}


def _print_summaries(
    summaries: dict[str, list[dict[str, float]]], played: list[Playthrough], model: str, seeds: int, out: Console
) -> None:
    fewest, most = (end(len(one.rounds) for one in played) for end in (min, max))
    out.print(
        f"{model}: {most if fewest == most else f'{fewest} to {most}'} rounds, radio only, "
        "with a stand-in for learning; mean"
        + (f" ± standard deviation over {seeds} seeds" if seeds > 1 else " (one seed)")
    )
    for title, columns in _TABLES.items():
        rows = (
            [scheme, *(_mean_and_spread(of_seeds, key, unit) for key, (_, unit) in columns.items())]
            for scheme, of_seeds in summaries.items()
        )
        names = ["scheme", *(name for name, _ in columns.values())]
        out.print(table(names, rows, title=title))
    served = {one.scheme for one in played if any(each.scheduled_count for each in one.rounds)}
    if idle := [scheme for scheme in summaries if scheme not in served]:
        out.print(f"{', '.join(idle)}: {NO_CLIENT}")
    budgets = played[0].budgets
    out.print(
        f"budgets (seed {played[0].seed}): {format_si(budgets.delay_s, 's')} a round, "
        f"{format_si(budgets.energy_j, 'J')} a round and client; 'over' is how far the averages exceed them "
        "(energy: the worst client), 'owed' the queue after the last round / rounds (standard queue rule only)"
    )
    out.print(held_out_in_words(summaries))


def _owed(played: Playthrough, config: Config) -> dict[str, float]:
    delay, energy = still_owed(Run(played.scheme, played.seed, played.rounds, played.budgets, config))
    return {"delay_owed": delay, "energy_owed": energy}


def _mean_and_spread(rows: list[dict[str, float]], key: str, unit: str) -> str:
    values = np.array([row[key] for row in rows]) * (100 if unit == "%" else 1)
    if np.isnan(values).any():
        return "–"
    spread = f" ± {number(values.std(ddof=1), 2)}" if len(values) > 1 else ""
    return f"{number(values.mean(), 3)}{spread}" + (f" {unit}" if unit else "")


def played_with_progress(config: Config, schemes: Sequence[str], seeds: int, rounds: int) -> list[Playthrough]:
    """Rounds without training, every scheme with every seed, side by side."""
    first, runs = config.scenario.seed, len(schemes) * seeds
    check_count(runs, rounds, f"{len(schemes)} schemes" + (f" × {seeds:,} seeds" if seeds > 1 else ""))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("playing", total=runs)
        return play_all(
            config,
            schemes,
            range(first, first + seeds),
            rounds,
            workers=min(usual_threads(), runs),
            progress=lambda _: progress.advance(task),
        )
