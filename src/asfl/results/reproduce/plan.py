"""From a recipe to comparisons: which worlds it needs, where they lie, how long they take.

    OUT/worlds/<preset>,<setting>=<value>/    a comparison each, shared by all recipes that need this world
    OUT/<recipe>/                             what a recipe shows

A setting that changes nothing (ρ = 1 where the preset has 1) isn't part of a world's name; so the point is shared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.results.compare import Comparison, plan_comparison
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.outcome import Outcome
from asfl.results.reproduce.recipes import SEEDS, TARGETS, Recipe, Scale, Variant, recipe_named
from asfl.results.summary import Summary, choose_targets
from asfl.runs.files import safe_name

WORLDS = "worlds"
SAMPLES_PER_S = {"cnn": 950, "vgg19": 30, "resnet50": 4.5}
"""Trained per second by one core (Xeon, 2.8 GHz) at the width our presets have. For estimates only."""
DIGITS_SAMPLES_PER_S = 1500.0
START_S, ROUND_S = 4.0, 0.04
"""What a run and a round take besides."""


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
    seeds: int
    folder: Path
    points: tuple[PlannedWorld, ...]

    @property
    def results(self) -> Path:
        return self.folder / self.recipe.name

    def remember(self) -> None:
        for point in self.points:
            point.comparison.remember()

    def outcomes(self) -> dict[str, list[Outcome]]:
        """By preset, in the order of the variants; of what is finished."""
        found: dict[str, list[Outcome]] = {}
        for preset in dict.fromkeys(point.preset for point in self.points):
            runs = [(p, p.comparison.finished_runs()) for p in self.points if p.preset == preset]
            targets = TARGETS.get(preset) or choose_targets([run for _, of_point in runs for run in of_point])
            found[preset] = [
                Outcome(preset, point.variant.label, of_point, Summary.of(of_point, targets))
                for point, of_point in runs
                if of_point
            ]
        return {preset: outcomes for preset, outcomes in found.items() if outcomes}

    def findings(self, outcomes: dict[str, list[Outcome]]) -> Iterator[Finding]:
        for of_preset in outcomes.values():
            for claim in self.recipe.claims:
                yield from claim.check(of_preset)


def plan_recipe(
    recipe: Recipe,
    scale: Scale,
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    seeds: int | None = None,
    data_dir: Path | None = None,
) -> Plan:
    """Check every world before anything is trained or written."""
    if recipe.name == "measured-channel" and not recipe.variants:
        raise AsflError(
            "measured-channel needs measurements: give --trace FILE, once or more (CSV, NPZ, or RENEW/Argos HDF5; "
            "docs/channels.md says where they are from)"
        )
    count = seeds or SEEDS[scale]
    points = []
    for preset in recipe.presets[scale]:
        for variant in recipe.points(scale):
            config = load_config(preset, [*overrides, *variant.overrides]).config
            first = config.scenario.seed
            name = world_name(preset, (*overrides, *variant.overrides))
            there, every = folder / WORLDS / name, range(first, first + count)
            comparison = plan_comparison(config, recipe.schemes, every, there, data_dir, name)
            points.append(PlannedWorld(preset, variant, comparison))
    return Plan(recipe, scale, tuple(overrides), count, folder, tuple(points))


def world_name(preset: str, overrides: Sequence[str]) -> str:
    """A folder name that tells what differs from the preset: settings that change nothing are left out."""
    configs = [load_config(preset, overrides[:count]).config for count in range(len(overrides) + 1)]
    changes = [one for one, (before, after) in zip(overrides, pairwise(configs), strict=True) if before != after]
    settings = (one.partition("=")[::2] for one in changes)
    parts = [Path(preset).stem, *(f"{name.rpartition('.')[2]}={Path(value).name}" for name, value in settings)]
    return safe_name(",".join(parts))


def estimated_seconds(config: Config, cores: int) -> float:
    """Of one run, on a core of its own among so many that share the work."""
    rate = DIGITS_SAMPLES_PER_S if config.data.name == "digits" else SAMPLES_PER_S.get(config.model.architecture, 100)
    samples = config.scenario.clients * config.charged_samples
    return (START_S + config.training.rounds * (ROUND_S + samples / rate)) / cores


def estimated_duration_s(name: str, scale: Scale, cores: int) -> float:
    """Of a whole recipe, with nothing there yet; a recipe on traces counts two files."""
    recipe = recipe_named(name)
    variants = recipe.points(scale) * (2 if name == "measured-channel" else 1)
    configs = (load_config(p, list(v.overrides)).config for p in recipe.presets[scale] for v in variants)
    return SEEDS[scale] * sum(
        estimated_seconds(config.for_scheme(scheme), cores) for config in configs for scheme in recipe.schemes
    )
