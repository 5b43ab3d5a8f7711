"""`asfl advise`: which scheme suits a world best."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import console, print_json, say, table
from asfl.config.units import number, percent
from asfl.results.advise import Advice, advise as advise_for, learnt_like
from asfl.results.figures.figure import save_figure
from asfl.results.tables import markdown_table
from asfl.runs.files import write_whole

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
    """Say which scheme suits a world, what it would take, and why. Nothing is trained.

    --plot draws the answer for other models, bandwidths, prices of energy and processors around this world (minutes).
    """
    config = options.configuration(preset, overrides).config
    learnt = None
    if measured is not None:
        from asfl.results.reproduce.archive import read_archive

        learnt = learnt_like(config, read_archive(measured))
        if learnt is None:
            print(f"nothing in {measured} is like this world: same data, network, local steps", file=sys.stderr)
    advice = advise_for(config, rounds, seeds, learnt)
    if as_json:
        print_json(_as_json(advice))
    else:
        _print(advice)
    if plot is not None:
        from asfl.results.advise_map import which_scheme
        from asfl.results.figures.advise import draw_map

        cells = which_scheme(config, MAP_ROUNDS, learnt, progress=lambda world: print(world, file=sys.stderr))
        save_figure(draw_map(cells, f"around {preset}, models on CIFAR-10; {_basis(advice)}"), plot)
        print(f"picture: {plot}", file=sys.stderr)
    if page is not None:
        write_whole(page, _as_page(advice, preset, plot))
        print(f"page: {page}", file=sys.stderr)


_COLUMNS = ("scheme", "delay, s", "energy, J", "s / round", "J / round", "updates", "needed", "cut", "bits")


def _rows(advice: Advice) -> Iterator[list[str]]:
    for one in advice.candidates:
        each = (one.delay_s, one.energy_j, one.round_delay_s, one.round_energy_j, one.updates, one.needed)
        cut = "–" if one.cut != one.cut else f"{one.cut:.1f}"
        yield [one.scheme, *map(number, each), cut, f"{one.bits:.0f}"]


def _basis(advice: Advice) -> str:
    """What is measured and what is assumed."""
    if advice.learnt is None:
        return (
            "radio played; every update assumed to teach as much; schemes that never average client sides left behind"
        )
    return f"radio played; updates to {percent(advice.learnt.target)} as trained in {advice.learnt.where}"


def _sentences(advice: Advice) -> Iterator[str]:
    best, learnt = advice.best, advice.learnt
    goal = f"{number(best.needed)} updates" if learnt is None else f"{percent(learnt.target)} accuracy"
    yield f"Use {best.scheme}: {goal} in about {number(best.delay_s)} s and {number(best.energy_j)} J of all clients."
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
    sure = [one for one in advice.candidates if learnt or not one.drifts]
    fastest = min(sure, key=lambda one: one.delay_s)
    thriftiest = min(sure, key=lambda one: one.energy_j)
    if fastest is not best:
        yield f"If only time counts: {fastest.scheme} ({number(fastest.delay_s)} s)."
    if thriftiest is not best:
        yield f"If only energy counts: {thriftiest.scheme} ({number(thriftiest.energy_j)} J)."
    price = advice.config.decision.energy_price
    yield f"Best: least delay and energy, in units of a plain fair round's (decision.energy_price = {price:g})."
    if learnt is None:
        drifting = [one.scheme for one in advice.candidates if one.drifts]
        yield (
            "Played: the radio and the decisions. Assumed: every update that arrives teaches as much, whichever scheme "
            "it comes from. Client sides that are never averaged learn less, by nobody knows how much before training: "
            f"such schemes come last here ({', '.join(drifting) or 'none'})."
        )
        return
    yield f"Played: the radio and the decisions. Measured: updates to {percent(learnt.target)}, in {learnt.where}."
    if learnt.never:
        yield f"Trained, but not there with every seed: {', '.join(learnt.never)}."


def _print(advice: Advice) -> None:
    console().print(table(_COLUMNS, _rows(advice), left=("scheme",)))
    for sentence in _sentences(advice):
        say(sentence)


def _as_json(advice: Advice) -> dict[str, object]:
    return {
        "best": advice.best.scheme,
        "measured": None if advice.learnt is None else vars(advice.learnt),
        "rounds": advice.rounds,
        "seeds": advice.seeds,
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
        *markdown_table(_COLUMNS, _rows(advice)),
    ]
    if picture is not None:
        lines += [
            "", f"![map]({picture.name})", "",
            "In each square: the best scheme; below it the second, and its cost as a multiple of the best one's. "
            f"One seed, {MAP_ROUNDS} rounds a square; {_basis(advice)}. Heterogeneity is that of processors; "
            "that of labels doesn't change what a round costs, only how much it teaches.",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"
