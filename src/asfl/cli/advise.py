"""`asfl advise`: what every scheme costs in a world; with trained runs, which suits it best."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import console, print_json, say, table
from asfl.config.errors import AsflError
from asfl.config.units import number, percent
from asfl.results.advise import Advice, Learnt, advise as advise_for, learnt_like
from asfl.results.charts.files import save_figure
from asfl.results.tables import Table
from asfl.runs.files import write_whole
from asfl.runs.synthetic_learning import held_out_as_json, held_out_in_words

MAP_ROUNDS = 20


def advise(
    preset: options.Preset = "demo",
    overrides: options.Set = None,
    rounds: Annotated[int, typer.Option(min=1, max=10_000, help="How many rounds are played.")] = 20,
    seeds: options.Seeds = 1,
    measured: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Runs that were trained, as asfl reproduce --archive writes them."),
    ] = None,
    plot: options.Plot = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer as Markdown, too.")] = None,
    as_json: options.Json = False,
) -> None:
    """Say what an update costs with every scheme and, by trained runs (--from), which scheme suits a world.

    --plot draws the answer for other bandwidths, prices of energy and processors around this world (minutes).
    """
    config = options.configuration(preset, overrides).config
    learnt = None
    if measured is not None:
        from asfl.results.reproduce.archive import read_archive

        learnt = learnt_like(config, read_archive(measured))
        if learnt is None:
            print(f"nothing in {measured} is like this world: same data, network, local steps", file=sys.stderr)
    if plot is not None and learnt is None:
        raise AsflError("--plot: only trained runs like this world's tell which scheme is best; give --from FILE")
    advice = advise_for(config, rounds, seeds, learnt)
    if as_json:
        print_json(_as_json(advice))
    else:
        _print(advice)
    if plot is not None and learnt is not None:
        from asfl.results.advise_map import map_chart, which_scheme

        cells = which_scheme(config, MAP_ROUNDS, learnt, progress=lambda world: print(world, file=sys.stderr))
        save_figure(map_chart(cells, f"around {preset}; {_basis(learnt)}"), plot)
        print(f"picture: {plot}", file=sys.stderr)
    if page is not None:
        write_whole(page, _as_page(advice, preset, plot))
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


def _basis(learnt: Learnt) -> str:
    return f"radio played; updates to {percent(learnt.target)} as trained in {learnt.where}"


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
    console().print(table(_columns(advice), _rows(advice), left=("scheme",)))
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


def _as_page(advice: Advice, preset: str, picture: Path | None) -> str:
    command = f"asfl advise {preset} --rounds {advice.rounds} --seeds {advice.seeds}"
    command += (" --from FILE" if advice.learnt else "") + (f" --plot {picture.name}" if picture else "")
    lines = ["# Which scheme should I use?", "", "```console", f"$ {command}", "```", ""]
    lines += [
        "\n".join(f"- {sentence}" for sentence in _sentences(advice)),
        "",
        Table(header=_columns(advice), rows=list(_rows(advice))).markdown(),
    ]
    if picture is not None and advice.learnt is not None:
        lines += [
            "", f"![map]({picture.name})", "",
            "In each square: the best scheme; below it the second, and its cost as a multiple of the best one's. "
            f"One seed, {MAP_ROUNDS} rounds a square; {_basis(advice.learnt)}. Heterogeneity is that of processors; "
            "that of labels doesn't change what a round costs, only how much it teaches.",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"
