"""What a recipe found, written down: a page in Markdown, its pictures, and the numbers for programs."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from asfl.config.errors import AsflError
from asfl.config.units import number, percent
from asfl.results.charts import comparison
from asfl.results.charts.chart import Chart
from asfl.results.charts.files import save_figure
from asfl.results.curves import Run
from asfl.results.quantities import partly
from asfl.results.reproduce.archive import Found
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.recipes import Recipe, recipe_named
from asfl.results.summary import Outcome, Summary, said_once, with_note
from asfl.results.tables import NOT_REACHED, markdown_table
from asfl.runs.files import write_whole
from asfl.schemes import OURS

Outcomes = Mapping[str, Sequence[Outcome]]
"""By preset."""


def recipe_page(
    found: Found,
    outcomes: Outcomes,
    findings: Sequence[Finding],
    pictures: Iterable[str],
    otherwise: Mapping[str, Outcomes],
) -> str:
    """`pictures`: file names beside the page; `otherwise`: outcomes under other charges, by what these are called."""
    recipe = recipe_named(found.recipe)
    intro = f"{recipe.source[0].upper()}{recipe.source[1:]}: {recipe.shows}."
    lines = [f"# {recipe.name}", "", intro, "", "```console", f"$ {found.command}", "```", ""]
    every = [outcome for of_preset in outcomes.values() for outcome in of_preset]
    moving = any(one.config and one.config.scenario.channel.kind != "rayleigh" for o in every for one in o.runs)
    timed = " Recharged rounds keep the links that they had when they were trained." if otherwise and moving else ""
    lines += [origin(every) + timed, ""]
    for preset in outcomes:
        lines += _claims([one for one in findings if one.preset == preset], preset if len(outcomes) > 1 else "")
    for name in pictures:
        lines += [f"![{name.rpartition('.')[0]}]({name})", ""]
    for preset, of_preset in outcomes.items():
        model = said_once(outcome.summary.model for outcome in of_preset)
        seeds = max(len(outcome.summary.seeds) for outcome in of_preset)
        medians = f"Medians of {seeds} seeds." if seeds > 1 else "One seed."
        lines += [f"## {with_note(preset, model)}", "", f"{medians} {_trained(of_preset)}", ""]
        others = {name: other[preset] for name, other in otherwise.items()}
        lines += [*_numbers(recipe.varied, of_preset, others), ""]
    return "\n".join(lines)


def _claims(findings: Sequence[Finding], world: str) -> Iterator[str]:
    """A table of what is found; where something is varied, one of the verdicts at each point."""
    title = with_note("claim", world)
    told = [[one.claim, one.here, one.in_words] for one in findings if not one.label]
    if told:
        yield from (*markdown_table([title, "here", "verdict"], told, words=None), "")
    labels = list(dict.fromkeys(one.label for one in findings if one.label))
    verdicts: dict[str, dict[str, str]] = {}
    for one in findings:
        if one.label:
            verdicts.setdefault(one.claim, {})[one.label] = one.in_words
    if labels:
        rows = ([claim, *(of_claim.get(label, "–") for label in labels)] for claim, of_claim in verdicts.items())
        yield from (*markdown_table([title, *labels], rows, words=None), "")


def origin(outcomes: Iterable[Outcome]) -> str:
    """Which seeds and commits the runs are of, and what training them took."""
    runs = {(o.world, run.scheme, run.seed): run for o in outcomes for run in o.runs}.values()
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    commits = ", ".join(sorted({run.commit[:12] for run in runs if run.commit})) or "not recorded"
    counted = [run.cpu_s for run in runs if run.cpu_s > 0]
    hours = f"{number(sum(counted) / 3600, 2)} CPU hours" if counted else "CPU time not recorded"
    partly = f" ({len(counted)} of {len(runs)} runs counted)" if 0 < len(counted) < len(runs) else ""
    return f"Seeds {seeds}; commit {commits}; {hours}{partly}."


def _trained(outcomes: Iterable[Outcome]) -> str:
    """For how many rounds, with which learning rates, and local steps where these differ."""
    rounds: dict[float, dict[str, None]] = {}
    rates: dict[float, dict[str, None]] = {}
    steps: dict[float, dict[str, None]] = {}
    for run in (run for outcome in outcomes for run in outcome.runs):
        rounds.setdefault(len(run.records), {})[run.scheme] = None
        if run.config is not None:
            rates.setdefault(run.config.training.learning_rate, {})[run.scheme] = None
            steps.setdefault(run.config.training.local_steps, {})[run.scheme] = None
    told = [_by_value("Rounds", rounds), _by_value("Learning rates", rates)]
    if len(steps) > 1:
        told.append(_by_value("Local steps", steps))
    return " ".join(filter(None, told))


def _by_value(what: str, schemes: Mapping[float, Iterable[str]]) -> str:
    """The value of most schemes, and which have others."""
    usual = max(schemes, key=lambda value: len(list(schemes[value])), default=None)
    others = "; ".join(f"{value:g} ({', '.join(of)})" for value, of in sorted(schemes.items()) if value != usual)
    return "" if usual is None else f"{what}: {usual:g}{f'; {others}' if others else ''}."


def _numbers(varied: str, outcomes: Sequence[Outcome], otherwise: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """Accuracy, the way to two accuracies, and what a round takes: as charged here, and otherwise."""
    first, named = outcomes[0].summary, [varied] if any(outcome.label for outcome in outcomes) else []
    reached = [t for t in first.targets if any(name for name in first.ranked if first.reached(name, t, "delay_s"))]
    targets = sorted({one for one in (first.main_target(), *reached[-1:]) if one is not None})
    header = [*named, "scheme", "accuracy, %", *(f"to {percent(target)}: s / J" for target in targets)]
    header += ["a round: s / J", *(f"{name}: s / J" for name in otherwise)]
    rows = []
    for place, outcome in enumerate(outcomes):
        summary = outcome.summary
        for scheme in summary.runs:
            accuracy = 100 * summary.over_seeds(scheme, "final_accuracy").median
            row = [*([outcome.label] if named else []), scheme, f"{accuracy:.1f}"]
            row += [_way(summary, scheme, target) for target in targets]
            rounds = [_round(one, scheme) for one in (summary, *(other[place].summary for other in otherwise.values()))]
            rows.append([*row, rounds[0], *("=" if one == rounds[0] else one for one in rounds[1:])])
    yield from markdown_table(header, rows, words=len(named) + 1)


def _round(summary: Summary, scheme: str) -> str:
    if scheme not in summary.ranked:
        return "–"
    return " / ".join(number(summary.over_seeds(scheme, name).median) for name in ("delay_s", "energy_j"))


def _way(summary: Summary, scheme: str, target: float) -> str:
    delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
    if not delay.seeds:
        return NOT_REACHED if scheme in summary.ranked else "–"
    return f"{number(delay.median)} / {number(energy.median)}{partly(delay, len(summary.runs[scheme]))}"


def show_found(found: Found, folder: Path) -> tuple[list[Finding], list[str], dict[str, Any]]:
    """Write results.md, results.json and pictures; returns the verdicts, the pictures, and what is in the JSON file."""
    recipe, outcomes = recipe_named(found.recipe), found.outcomes()
    if not outcomes:
        raise AsflError(f"{recipe.name} has no finished run to show")
    findings, otherwise = findings_of(found), {name: other.outcomes() for name, other in found.otherwise.items()}
    pictures = []
    for name, chart in charts(recipe, outcomes, next(iter(otherwise.values()), {})):
        save_figure(chart, folder / f"{name}.png")
        pictures.append(f"{name}.png")
    data: dict[str, Any] = {
        "recipe": recipe.name,
        "command": found.command,
        "worlds": [point.world for point in found.points],
        "findings": [{**asdict(finding), "conclusion": finding.conclusion} for finding in findings],
        "summaries": {
            preset: {outcome.label or preset: outcome.summary.to_json() for outcome in of_preset}
            for preset, of_preset in outcomes.items()
        },
    }
    write_whole(folder / "results.json", (json.dumps(data, indent=2, ensure_ascii=False) + "\n"))
    write_whole(folder / "results.md", recipe_page(found, outcomes, findings, pictures, otherwise))
    return findings, pictures, data


def findings_of(found: Found) -> list[Finding]:
    """What the runs say to each claim, here and under other charges."""
    claims, outcomes = recipe_named(found.recipe).claims, found.outcomes().values()
    findings = [one for of_preset in outcomes for claim in claims for one in claim.check(of_preset)]
    for name, other in found.otherwise.items():
        there = {(one.preset, one.label, one.claim): one.conclusion for one in findings_of(other)}
        findings = [
            replace(one, otherwise={**one.otherwise, name: there[one.preset, one.label, one.claim]}) for one in findings
        ]
    return findings


# ---------------------------------------------------------------------- pictures
def charts(recipe: Recipe, outcomes: Outcomes, recorded: Outcomes) -> Iterator[tuple[str, Chart]]:
    """By name, which begins with the preset if there are several. `recorded`: before these outcomes were recharged."""
    for preset, of_preset in outcomes.items():
        prefix = f"{preset}-" if len(outcomes) > 1 else ""
        subtitle = said_once(outcome.summary.model for outcome in of_preset)
        for name, chart in _charts(recipe, of_preset, recorded.get(preset, [])):
            yield prefix + name, replace(chart, subtitle=subtitle)


def _charts(recipe: Recipe, outcomes: Sequence[Outcome], recorded: Sequence[Outcome]) -> Iterator[tuple[str, Chart]]:
    before = {outcome.label: outcome.runs for outcome in recorded}
    labels, summaries = [outcome.label for outcome in outcomes], [outcome.summary for outcome in outcomes]
    for picture in recipe.pictures:
        if picture == "accuracy" and len(outcomes) == 1:
            yield "accuracy", comparison.quantities(summaries[0], ["final_accuracy"])
        elif picture in VARIED:
            yield picture, comparison.sweep_chart(recipe.varied, labels, summaries, VARIED[picture])
        elif picture == "pareto":
            yield from comparison.fronts(outcomes)
        else:
            most = max(len(outcome.summary.runs) for outcome in outcomes)
            shown = [outcome for outcome in outcomes if len(outcome.summary.runs) > 1 or most == 1]
            for outcome in shown:  # a scheme alone, with another setting, is a point of the front
                prefix = f"{outcome.label}-" if len(shown) > 1 and outcome.label else ""
                for name, chart in _of_one_world(picture, outcome, before.get(outcome.label, ())):
                    yield prefix + name, chart


VARIED = {
    "accuracy": ("final_accuracy", "accuracy_in_our_time"),
    "totals": ("final_accuracy", "total_delay_s", "total_energy_j"),
}
"""Numbers that are drawn against what a recipe varies."""


def _of_one_world(picture: str, outcome: Outcome, before: Sequence[Run]) -> Iterator[tuple[str, Chart]]:
    target = outcome.summary.main_target()
    if picture == "curves":
        yield "accuracy-delay-energy", comparison.headline(outcome.runs, outcome.summary.targets, before)
    elif picture == "way" and target is not None:
        yield "time-to-accuracy", comparison.way(outcome.summary, target)
    elif picture == "ablation" and target is not None:
        yield "ablation", comparison.ablation(outcome.summary, target)
    elif picture == "errors":
        yield "errors-discrepancy", comparison.quantities(outcome.summary, ["packet_error_rate", "discrepancy"])
    elif picture == "resplits":
        yield "resplits", comparison.resplits([run for run in outcome.runs if run.scheme == OURS])
