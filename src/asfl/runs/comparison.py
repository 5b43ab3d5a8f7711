"""Folders of many runs, resumable as a whole: a comparison of schemes in one world, a sweep over many worlds.

compare.json                       the resolved configuration, all schemes and seeds so far
<scheme>-seed<k>/                  a run folder each
summary.json, *.png

sweep.json                         which fields take which values
data.dirichlet_alpha=0.1/          a comparison for each combination
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from asfl.config import Config, load_config, recorded_config
from asfl.config.errors import AsflError
from asfl.costs.round import Decision
from asfl.costs.world import World
from asfl.runs.estimate import check_count
from asfl.runs.files import is_untouched, read_sealed_json, safe_name, sealed_json, write_whole
from asfl.runs.folder import check_sources, is_finished
from asfl.runs.jobs import Job, run_name
from asfl.runs.manifest import MOST_THREADS, first_difference, read_manifest, run_to_go_on_with, with_rounds
from asfl.runs.play import with_seed
from asfl.runs.records import read_records
from asfl.runs.run import check_training
from asfl.schemes import OURS, check_scheme_settings, scheme_named
from asfl.schemes.base import borrows

COMPARE_FILE, SWEEP_FILE = "compare.json", "sweep.json"
FORMAT, SWEEP_FORMAT = 3, 1
SLOWEST = ("sl", "asfl-joint")
"""Clients in sequence; the costlier solver. Started first, so that no long run is left over at the end."""


@dataclass(frozen=True)
class Comparison:
    """A folder of runs: every scheme with every seed. The seed of the configuration has no meaning here."""

    folder: Path
    config: Config
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    point: str = ""
    """Which point of a sweep it is, if any."""
    threads: Mapping[str, int] = field(default_factory=dict)
    """Of each run, by the name of its folder, as it was planned by the first command that was to train it."""
    elsewhere: frozenset[tuple[str, int]] = frozenset()
    """Schemes and seeds whose finished runs are kept somewhere else and needn't be trained here."""

    @property
    def num_runs(self) -> int:
        return len(self.schemes) * len(self.seeds)

    def run_folder(self, scheme: str, seed: int) -> Path:
        return self.folder / f"{scheme}-seed{seed}"

    def left(self) -> dict[str, tuple[str, int]]:
        """Scheme and seed of every run that isn't finished, by its name.

        Seed after seed, so that all schemes can soon be compared; slow schemes first.
        """
        order = sorted(self.schemes, key=lambda scheme: scheme not in SLOWEST)
        return {
            run_name(scheme, seed, self.point): (scheme, seed)
            for seed, scheme in product(self.seeds, order)
            if not self._is_done(scheme, seed) and (scheme, seed) not in self.elsewhere
        }

    def jobs(self, data_dir: Path | None = None) -> list[Job]:
        """What can be done now of what is left; the rest waits for runs that it borrows from."""
        found = []
        for scheme, seed in self.left().values():
            recorded: tuple[Decision, ...] = ()
            if borrows(scheme_named(scheme)):
                if self._is_done(OURS, seed):
                    recorded = tuple(record.decision for record in read_records(self.run_folder(OURS, seed)))
                elif OURS in self.schemes:
                    continue
            config, folder = with_seed(self.config, seed), self.run_folder(scheme, seed)
            threads = self.threads.get(folder.name, 1)
            found.append(Job(scheme, seed, config, folder, data_dir, recorded, threads, self.point))
        return found

    def kept(self, elsewhere: Collection[tuple[str, int]]) -> "Comparison":
        """Without what is kept elsewhere; but who borrows from ASFL here needs all that it decided."""
        lending = {
            seed
            for scheme, seed in product(self.schemes, self.seeds)
            if borrows(scheme_named(scheme)) and (scheme, seed) not in elsewhere
        }
        there = frozenset((scheme, seed) for scheme, seed in elsewhere if scheme != OURS or seed not in lending)
        return replace(self, elsewhere=there)

    def with_threads(self, threads: int) -> "Comparison":
        """Planned with so many threads for each run that wasn't planned before."""
        folders = [self.run_folder(scheme, seed).name for seed in self.seeds for scheme in self.schemes]
        return replace(self, threads={name: self.threads.get(name, threads) for name in folders})

    def finished(self) -> list[Path]:
        """Folders of finished runs, in the order of schemes, then seeds."""
        every = product(self.schemes, self.seeds)
        return [self.run_folder(scheme, seed) for scheme, seed in every if self._is_done(scheme, seed)]

    def check_sources(self, data_dir: Path | None) -> None:
        """Refuse runs, finished or not, of other data than are there now."""
        for scheme, seed in product(self.schemes, self.seeds):
            folder = self.run_folder(scheme, seed)
            try:
                manifest = read_manifest(folder)
            except AsflError:  # nothing is there yet; or training will say what is wrong
                continue
            config, where = with_seed(self.config, seed), manifest.data_dir(data_dir)
            check_sources(folder, manifest, config, where, needed=False)

    def _is_done(self, scheme: str, seed: int) -> bool:
        return is_finished(self.run_folder(scheme, seed), self.rounds_of(scheme))

    def rounds_of(self, scheme: str) -> int:
        return self.config.for_scheme(scheme).training.rounds

    def remember(self) -> None:
        """Write down what this comparison is, beside what was asked for in earlier calls."""
        before = read_comparison(self.folder) if (self.folder / COMPARE_FILE).exists() else self
        data = {
            "format": FORMAT,
            "schemes": list(dict.fromkeys([*before.schemes, *self.schemes])),
            "seeds": sorted({*before.seeds, *self.seeds}),
            "threads": {**self.threads, **before.threads},
            "config": with_rounds(before.config, self.config.training.rounds).model_dump(mode="json"),
        }
        write_whole(self.folder / COMPARE_FILE, sealed_json(data))


