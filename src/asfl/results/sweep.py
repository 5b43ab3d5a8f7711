"""Many comparisons: any fields of the configuration, each with several values, times schemes, times seeds.

    sweep.json                         what is swept
    data.dirichlet_alpha=0.1/          a comparison each, as `asfl compare` leaves it
    data.dirichlet_alpha=10/

All runs of all points go through one pool of processes. A finished run is never repeated and a failed one doesn't stop
the others; the same command again does what is left.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.results.compare import Comparison, plan_comparison
from asfl.runs.estimate import check_count
from asfl.runs.files import is_untouched, safe_name, write_whole

SWEEP_FILE = "sweep.json"
FORMAT = 1


@dataclass(frozen=True)
class Axis:
    """A field and the values it takes, as texts that `--set` understands."""

    field: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """From "data.dirichlet_alpha=0.1,1,10"."""
        field, _, values = text.partition("=")
        found = tuple(dict.fromkeys(value.strip() for value in values.split(",") if value.strip()))
        if not field or not found:
            raise AsflError(f"--over {text}: give a field and its values, such as data.dirichlet_alpha=0.1,1,10")
        if field.strip() == "scenario.seed":
            raise AsflError("--over scenario.seed: use --seeds, which averages over them")
        return cls(field.strip(), found)


@dataclass(frozen=True)
class Point:
    """One combination of values, and the comparison at it."""

    settings: tuple[tuple[str, str], ...]
    """(field, value) per axis."""
    comparison: Comparison


@dataclass(frozen=True)
class Sweep:
    """All points of a sweep, in a folder."""

    folder: Path
    preset: str
    overrides: tuple[str, ...]
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]

    @property
    def comparisons(self) -> list[Comparison]:
        return [point.comparison for point in self.points]

    def remember(self) -> None:
        data = {
            "format": FORMAT,
            "preset": self.preset,
            "set": list(self.overrides),
            "over": {axis.field: list(axis.values) for axis in self.axes},
        }
        write_whole(self.folder / SWEEP_FILE, json.dumps(data, indent=2))  # first: it makes this a sweep
        for point in self.points:
            point.comparison.remember()


def plan_sweep(
    preset: str,
    overrides: Sequence[str],
    axes: Sequence[Axis],
    schemes: Sequence[str],
    seeds: int,
    folder: Path,
    data_dir: Path | None = None,
    *,
    changed_data: bool = False,
) -> Sweep:
    """Check every point before anything is trained or written."""
    if not axes:
        raise AsflError("a sweep needs at least one --over FIELD=VALUE,VALUE")
    fields = [axis.field for axis in axes]
    if len(set(fields)) < len(fields):
        raise AsflError(f"--over names a field twice: {', '.join(fields)}")
    if folder.exists() and not folder.is_dir():
        raise AsflError(f"{folder} is a file; give --out the name of a folder")
    if not (folder / SWEEP_FILE).exists() and not is_untouched(folder):
        raise AsflError(f"{folder} isn't empty and isn't a sweep; give --out the name of a new folder")
    combinations = math.prod(len(axis.values) for axis in axes)
    check_count(
        combinations * len(schemes) * seeds,
        load_config(preset, overrides).config.training.rounds,
        f"{combinations:,} combinations of values × {len(schemes)} schemes × {seeds:,} seeds",
    )
    points = []
    for values in product(*(axis.values for axis in axes)):
        settings = tuple(zip(fields, values, strict=True))
        config = load_config(preset, [*overrides, *(f"{field}={value}" for field, value in settings)]).config
        first = config.scenario.seed
        name = point_name(settings)
        every = range(first, first + seeds)
        comparison = plan_comparison(config, schemes, every, folder / name, data_dir, name, changed_data=changed_data)
        points.append(Point(settings, comparison))
    return Sweep(folder, preset, tuple(overrides), tuple(axes), tuple(points))


def point_name(settings: Sequence[tuple[str, str]]) -> str:
    """A folder name."""
    return safe_name(",".join(f"{field}={value}" for field, value in settings))
