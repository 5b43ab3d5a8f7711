"""`asfl advise`: what schemes cost in a world, which suits it best by trained runs, and what total budgets can buy."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from asfl.cli import options
from asfl.cli.decide import played_with_progress
from asfl.cli.output import console, print_json, say, table
from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.units import format_si, number, percent
from asfl.results.advise import Advice, advise as advise_for, learnt_like
from asfl.results.summary import trained_and_charged
from asfl.results.tables import Table
from asfl.runs.estimate import MAX_ROUNDS
from asfl.runs.files import write_whole
from asfl.runs.manifest import with_rounds
from asfl.runs.play import Playthrough, held_out_as_json, held_out_in_words
from asfl.schemes import CEILING

BUDGETED = ["asfl-plus,asfl"]


def advise(
    preset: options.Preset = "demo",
    overrides: options.Set = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_ROUNDS, help="Rounds to play. Default: 20; with total budgets at most 1000."),
    ] = None,
    seeds: options.Seeds = 1,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="How long all rounds together may take: 30min, 2h, 900."),
    ] = None,
    battery: Annotated[
        str | None,
        typer.Option("--battery", metavar="JOULES,…", help="What each client has: 50, 2kJ; or one for each: 50,60,…"),
    ] = None,
    schemes: Annotated[
        list[str] | None,
        typer.Option("--schemes", metavar="NAME,…", help="With total budgets: which. Default: asfl-plus,asfl."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Runs that were trained, as asfl reproduce --archive writes them."),
    ] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer as Markdown, too.")] = None,
    as_json: options.Json = False,
) -> None:
    """Say what an update costs with every scheme and, by trained runs (--from), which scheme suits a world.

    With --time or --battery: what these total budgets can buy: rounds, samples, cuts, and whose battery is
    empty first. Nothing is trained.
    """
    config = options.configuration(preset, [*(overrides or []), *_total_budgets(time, battery)]).config
    if (config.budget.total_delay_s, config.budget.battery_j) != ("off", "off"):
        options.refuse_all_but(
            ["preset", "overrides", "rounds", "time", "battery", "schemes", "as_json"],
            "with total budgets rounds are played until one of them is used up",
        )
        _advise_within(config, options.schemes_named(schemes or BUDGETED), rounds or 1000, as_json)
        return
    if schemes is not None:
        raise AsflError("--schemes doesn't count here: without --time or --battery all schemes are played")
    learnt = None
    if measured is not None:
        from asfl.results.reproduce.archive import read_archive

        learnt = learnt_like(config, read_archive(measured))
        if learnt is None:
            print(f"nothing in {measured} is like this world: same data, network, local steps", file=sys.stderr)
    advice = advise_for(config, rounds or 20, seeds, learnt)
    if as_json:
        print_json(_as_json(advice))
    else:
        _print(advice)
    if page is not None:
        write_whole(page, _as_page(advice, preset))
        print(f"page: {page}", file=sys.stderr)


def _columns(advice: Advice) -> tuple[str, ...]:
    costs = ("s / update", "J / update") if advice.learnt is None else ("delay, s", "energy, J", "needed")
    return ("scheme", *costs, "s / round", "J / round", "updates", "cut", "bits")


def _rows(advice: Advice) -> Iterator[list[str]]:
    for one in advice.candidates:
        needed = [] if one.needed is None else [one.needed]
        each = (one.delay_s, one.energy_j, *needed, one.round_delay_s, one.round_energy_j, one.updates)
        cut = "–" if one.cut != one.cut else f"{one.cut:.1f}"
        yield [one.scheme, *map(number, each), cut, f"{one.bits:.0f}"]


def _sentences(advice: Advice) -> Iterator[str]:
    yield from _recommended(advice)
    yield held_out_in_words(one.scheme for one in advice.candidates)


def _recommended(advice: Advice) -> Iterator[str]:
    best, learnt = advice.best, advice.learnt
    if best is None or learnt is None:
        yield "Which scheme is best depends on what an update teaches. Only training tells: --from takes trained runs."
        return
    yield (
        f"Use {best.scheme}: {percent(learnt.target)} accuracy in about {number(best.delay_s)} s and "
        f"{number(best.energy_j)} J of all clients."
    )
    cut = "" if best.cut != best.cut else f", cut {best.cut:.1f}"
    averages = f", {percent(best.averages)} of the rounds average client sides" if best.averages else ""
    yield (
        f"A round takes {number(best.round_delay_s)} s and {number(best.round_energy_j)} J, and {best.updates:.1f} "
        f"updates arrive{cut}, {best.bits:.0f} bits{averages}."
    )
    for second in advice.candidates[1:2]:
        yield (
            f"Next is {second.scheme}: {number(second.delay_s / best.delay_s)} times the delay, "
            f"{number(second.energy_j / best.energy_j)} times the energy."
        )
    fastest = min(advice.candidates, key=lambda one: one.delay_s)
    thriftiest = min(advice.candidates, key=lambda one: one.energy_j)
    if fastest is not best:
        yield f"If only time counts: {fastest.scheme} ({number(fastest.delay_s)} s)."
    if thriftiest is not best:
        yield f"If only energy counts: {thriftiest.scheme} ({number(thriftiest.energy_j)} J)."
    price = advice.config.decision.energy_price
    yield f"Best: least delay and energy, in units of a plain fair round's (decision.energy_price = {price:g})."
    yield f"Played: the radio and the decisions. Measured: updates to {percent(learnt.target)}, in {learnt.where}."
    if learnt.never:
        yield f"Trained, but not there with every seed: {', '.join(learnt.never)}."


def _print(advice: Advice) -> None:
    console().print(table(_columns(advice), _rows(advice)))
    for sentence in _sentences(advice):
        say(sentence)


def _as_json(advice: Advice) -> dict[str, object]:
    return {
        "best": None if advice.best is None else advice.best.scheme,
        "measured": None if advice.learnt is None else vars(advice.learnt),
        "rounds": advice.rounds,
        "seeds": advice.seeds,
        "held_out": held_out_as_json(one.scheme for one in advice.candidates),
        "schemes": [
            {**vars(one), "delay_s": one.delay_s, "energy_j": one.energy_j, "price_s": one.price}
            for one in advice.candidates
        ],
    }


def _as_page(advice: Advice, preset: str) -> str:
    command = f"asfl advise {preset} --rounds {advice.rounds} --seeds {advice.seeds}"
    command += " --from FILE" if advice.learnt else ""
    lines = ["# Which scheme should I use?", "", "```console", f"$ {command}", "```", ""]
    lines += [
        "\n".join(f"- {sentence}" for sentence in _sentences(advice)),
        "",
        Table(header=_columns(advice), rows=list(_rows(advice))).markdown(),
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------- total budgets
def _total_budgets(time: str | None, battery: str | None) -> list[str]:
    """As `--set` takes them."""
    given = [] if time is None else [f"budget.total_delay_s='{time}'"]
    if battery is not None:
        each = ", ".join(f"'{one.strip()}'" for one in battery.split(","))
        given.append(f"budget.battery_j={f'[{each}]' if ',' in battery else each}")
    return given


def _advise_within(config: Config, names: list[str], rounds: int, as_json: bool) -> None:
    if CEILING in names:
        raise AsflError(f"--schemes {CEILING}: it has no radio, so it takes neither time nor batteries")
    played = played_with_progress(with_rounds(config, rounds), names, 1, rounds)
    plans = {one.scheme: _bought(one, config) for one in played}
    model = trained_and_charged(config) or config.model_spec.name
    if as_json:
        print_json({"model": model, "held_out": held_out_as_json(plans), "schemes": plans})
    else:
        _print_bought(plans, config, model, rounds, console())


def _bought(played: Playthrough, config: Config) -> dict[str, Any]:
    """What a budget buys with one scheme."""
    rounds, clients = played.rounds, range(config.scenario.clients)
    last = rounds[-1]
    cuts = np.array([one.mean_cut for one in rounds if one.scheduled_count])
    bits = np.array([one.mean_bits for one in rounds if one.scheduled_count])
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


def _print_bought(plans: dict[str, dict[str, Any]], config: Config, model: str, rounds: int, out: Console) -> None:
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
                "none"
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
    out.print(table(columns, rows, title=f"{model}: what {' and '.join(total)} can buy"))
    if budget.battery_j != "off":
        clients = [f"client {client}" for client in range(config.scenario.clients)]
        left = ([name, *(format_si(joule, "J") for joule in of["battery_left_j"])] for name, of in plans.items())
        out.print(table(["scheme", *clients], left, title="what is left in the batteries"))
    if any(of["ended_by"] == "rounds" for of in plans.values()):
        out.print(f"{rounds:,} rounds were not enough to use up the budget; --rounds allows more")
    out.print(held_out_in_words(plans))
