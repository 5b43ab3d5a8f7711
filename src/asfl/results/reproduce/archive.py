"""All runs behind some recipes as one small file, from which every page and picture can be drawn again.

An xz file of JSON lines: first the recipes, their commands and points, then one run per line, its rounds by column.
What neither a page nor a recharge needs is left out: queues, losses (`asfl.runs.records.to_columns`).
"""

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from asfl.config import recorded_config
from asfl.config.errors import AsflError
from asfl.config.files import open_to_read
from asfl.costs.world import Budgets
from asfl.results.curves import Run
from asfl.results.summary import Outcome, Summary, choose_targets
from asfl.runs.files import write_whole
from asfl.runs.records import from_columns, to_columns

FORMAT = 1
LONGEST_LINE = 50_000_000
NEXT_COMMAND = "\n$ "
"""Between two commands that found different points of a recipe; so a page shows them."""
RunKey = tuple[str, str, int]
"""World, scheme, seed."""


@dataclass(frozen=True)
class Point:
    """All finished runs of a recipe in one world."""

    preset: str
    label: str
    world: str
    """The name of the world's folder."""
    runs: Sequence[Run]


@dataclass(frozen=True)
class Found:
    """What a recipe has found: all that its page and its pictures are made of."""

    recipe: str
    command: str
    """That found it."""
    points: Sequence[Point]
    otherwise: Mapping[str, "Found"] = field(default_factory=dict)
    """The same runs under other charges, by what these are called."""

    def outcomes(self) -> dict[str, list[Outcome]]:
        """By preset, in the order of the variants; all points of a preset have the same target accuracies."""
        found: dict[str, list[Outcome]] = {}
        for preset in dict.fromkeys(point.preset for point in self.points if point.runs):
            points = [point for point in self.points if point.preset == preset and point.runs]
            targets = choose_targets([run for point in points for run in point.runs])
            found[preset] = [Outcome(preset, p.label, p.runs, Summary.of(p.runs, targets), p.world) for p in points]
        return found


def runs_of(found: Iterable[Found]) -> dict[RunKey, Run]:
    """All runs that some recipes look at, each once; of two that are of the same world, scheme and seed, the last."""
    return {(point.world, *_key(run)): run for one in found for point in one.points for run in point.runs}


def joined(before: Sequence[Found], now: Sequence[Found]) -> list[Found]:
    """What an archive holds after some recipes found something: no run that it had is lost.

    A run that was trained again is the new one wherever it is looked at. Points of a recipe that weren't asked for this
    time, such as another trace, stay beside the new ones.
    """
    fresh = runs_of(now)
    runs, charged = {**runs_of(before), **fresh}, _otherwise(before)
    recipes = {one.recipe: one for one in before}
    recipes |= {one.recipe: _beside(recipes.get(one.recipe), one) for one in now}
    return [with_runs(one, runs, {name: {**of, **fresh} for name, of in charged.items()}) for one in recipes.values()]


def with_runs(found: Found, runs: Mapping[RunKey, Run], charged: Mapping[str, Mapping[RunKey, Run]]) -> Found:
    """The same points with these runs, where there are any; and with those under other charges beside them."""

    def points(of: Mapping[RunKey, Run]) -> list[Point]:
        return [replace(p, runs=[of.get((p.world, *_key(run)), run) for run in p.runs]) for p in found.points]

    here = replace(found, points=points(runs), otherwise={})
    return replace(here, otherwise={name: replace(here, points=points({**runs, **of})) for name, of in charged.items()})


def _otherwise(found: Sequence[Found]) -> dict[str, dict[RunKey, Run]]:
    names = dict.fromkeys(name for one in found for name in one.otherwise)
    return {name: runs_of(one.otherwise[name] for one in found if name in one.otherwise) for name in names}


