"""From a recipe to comparisons: which worlds it needs and where they lie.

    OUT/worlds/<preset>,<setting>=<value>/    a comparison each, shared by all recipes that need this world
    OUT/<recipe>/                             what a recipe shows

A setting that changes nothing (ρ = 1 where the preset has 1) isn't part of a world's name; so the point is shared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.results.curves import Run, finished_runs
from asfl.results.reproduce.archive import Found, Point, RunKey
from asfl.results.reproduce.recipes import MORE_SEEDS, SEEDS, Recipe, Scale, Variant
from asfl.runs.comparison import Comparison, plan_comparison
from asfl.runs.files import safe_name
from asfl.runs.manifest import first_difference
from asfl.runs.play import with_seed

WORLDS = "worlds"


@dataclass(frozen=True)
class PlannedWorld:
    """One world of a recipe."""

    preset: str
    variant: Variant
    comparison: Comparison


@dataclass(frozen=True)
class Plan:
    """A recipe at a scale, in a folder."""

    recipe: Recipe
    scale: Scale
    overrides: tuple[str, ...]
    seeds: int | None
    """None: as many as the scale and the preset have."""
    tuned: Mapping[str, Path]
    """By preset: the file that stands for it."""
    folder: Path
    points: tuple[PlannedWorld, ...]

    @property
    def results(self) -> Path:
        return self.folder / self.recipe.name

    def remember(self) -> None:
        for point in self.points:
            point.comparison.remember()

    def moved(self, archived: Sequence[Found]) -> Iterator[str]:
        """In words: points of this recipe that an archive shows in other worlds, which would be lost."""
        worlds = {
            (p.preset, p.label): p.world for one in archived if one.recipe == self.recipe.name for p in one.points
        }
        for point in self.points:
            here = point.comparison.folder.name
            there = worlds.get((point.preset, point.variant.label), here)
            if there != here:
                yield f"{self.recipe.name} in the world {there}, not {here}"

    def outdated(self, archived: Mapping[RunKey, Run]) -> dict[RunKey, str]:
        """Runs from elsewhere that aren't those that would be trained here, and how their configurations differ."""
        differences: dict[RunKey, str] = {}
        for one in (point.comparison for point in self.points):
            for scheme, seed in product(one.schemes, one.seeds):
                key = one.folder.name, scheme, seed
                run = archived.get(key)
                if run is not None and run.config is not None:
                    difference = first_difference(run.config, with_seed(one.config, seed).for_scheme(scheme))
                    if difference is not None:
                        differences[key] = difference
        return differences

    def found(self, archived: Mapping[RunKey, Run] | None = None) -> Found:
        """Of what is finished, here or else in an archive."""
        points, there = [], archived or {}
        for point in self.points:
            one, world = point.comparison, point.comparison.folder.name
            here = {(run.scheme, run.seed): run for run in finished_runs(one)}
            either = (here.get(key) or there.get((world, *key)) for key in product(one.schemes, one.seeds))
            points.append(Point(point.preset, point.variant.label, world, [run for run in either if run is not None]))
        return Found(self.recipe.name, self.command(), points)

    def command(self) -> str:
        points = self.recipe.points(self.scale) if self.recipe.name == "measured-channel" else ()
        traces = "".join(f" --trace {point.label}" for point in points)
        seeds = f" --seeds {self.seeds}" if self.seeds else ""
        tuned = "".join(f" --tuned {file.name}" for file in self.tuned.values())
        settings = "".join(f" --set {one}" for one in self.overrides)
        return f"asfl reproduce {self.recipe.name} --scale {self.scale}{traces}{seeds}{tuned}{settings}"


def plan_recipe(
    recipe: Recipe,
    scale: Scale,
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    seeds: int | None = None,
    data_dir: Path | None = None,
    tuned: Sequence[Path] = (),
) -> Plan:
    """Check every world before anything is trained or written. `tuned`: files such as docs/results/tuned has."""
    if recipe.name == "measured-channel" and not recipe.variants:
        raise AsflError(
            "measured-channel needs measurements: give --trace FILE, once or more (CSV or NPZ; "
            "docs/channels.md says where they are from)"
        )
    files = {load_config(file).preset: file for file in tuned}
    points = []
    for preset in recipe.presets[scale]:
        for variant in recipe.points(scale):
            config = load_config(files.get(preset, preset), [*overrides, *variant.overrides]).config
            first, count = config.scenario.seed, seeds or usual_seeds(preset, scale)
            name = world_name(preset, (*overrides, *variant.overrides))
            there, every = folder / WORLDS / name, range(first, first + count)
            comparison = plan_comparison(config, variant.schemes or recipe.schemes, every, there, data_dir, name)
            points.append(PlannedWorld(preset, variant, comparison))
    used = {preset: file for preset, file in files.items() if preset in recipe.presets[scale]}
    return Plan(recipe, scale, tuple(overrides), seeds, used, folder, tuple(points))


def usual_seeds(preset: str, scale: Scale) -> int:
    return max(SEEDS[scale], MORE_SEEDS.get(preset, 0))


def world_name(preset: str, overrides: Sequence[str]) -> str:
    """A folder name that tells what differs from the preset: settings that change nothing are left out."""
    configs = [load_config(preset, overrides[:count]).config for count in range(len(overrides) + 1)]
    changes = [one for one, (before, after) in zip(overrides, pairwise(configs), strict=True) if before != after]
    settings = (one.partition("=")[::2] for one in changes)
    parts = [Path(preset).stem, *(f"{name.rpartition('.')[2]}={Path(value).name}" for name, value in settings)]
    return safe_name(",".join(parts))
