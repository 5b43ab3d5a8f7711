"""`asfl plan`: what a total budget can buy, before anything is trained."""

from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from asfl.cli import options
from asfl.cli.output import show, table
from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.units import format_si
from asfl.results.charts.world import budget_chart
from asfl.results.curves import CEILING
from asfl.results.summary import trained_and_charged
from asfl.runs.estimate import MAX_ROUNDS, check_count
from asfl.runs.play import Playthrough, play_all
from asfl.runs.synthetic_learning import held_out_as_json, held_out_in_words
from asfl.runs.this_process import usual_threads

PLANNED = ["asfl-plus,asfl"]


def plan(
    preset: options.Preset = "demo",
    schemes: Annotated[
        list[str], typer.Option("--scheme", metavar="NAME,…", help="Schemes, separated by commas or repeated.")
    ] = PLANNED,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="How long all rounds may take: 30min, 2h, 900.")
    ] = None,
    battery: Annotated[
        str | None,
        typer.Option("--battery", metavar="JOULES,…", help="What each client has: 50, 2kJ; or one for each: 50,60,…"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="Rounds at most, whatever is left.")] = 1000,
    overrides: options.Set = None,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """What a total time and batteries can buy: rounds, samples, cuts, and who runs empty first. Nothing is trained."""
    names = options.schemes_named(schemes)
    if CEILING in names:
        raise AsflError(f"--scheme {CEILING}: it has no radio, so it takes neither time nor batteries")
    for one in overrides or []:
        if one.partition("=")[0].strip() == "training.rounds":
            raise AsflError(f"--set {one} doesn't count here: --rounds says how many there may be")
    given = [f"training.rounds={rounds}"]
    if time is not None:
        given.append(f"budget.total_delay_s='{time}'")
    if battery is not None:
        each = ", ".join(f"'{one.strip()}'" for one in battery.split(","))
        given.append(f"budget.battery_j={f'[{each}]' if ',' in battery else each}")
    config = options.configuration(preset, [*(overrides or []), *given]).config
    if config.budget.total_delay_s == config.budget.battery_j == "off":
        raise AsflError(f"there is no total budget in {preset}; give --time 30min, --battery 50, or both")
    check_count(len(names), rounds, f"{len(names)} schemes")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("playing", total=len(names))
        played = play_all(
            config,
            names,
            [config.scenario.seed],
            rounds,
            workers=min(usual_threads(), len(names)),
            progress=lambda _: progress.advance(task),
        )
    plans = {one.scheme: _as_json(one, config) for one in played}
    model = trained_and_charged(config) or config.model_spec.name
    show(
        as_json,
        plot,
        data=lambda: {"model": model, "held_out": held_out_as_json(plans), "schemes": plans},
        tables=lambda out: _print_plans(plans, config, model, out),
        figure=lambda: budget_chart(played, model),
    )


def _as_json(played: Playthrough, config: Config) -> dict[str, Any]:
    """What a budget buys with one scheme."""
    rounds, clients = played.rounds, range(config.scenario.clients)
    last = rounds[-1]
    cuts = np.array([one.mean_cut for one in rounds if any(one.rb_count)])
    bits = np.array([one.mean_bits for one in rounds if any(one.rb_count)])
    clock = np.cumsum([one.delay_s for one in rounds])
    empty = np.array([np.less_equal(one.battery_left_j or [np.inf] * len(clients), 0) for one in rounds])
    runs_empty = {client: int(np.argmax(empty[:, client])) for client in clients if empty[-1, client]}
    first = min(runs_empty, key=lambda client: runs_empty[client], default=None)
    has_cut = cuts.size > 0 and not np.isnan(cuts).any()
    return {
        "rounds": len(rounds),
        "ended_by": "time" if last.time_left_s == 0 else "batteries" if last.uses_up_the_budget else "rounds",
        "samples": int(sum(one.arrived_count for one in rounds) * config.charged_samples),
        "updates_per_round": float(np.mean([one.arrived_count for one in rounds])),
        "cut": {"median": float(np.median(cuts)), "min": float(cuts.min()), "max": float(cuts.max())}
        if has_cut
        else None,
        "bits": float(np.median(bits)) if bits.size else None,
        "delay_s": float(clock[-1]),
        "energy_j": np.sum([one.energy_j for one in rounds], axis=0).tolist(),
        "time_left_s": last.time_left_s,
        "battery_left_j": last.battery_left_j,
        "first_empty": None
        if first is None
        else {"client": first, "round": runs_empty[first] + 1, "delay_s": float(clock[runs_empty[first]])},
        "empty": len(runs_empty),
    }


def _print_plans(plans: dict[str, dict[str, Any]], config: Config, model: str, out: Console) -> None:
    columns = ("scheme", "rounds", "ends by", "samples", "arrive", "cut", "bits", "time", "energy", "first empty")
    rows = []
    for name, of in plans.items():
        cut, first = of["cut"], of["first_empty"]
        rows.append(
            [
                name,
                f"{of['rounds']:,}",
                of["ended_by"],
                f"{of['samples']:,}",
                f"{of['updates_per_round']:.1f} a round",
                "none" if cut is None else f"{cut['median']:.3g} ({cut['min']:.3g}–{cut['max']:.3g})",
                "–" if of["bits"] is None else f"{of['bits']:.3g}",
                format_si(of["delay_s"], "s"),
                format_si(sum(of["energy_j"]), "J"),
                "nobody"
                if first is None
                else f"client {first['client']}, round {first['round']}, {format_si(first['delay_s'], 's')}",
            ]
        )
    budget = config.budget
    total = [] if budget.total_delay_s == "off" else [format_si(budget.total_delay_s, "s")]
    if budget.battery_j != "off":
        each = np.atleast_1d(budget.battery_j)
        low, high = (format_si(float(end), "J") for end in (each.min(), each.max()))
        total.append(f"{low} for each client" if low == high else f"{low} to {high} for each client")
    out.print(table(columns, rows, left=["scheme", "ends by"], title=f"{model}: what {' and '.join(total)} can buy"))
    if budget.battery_j != "off":
        clients = [f"client {client}" for client in range(config.scenario.clients)]
        left = ([name, *(format_si(joule, "J") for joule in of["battery_left_j"])] for name, of in plans.items())
        out.print(table(["scheme", *clients], left, left=["scheme"], title="what is left in the batteries"))
    if any(of["ended_by"] == "rounds" for of in plans.values()):
        out.print(f"{config.training.rounds:,} rounds were not enough to use up the budget; --rounds allows more")
    out.print(held_out_in_words(plans))
