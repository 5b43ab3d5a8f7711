"""What a recipe found, written down: a page with claims, verdicts, a picture and a table; all pictures; all numbers."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from asfl.config.errors import AsflError
from asfl.config.units import number, percent
from asfl.results.charts.chart import Chart
from asfl.results.charts.files import save_figure
from asfl.results.charts.runs import ablation, fronts, headline, quantities, resplits, sweep_chart, way
from asfl.results.reproduce.archive import NEXT_COMMAND, Found
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.recipes import Recipe, recipe_named
from asfl.results.summary import Outcome, Summary, said_once
from asfl.results.tables import NOT_REACHED, Table, partly
from asfl.runs.files import write_whole
from asfl.schemes import OURS

Outcomes = Mapping[str, Sequence[Outcome]]
"""By preset."""
ALIKE = 0.06
"""Costs of rounds that differ by less are shown once."""


def show_found(found: Found, folder: Path) -> tuple[list[Finding], list[str], dict[str, Any]]:
    """Write results.md, results.json and pictures; returns the verdicts, the pictures, and what is in the JSON file."""
    recipe, outcomes = recipe_named(found.recipe), found.outcomes()
    if not outcomes:
        raise AsflError(f"{recipe.name} has no finished run to show")
    findings, otherwise = findings_of(found), {name: other.outcomes() for name, other in found.otherwise.items()}
    pictures: dict[str, list[str]] = {}
    for preset, name, chart in charts(recipe, outcomes):
        save_figure(chart, folder / f"{name}.png")
        pictures.setdefault(preset, []).append(f"{name}.png")
    data: dict[str, Any] = {
        "recipe": recipe.name,
        "command": found.command,
        "worlds": [point.world for point in found.points],
        "runs": _origin([outcome for of_preset in outcomes.values() for outcome in of_preset]),
        "findings": [{**asdict(finding), "conclusion": finding.conclusion} for finding in findings],
        "summaries": {
            preset: {outcome.label or preset: outcome.summary.to_json() for outcome in of_preset}
            for preset, of_preset in outcomes.items()
        },
    }
    write_whole(folder / "results.json", (json.dumps(data, indent=2, ensure_ascii=False) + "\n"))
    first = {preset: names[0] for preset, names in pictures.items()}
    write_whole(folder / "results.md", recipe_page(found, outcomes, findings, first, otherwise))
    return findings, [name for names in pictures.values() for name in names], data


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


def _origin(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Which commits trained the runs, at which learning rates, and how long it took."""
    runs = {(o.world, run.scheme, run.seed): run for o in outcomes for run in o.runs}.values()
    rates = {run.scheme: run.config.training.learning_rate for run in runs if run.config is not None}
    commits = sorted({run.commit[:12] for run in runs if run.commit})
    return {"commits": commits, "cpu_hours": sum(run.cpu_s for run in runs) / 3600, "learning_rates": rates}