def _beside(before: Found | None, now: Found) -> Found:
    asked, worlds = {(point.preset, point.label) for point in now.points}, {point.world for point in now.points}
    others = [
        point
        for point in ([] if before is None else before.points)
        if (point.preset, point.label) not in asked and point.world not in worlds  # else it has another name now
    ]
    if before is None or not others:
        return now
    commands = dict.fromkeys([now.command, *before.command.split(NEXT_COMMAND)])
    return replace(now, command=NEXT_COMMAND.join(commands), points=[*now.points, *others])


def write_archive(file: Path, found: Sequence[Found]) -> int:
    """Write all runs that some recipes look at, each once; returns how many."""
    runs = runs_of(found)
    charged = _otherwise(found)
    recipes = [
        {
            "recipe": one.recipe,
            "command": one.command,
            "points": [
                {
                    **{name: getattr(p, name) for name in ("preset", "label", "world")},
                    "runs": [_key(run) for run in p.runs],
                }
                for p in one.points
            ],
        }
        for one in found
    ]
    head = {"format": FORMAT, "recipes": recipes}
    lines = [head]
    for key, run in runs.items():
        line = {"world": key[0], **_run_as_json(run)}
        others = {name: _difference(_run_as_json(of[key]), line) for name, of in charged.items() if key in of}
        lines.append({**line, "otherwise": others} if others else line)
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    write_whole(file, lzma.compress(text.encode(), preset=9))
    return len(runs)


def read_archive(file: Path) -> list[Found]:
    try:
        head, *lines = _lines(file)
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']}, not {FORMAT}")
        runs, charged = dict[RunKey, Run](), dict[str, dict[RunKey, Run]]()
        for line in lines:
            key = line["world"], line["scheme"], line["seed"]
            runs[key] = _run_of_json(line)
            for name, other in line.get("otherwise", {}).items():
                rounds = {**line["rounds"], **other["rounds"]}
                charged.setdefault(name, {})[key] = _run_of_json({**line, **other, "rounds": rounds})
        recipes = head["recipes"]
        return [with_runs(Found(one["recipe"], one["command"], _points(one, runs)), {}, charged) for one in recipes]
    except OSError as error:
        raise AsflError(f"can't read {file}: {error.strerror or error}") from None
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise AsflError(f"{file} is not an archive of runs ({type(error).__name__}: {reason})") from None


def _points(recipe: dict[str, Any], runs: Mapping[RunKey, Run]) -> list[Point]:
    return [
        Point(p["preset"], p["label"], p["world"], [runs[p["world"], scheme, seed] for scheme, seed in p["runs"]])
        for p in recipe["points"]
    ]


def _difference(run: dict[str, Any], to: dict[str, Any]) -> dict[str, Any]:
    """What the same run has otherwise under other charges."""
    rounds = {name: column for name, column in run["rounds"].items() if column != to["rounds"][name]}
    return {"budgets": run["budgets"], "config": run["config"], "rounds": rounds}


def _lines(file: Path) -> Iterator[Any]:
    with open_to_read(file) as packed, lzma.open(packed) as stream:
        while line := stream.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise ValueError("a line without end")
            yield json.loads(line)


def _key(run: Run) -> tuple[str, int]:
    return run.scheme, run.seed


def _run_as_json(run: Run) -> dict[str, Any]:
    budgets = None if run.budgets is None else [run.budgets.delay_s, run.budgets.energy_j]
    config = None if run.config is None else run.config.model_dump(mode="json")
    of_run = {"scheme": run.scheme, "seed": run.seed, "commit": run.commit, "cpu_s": run.cpu_s}
    return {**of_run, "budgets": _finite(budgets), "config": config, "rounds": to_columns(run.records)}


def _run_of_json(line: dict[str, Any]) -> Run:
    budgets = line["budgets"] and Budgets(*(np.inf if one is None else one for one in line["budgets"]))
    config = line["config"] and recorded_config(line["config"])
    records = from_columns(line["rounds"])
    return Run(line["scheme"], line["seed"], records, budgets, config, line["commit"], line["cpu_s"])


def _finite(values: Iterable[float] | None) -> list[float | None] | None:
    return None if values is None else [one if np.isfinite(one) else None for one in values]
