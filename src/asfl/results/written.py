"""What a recipe found, written down: a page, its pictures, and the same for programs."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from asfl.config.errors import AsflError
from asfl.results.figures.figure import save_figure
from asfl.results.figures.reproduce import recipe_figures
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.outcome import Found
from asfl.results.reproduce.page import recipe_page
from asfl.results.reproduce.recipes import recipe_named
from asfl.runs.files import write_whole


def show_found(found: Found, folder: Path) -> tuple[list[Finding], list[str], dict[str, Any]]:
    """Write results.md, results.json and pictures; returns the verdicts, the pictures, and what is in the JSON file."""
    recipe, outcomes = recipe_named(found.recipe), found.outcomes()
    if not outcomes:
        raise AsflError(f"{recipe.name} has no finished run to show")
    findings, otherwise = findings_of(found), {name: other.outcomes() for name, other in found.otherwise.items()}
    pictures = []
    for name, figure in recipe_figures(recipe, outcomes, next(iter(otherwise.values()), {})):
        save_figure(figure, folder / f"{name}.png")
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