class _ComparisonFile(BaseModel):
    """compare.json, value by value."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: int
    schemes: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}(:[A-Za-z0-9_.,=-]{1,100})?$")]]
    seeds: list[Annotated[int, Field(ge=0)]]
    threads: dict[str, Annotated[int, Field(ge=1, le=MOST_THREADS)]]
    config: dict[str, JsonValue]


def read_comparison(folder: Path) -> Comparison:
    """The comparison of a folder, with all schemes and seeds it ever had; a clear error for anything else."""
    file = folder / COMPARE_FILE
    if not file.is_file():
        raise AsflError(f"{folder} is not the folder of a comparison: it has no {COMPARE_FILE}")
    try:
        read = _ComparisonFile.model_validate(read_sealed_json(file, FORMAT))
        config = recorded_config(read.config)
        return Comparison(folder, config, tuple(read.schemes), tuple(read.seeds), threads=read.threads)
    except (ValueError, RecursionError) as error:
        text = str(error).partition("\n")[0]
        raise AsflError(f"{file} doesn't describe a comparison ({type(error).__name__}: {text})") from None


def plan_comparison(
    config: Config,
    schemes: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    data_dir: Path | None = None,
    point: str = "",
) -> Comparison:
    """Check everything that can be checked before the first process starts; write nothing."""
    check_count(len(schemes) * len(seeds), config.training.rounds, f"{len(schemes)} schemes × {len(seeds):,} seeds")
    check_scheme_settings(config)
    for name in schemes:
        scheme_named(name)
    if folder.exists() and not folder.is_dir():
        raise AsflError(f"{folder} is a file; give --out the name of a folder")
    threads: Mapping[str, int] = {}
    before = None
    if (folder / COMPARE_FILE).exists():
        before = read_comparison(folder)
        threads = before.threads
        rounds = max(before.config.training.rounds, config.training.rounds)  # it can be extended
        difference = first_difference(with_rounds(with_seed(before.config, config.scenario.seed), rounds), config)
        if difference is not None:
            raise AsflError(f"{folder} holds a comparison in another world ({difference}); give another --out")
    elif not is_untouched(folder):
        raise AsflError(f"{folder} isn't empty and isn't a comparison; give --out the name of a new folder")
    every = tuple(dict.fromkeys(schemes)), tuple(dict.fromkeys(seeds))
    comparison = Comparison(folder, config, *every, point, threads)
    comparison.check_sources(data_dir)
    if comparison.left():
        World.of(config)  # a trace or a profile may be missing
        check_training(config, data_dir)
    if before is not None and before.config.training.rounds < config.training.rounds:
        for scheme, seed in comparison.left().values():
            if not borrows(scheme_named(scheme)):  # those wait for what ASFL decides
                run_to_go_on_with(comparison.run_folder(scheme, seed), with_seed(config, seed), scheme)
    return comparison


# ---------------------------------------------------------------------- many worlds
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
            "format": SWEEP_FORMAT,
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
        comparison = plan_comparison(config, schemes, every, folder / name, data_dir, name)
        points.append(Point(settings, comparison))
    return Sweep(folder, preset, tuple(overrides), tuple(axes), tuple(points))


def point_name(settings: Sequence[tuple[str, str]]) -> str:
    """A folder name."""
    return safe_name(",".join(f"{field}={value}" for field, value in settings))