# ---------------------------------------------------------------------- the page
def recipe_page(
    found: Found,
    outcomes: Outcomes,
    findings: Sequence[Finding],
    pictures: Mapping[str, str],
    otherwise: Mapping[str, Outcomes],
) -> str:
    """`pictures`: by preset, a file beside the page; `otherwise`: outcomes under other charges, by their names."""
    recipe = recipe_named(found.recipe)
    parts = [f"# {recipe.name}", f"{recipe.source[0].upper()}{recipe.source[1:]}: {recipe.shows}."]
    commands = [one for one in found.command.split(NEXT_COMMAND) if not one.endswith("--recharge")]  # as all are
    parts.append(f"`{'`, `'.join(commands)}`")
    for preset, of_preset in outcomes.items():
        if len(outcomes) > 1:
            parts.append(f"## {preset}")
        parts.append("\n".join(_claims([one for one in findings if one.preset == preset])))
        parts.append(f"![{recipe.name}]({pictures[preset]})" if preset in pictures else "")
        others = {name: other[preset] for name, other in otherwise.items()}
        shown = {name: other for name, other in others.items() if _differ(of_preset, other)}
        parts.append(f"{_stated(recipe, of_preset)}\n\n{_numbers(recipe.varied, of_preset, shown).markdown()}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _claims(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each claim; where something is varied, the points by what they say."""
    verdicts: dict[str, dict[str, list[str]]] = {}
    for one in findings:
        if one.label:
            verdicts.setdefault(one.claim, {}).setdefault(one.in_words, []).append(one.label)
        else:
            yield f"- **{one.in_words}**: {one.claim}; {one.here}"
    for claim, labels in verdicts.items():
        said = "; ".join(f"**{verdict}** ({', '.join(points)})" for verdict, points in labels.items())
        yield f"- {said}: {claim}"


def _stated(recipe: Recipe, outcomes: Sequence[Outcome]) -> str:
    """What the numbers of a table are of."""
    seeds = max(len(outcome.summary.seeds) for outcome in outcomes)
    rounds: dict[int, dict[str, None]] = {}
    for run in (run for outcome in outcomes for run in outcome.runs):
        rounds.setdefault(len(run.records), {})[run.scheme] = None
    usual = max(rounds, key=lambda count: len(rounds[count]))
    others = "; ".join(f"{count} of {', '.join(of)}" for count, of in sorted(rounds.items()) if count != usual)
    untrained = sorted({*recipe.schemes} - {run.scheme for outcome in outcomes for run in outcome.runs})
    said = [
        f"{f'Medians of {seeds} seeds' if seeds > 1 else 'One seed'}, {usual} rounds{f' ({others})' if others else ''}",
        said_once(outcome.summary.model for outcome in outcomes),
        f"not trained: {', '.join(untrained)}" if untrained else "",
    ]
    return f"{'; '.join(filter(None, said))}."


def _numbers(varied: str, outcomes: Sequence[Outcome], otherwise: Mapping[str, Sequence[Outcome]]) -> Table:
    """Accuracy, and the way to one or two accuracies; what a round takes, where it is charged otherwise, too."""
    first, named = outcomes[0].summary, [varied] if any(outcome.label for outcome in outcomes) else []
    reached = [t for t in first.targets if any(name for name in first.ranked if first.reached(name, t, "delay_s"))]
    highest = [] if named else reached[-1:]
    targets = sorted({one for one in (first.main_target(), *highest) if one is not None})
    header = [*named, "scheme", "accuracy, %", *(f"to {percent(target)}: s/J" for target in targets)]
    header += ["a round: s/J", *(f"{name}: s/J" for name in otherwise)] if otherwise else []
    rows = []
    for place, outcome in enumerate(outcomes):
        summary = outcome.summary
        for scheme in summary.runs:
            accuracy = 100 * summary.over_seeds(scheme, "final_accuracy").median
            row = [*([outcome.label] if named else []), scheme, f"{accuracy:.1f}"]
            row += [_way(summary, scheme, target) for target in targets]
            if otherwise:
                charged = [summary, *(other[place].summary for other in otherwise.values())]
                row += [_round(one, scheme) for one in charged]
            rows.append(row)
    return Table(header=header, rows=rows, words=len(named) + 1)


def _round(summary: Summary, scheme: str) -> str:
    return "/".join(map(number, _of_a_round(summary, scheme))) if scheme in summary.ranked else "–"


def _of_a_round(summary: Summary, scheme: str) -> list[float]:
    return [summary.over_seeds(scheme, name).median for name in ("delay_s", "energy_j")]


def _differ(outcomes: Sequence[Outcome], others: Sequence[Outcome]) -> bool:
    """Whether some scheme's rounds take much more or less under other charges."""
    pairs = [
        (a.summary, b.summary, scheme) for a, b in zip(outcomes, others, strict=True) for scheme in a.summary.ranked
    ]
    return not all(np.allclose(_of_a_round(a, one), _of_a_round(b, one), rtol=ALIKE, atol=0) for a, b, one in pairs)


def _way(summary: Summary, scheme: str, target: float) -> str:
    delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
    if not delay.seeds:
        return NOT_REACHED if scheme in summary.ranked else "–"
    return f"{number(delay.median)}/{number(energy.median)}{partly(delay, len(summary.runs[scheme]))}"


# ---------------------------------------------------------------------- pictures
def charts(recipe: Recipe, outcomes: Outcomes) -> Iterator[tuple[str, str, Chart]]:
    """With its preset and its name, which begins with the preset if there are several; the page shows the first one."""
    for preset, of_preset in outcomes.items():
        prefix = f"{preset}-" if len(outcomes) > 1 else ""
        subtitle = said_once(outcome.summary.model for outcome in of_preset)
        for name, chart in _charts(recipe, of_preset):
            yield preset, prefix + name, replace(chart, subtitle=subtitle)


def _charts(recipe: Recipe, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Chart]]:
    labels, summaries = [outcome.label for outcome in outcomes], [outcome.summary for outcome in outcomes]
    for picture in recipe.pictures:
        if picture == "accuracy" and len(outcomes) == 1:
            yield "accuracy", quantities(summaries[0], ["final_accuracy"])
        elif picture in VARIED:
            yield picture, sweep_chart(recipe.varied, labels, summaries, VARIED[picture])
        elif picture == "pareto":
            yield from fronts(outcomes)
        else:
            most = max(len(outcome.summary.runs) for outcome in outcomes)
            shown = [outcome for outcome in outcomes if len(outcome.summary.runs) > 1 or most == 1]
            for outcome in shown:  # a scheme alone, with another setting, is a point of the front
                prefix = f"{outcome.label}-" if len(shown) > 1 and outcome.label else ""
                for name, chart in _of_one_world(picture, outcome):
                    yield prefix + name, chart


VARIED = {
    "accuracy": ("final_accuracy", "accuracy_in_our_time"),
    "totals": ("final_accuracy", "total_delay_s", "total_energy_j"),
}
"""Numbers that are drawn against what a recipe varies."""


def _of_one_world(picture: str, outcome: Outcome) -> Iterator[tuple[str, Chart]]:
    target = outcome.summary.main_target()
    if picture == "curves":
        yield "accuracy-delay-energy", headline(outcome.runs, outcome.summary.targets)
    elif picture == "way" and target is not None:
        yield "time-to-accuracy", way(outcome.summary, target)
    elif picture == "ablation" and target is not None:
        yield "ablation", ablation(outcome.summary, target)
    elif picture == "errors":
        yield "errors-discrepancy", quantities(outcome.summary, ["packet_error_rate", "discrepancy"])
    elif picture == "resplits":
        yield "resplits", resplits([run for run in outcome.runs if run.scheme == OURS])
