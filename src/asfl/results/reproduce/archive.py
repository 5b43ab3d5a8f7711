"""All runs behind some recipes as one small file, from which every page and picture can be drawn again.

An xz file of JSON lines: first the recipes, their commands and points, then one run per line, its rounds by column.
Costs and powers have six digits, and what neither a page nor a recharge needs is left out: queues, losses. What is left
out is read as nothing, or as infinite where there is no nothing.
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
from asfl.costs.budgets import Budgets
from asfl.results.curves import Run
from asfl.results.summary import Outcome, Summary, choose_targets
from asfl.runs.files import write_whole
from asfl.runs.records import RoundRecord

FORMAT = 1
LONGEST_LINE = 50_000_000
_OPTIONAL = ("synced", "bits", "batch", "rb_owner")
_KEPT = (
    "round", "cut", "rb_count", "packet_error_rate", "arrived", "delay_s", "resplit_delay_s", "energy_j",
    "total_delay_s", "total_energy_j", "spread", "discrepancy", "accuracy", "client_accuracy", "uncalibrated_accuracy",
    "tx_power_w", *_OPTIONAL,
)  # fmt: skip
_LEFT_OUT = (
    "uplink_stage_delay_s", "server_stage_delay_s", "delay_queue", "train_loss", "update_scale", "resplit_shift",
    "test_loss",
)  # fmt: skip
_LEFT_OUT_BY_CLIENT = ("resplit_energy_j", "energy_queue", "participation_queue", "update_norm2")
ACCURACIES = ("accuracy", "client_accuracy", "uncalibrated_accuracy")
"""All digits are kept, since a target is reached or not."""
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
    runs = {**runs_of(before), **runs_of(now)}
    recipes = {one.recipe: one for one in before}
    recipes |= {one.recipe: _beside(recipes.get(one.recipe), one) for one in now}
    return [
        replace(one, points=[replace(p, runs=[runs[p.world, *_key(run)] for run in p.runs]) for p in one.points])
        for one in recipes.values()
    ]


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
    lines = [head, *({"world": world, **_run_as_json(run)} for (world, _, _), run in runs.items())]
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    write_whole(file, lzma.compress(text.encode(), preset=9))
    return len(runs)


def read_archive(file: Path) -> list[Found]:
    try:
        head, *lines = _lines(file)
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']}, not {FORMAT}")
        runs = {(line["world"], line["scheme"], line["seed"]): _run_of_json(line) for line in lines}
        return [
            Found(
                one["recipe"],
                one["command"],
                [
                    Point(
                        p["preset"],
                        p["label"],
                        p["world"],
                        [runs[p["world"], scheme, seed] for scheme, seed in p["runs"]],
                    )
                    for p in one["points"]
                ],
            )
            for one in head["recipes"]
        ]
    except OSError as error:
        raise AsflError(f"can't read {file}: {error.strerror or error}") from None
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise AsflError(f"{file} is not an archive of runs ({type(error).__name__}: {reason})") from None


def _lines(file: Path) -> Iterator[Any]:
    with lzma.open(file, "rb") as stream:
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
    plain = [json.loads(record.to_line()) for record in run.records]
    rounds = {name: [_short(name, record.get(name)) for record in plain] for name in _KEPT}
    return {**of_run, "budgets": _finite(budgets), "config": config, "rounds": rounds}


def _run_of_json(line: dict[str, Any]) -> Run:
    budgets = line["budgets"] and Budgets(*(np.inf if one is None else one for one in line["budgets"]))
    config = line["config"] and recorded_config(line["config"])
    kept = [name for name in _KEPT if name in line["rounds"]]  # earlier archives have no powers
    rows = zip(*(line["rounds"][name] for name in kept), strict=True)
    records = [_record(dict(zip(kept, row, strict=True))) for row in rows]
    return Run(line["scheme"], line["seed"], records, budgets, config, line["commit"], line["cpu_s"])


def _record(kept: dict[str, Any]) -> RoundRecord:
    clients = len(kept["rb_count"])
    nothing = {**dict.fromkeys(_LEFT_OUT), **dict.fromkeys(_LEFT_OUT_BY_CLIENT, [None] * clients)}
    known = {name: value for name, value in kept.items() if name not in _OPTIONAL or value is not None}
    return RoundRecord.from_line(json.dumps({**nothing, "tx_power_w": [0.0] * clients, **known}).encode())


def _short(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_short(name, one) for one in value]
    rounded = isinstance(value, float) and name not in ACCURACIES
    return float(f"{value:.6g}") if rounded else value


def _finite(values: Iterable[float] | None) -> list[float | None] | None:
    return None if values is None else [one if np.isfinite(one) else None for one in values]
