"""The recipes: section V-B of the paper, experiment by experiment, and some of our own; and what they need.

Each says which schemes meet in which worlds, what is drawn, and what the paper claims about it.

    OUT/worlds/<preset>,<setting>=<value>/    a comparison each, shared by all recipes that need this world
    OUT/<recipe>/                             what a recipe shows

A setting that changes nothing (ρ = 1 where the preset has 1) isn't part of a world's name; so the point is shared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Literal, get_args

from asfl.config import load_config
from asfl.config.errors import AsflError, nearest, short
from asfl.results.curves import Resource, Run, finished_runs
from asfl.results.reproduce.archive import Found, Point, RunKey
from asfl.results.reproduce.claims import (
    BEST,
    Claim,
    Lower,
    MoreAccurate,
    MostAccurate,
    MovesLessLater,
    NeverBehind,
    Rises,
    Saves,
    ShareOfDelay,
)
from asfl.runs.comparison import Comparison, plan_comparison
from asfl.runs.files import safe_name
from asfl.runs.manifest import first_difference
from asfl.runs.play import with_seed
from asfl.schemes import ABLATION, CEILING, OURS, PLUS, SAME_TOOLS

Scale = Literal["demo", "evidence", "paper"]
Picture = Literal["curves", "way", "accuracy", "totals", "errors", "resplits", "pareto", "ablation"]

BASELINES = ("fedavg", "sl-best", "sfl-best", "acc-sfl", "epsl")
"""Each at its best: SL and SFL with their fastest cut, where the paper draws one at random."""
SEEDS: Mapping[Scale, int] = {"demo": 1, "evidence": 3, "paper": 3}
MORE_SEEDS: Mapping[str, int] = {"small-cifar10": 5}
"""By preset: those that are quick enough for more."""


@dataclass(frozen=True)
class Variant:
    """One value of what a recipe varies."""

    label: str
    overrides: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    """Those that meet here; empty: all of the recipe's."""


@dataclass(frozen=True)
class Recipe:
    """One experiment."""

    name: str
    paper: str
    """Where it is in the paper; "–": nowhere."""
    shows: str
    schemes: tuple[str, ...]
    claims: Sequence[Claim]
    pictures: Sequence[Picture]
    presets: Mapping[Scale, tuple[str, ...]]
    varied: str = ""
    """What is varied, in words; empty if nothing is."""
    variants: Mapping[Scale, tuple[Variant, ...]] = field(default_factory=dict)
    """Nothing given: one point, the preset as it is."""

    @property
    def source(self) -> str:
        return "not in the paper" if self.paper == "–" else f"{self.paper} of the paper"

    def points(self, scale: Scale) -> tuple[Variant, ...]:
        return self.variants.get(scale, (Variant(""),))


def _everywhere(evidence: Sequence[str], paper: Sequence[str] = ("paper-cifar100",)) -> dict[Scale, tuple[str, ...]]:
    return {"demo": ("demo",), "evidence": tuple(evidence), "paper": tuple(paper)}


_BOTH: tuple[Resource, ...] = ("delay_s", "energy_j")
_MAIN = _everywhere(["vgg19-cifar10"])
_SECOND = _everywhere(["resnet18-cifar100"])
_MANY_ARMS = _everywhere(["small-cifar10"])


def _over(
    name: str, *values: str, demo: Sequence[str] | None = None, also: Sequence[str] = ()
) -> dict[Scale, tuple[Variant, ...]]:
    """A point for each value of a field; `also`: what is set at all of them."""

    def variants(chosen: Sequence[str]) -> tuple[Variant, ...]:
        return tuple(Variant(value, (*also, f"{name}={value}")) for value in chosen)

    return {"demo": variants(demo or values), "evidence": variants(values), "paper": variants(values)}


def _saves(*figures: tuple[str, float, float]) -> list[Claim]:
    """(scheme, share of its delay, share of its energy) that ASFL saves; 0 where the paper gives no figure."""
    delays = [Saves("delay_s", scheme, delay) for scheme, delay, _ in figures]
    return [*delays, *(Saves("energy_j", scheme, energy) for scheme, _, energy in figures)]


_NEVER_BEHIND = [NeverBehind("delay_s", 0.02, PLUS), NeverBehind("energy_j", 0.02, PLUS)]
_FIXED = SAME_TOOLS[:-1]
_DECISIONS = [Saves(what, rule, 0, PLUS) for rule in _FIXED for what in _BOTH]
"""What deciding brings, beyond fixed rules with the same tools."""


def _goals(*accurate: Claim) -> list[Claim]:
    """What `asfl-plus` is to achieve; not in the paper."""
    return [
        Saves("delay_s", OURS, 0.75, PLUS),
        Saves("energy_j", OURS, 0.5, PLUS),
        Saves("delay_s", BEST, 0.67, PLUS),
        Saves("energy_j", BEST, 0.5, PLUS),
        *_DECISIONS,
        *_NEVER_BEHIND,
        *accurate,
    ]


_MIXES, _MIXES_NOT = "sfl-best:mix=on", "asfl-plus:mix=off"
"""What mixing on the server is worth without our decisions, and our decisions without it."""
_LOCAL = ("cse-fsl", "cse-fsl:every=1", "cse-fsl:bits=8", "fsl-sage", "fsl-sage:bits=8", "ampere:alone=30,sending=80")
"""A client of `small-cifar10` has sent each image once after 79 packets."""
_OTHERS = ("fedavg", "sfl-best", "acc-sfl", "epsl")
_ALL = (OURS, PLUS, *BASELINES, _MIXES, *SAME_TOOLS, "asfl-pmax", CEILING)
_MATTER = (OURS, PLUS, *_OTHERS, *_FIXED, CEILING)
_FRONT = (OURS, PLUS, "sfl-best", _MIXES, *SAME_TOOLS, CEILING)
"""For a large network in several worlds; the others are far behind in the headline."""
_GOALS = _goals(MoreAccurate("sfl-best", -0.01, PLUS), MoreAccurate(CEILING, -0.03, PLUS))
_HEADLINE = [
    *_saves(("acc-sfl", 0.51, 0.8), ("sfl-best", 0.69, 0.56), ("epsl", 0.75, 0.74), ("fedavg", 0, 0)),
    *_GOALS,
]
_AHEAD = [MostAccurate("rounds"), MostAccurate("delay")]
_PRICES = (
    Variant(""),
    *(Variant(f"energy price {p}", (f"decision.energy_price={p}",), (PLUS,)) for p in ("0.1", "0.3", "3")),
)
_FAST_SERVER = "compute.server_hz=1e11"
_NARROW = ("radio.rb_bandwidth_hz=2.5e5", "radio.downlink_bandwidth_hz=2e6")
_PLACES = (
    Variant(""),
    Variant("server ten times as fast", (_FAST_SERVER,)),
    Variant("a quarter of the bandwidth", _NARROW),
    Variant("both", (_FAST_SERVER, *_NARROW)),
    Variant("unequal processors", (_FAST_SERVER, "scenario.max_cpu_hz=3e9", "scenario.min_cpu_hz=3e8")),
    Variant("36 clients", ("scenario.clients=36",)),
)
_PARETO = (
    Variant(""),
    *(Variant(f"energy price {p}", (f"decision.energy_price={p}",), (PLUS,)) for p in ("0", "0.3", "3", "10")),
    *(Variant(f"V = {v}", (f"decision.penalty_weight={v}",), (OURS,)) for v in ("1", "100")),
    *(Variant(f"budgets × {s}", (f"decision.auto_budget_scale={s}",), (OURS,)) for s in ("0.5", "2")),
)


def _steps(rounds: int) -> tuple[Variant, ...]:
    """As many samples at every point: what takes more steps between two exchanges has fewer rounds."""
    fewer = ((steps, math.ceil(rounds / steps)) for steps in (5, 20))
    return (
        Variant("1"),
        *(
            Variant(f"{steps}", (f"training.local_steps={steps}", f"training.rounds={left}", "output.evaluate_every=1"))
            for steps, left in fewer
        ),
    )


def _as_long(rounds: int) -> tuple[Variant, ...]:
    """As many rounds for all schemes, whatever a tuned file gives `asfl-plus`."""
    return (Variant("", (f"training.rounds={rounds}", f"schemes.{PLUS}.rounds_times=1")),)


_MODELS = tuple(Variant(name, (f"model.architecture={name}",)) for name in ("vgg19", "resnet50"))
_READINGS = (
    Variant("corrected, drift"),
    # Costs are charged as corrected, so that the objectives are compared and nothing else.
    Variant(
        "printed objective",
        ("decision.equations=printed", "decision.uplink_power=shared", "decision.gradient_bits=activations"),
    ),
    Variant("budgets per round", ("decision.form=per_round_budgets",)),
    Variant("printed queues", ("decision.queue_rule=printed",)),
)
_RECIPES = (
    Recipe(
        "accuracy-delay-energy", "Fig. 4", "accuracy against seconds and joules: the headline",
        _ALL, [*_HEADLINE, *_saves(("sl-best", 0, 0))], ["curves", "way", "pareto"], _MAIN,
        "energy price", dict.fromkeys(get_args(Scale), _PRICES),
    ),
    Recipe(
        "more-rounds", "Fig. 4", "the headline with as many rounds for all schemes as asfl-plus has",
        (OURS, PLUS, "sl-best", "sfl-best", _MIXES, *SAME_TOOLS, CEILING),
        [*_saves(("sfl-best", 0.69, 0.56), ("sl-best", 0, 0)), *_GOALS],
        ["curves", "way", "pareto"], _MAIN,
        # 2.67 times the preset's rounds, as in docs/results/tuned; the demo's are few enough to double.
        variants={"demo": _as_long(80), "evidence": _as_long(1602), "paper": _as_long(534)},
    ),
    Recipe(
        "second-world", "Fig. 4", "the headline with another network and other data",
        (*_MATTER[:-1], _MIXES, SAME_TOOLS[-1], CEILING), _HEADLINE, ["curves", "way", "pareto"], _SECOND,
    ),
    Recipe(
        "label-mix", "Fig. 6", "the headline from nearly disjoint labels to nearly equal ones",
        _FRONT, [*_AHEAD, *_GOALS], ["accuracy", "curves", "way"], _MAIN,
        "label mix ρ", _over("data.dirichlet_alpha", "0.1", "1", "10"),
    ),
    Recipe(
        "table3", "Table III", "the accuracy of every scheme, for each model and data set",
        _MATTER, [MostAccurate("rounds")], ["accuracy"],
        _everywhere(["vgg19-cifar10", "resnet18-cifar100"], ["paper-cifar10", "paper-cifar100"]),
        "model", {"paper": _MODELS},
    ),
    Recipe(
        "errors-discrepancy", "Fig. 5", "packet errors, and how far client models drift apart",
        _ALL,
        [
            *(Lower("packet_error_rate", name) for name in ("acc-sfl", "epsl")),
            *(Lower("discrepancy", name) for name in BASELINES),
        ],
        ["errors"], _MAIN,
    ),
    Recipe(
        "heterogeneity", "Fig. 6", "accuracy from nearly disjoint labels to nearly equal ones",
        _MATTER, [*_AHEAD, *_goals()], ["accuracy"], _MANY_ARMS,
        "label mix ρ", _over("data.dirichlet_alpha", "0.1", "1", "10", "100"),
    ),
    Recipe(
        "clients", "Fig. 7", "accuracy with 10 to 50 clients on 8 resource blocks",
        _MATTER, [*_AHEAD, *_goals()], ["accuracy"], _MANY_ARMS,
        "clients N", _over("scenario.clients", "10", "20", "30", "50", demo=["6", "12", "24", "36"]),
    ),
    Recipe(
        "resplit-overhead", "Fig. 8", "what moving the cut costs, and when it moves",
        (OURS,), [ShareOfDelay(0.2086), MovesLessLater()], ["resplits"], _MAIN,
        "drift weight w", _over("decision.drift_weight", "0.02", "1"),
    ),
    Recipe(
        "measured-channel", "Fig. 9", "the same on measured channels; needs --trace FILE",
        _MATTER,
        [
            *_AHEAD,
            *(Lower(what, name) for what in ("total_delay_s", "total_energy_j") for name in _OTHERS),
            *_goals(),
        ],
        ["totals", "curves"], _MANY_ARMS, "trace",
    ),
    Recipe(
        "fixed-cuts", "Fig. 10", "what adapting the cut is worth, against cuts fixed at 2 and 3",
        (OURS, "sfl-cut2", "sfl-cut3", CEILING),
        [MoreAccurate("sfl-cut3", 0.076), Saves("energy_j", "sfl-cut2", 0.17), Saves("energy_j", "sfl-cut3", 0.23)],
        ["curves", "way"], _MANY_ARMS,
    ),
    Recipe(
        "power-rb", "Fig. 11", "what power control and block allocation are worth",
        (OURS, "asfl-pmax", "asfl-prand", "asfl-rbrand", CEILING),
        _saves(("asfl-pmax", 0.5, 0.63), ("asfl-prand", 0.61, 0.41), ("asfl-rbrand", 0, 0)),
        ["curves", "way"], _MANY_ARMS,
    ),
    Recipe(
        "queue-memory", "Fig. 12", "what the memory μ of the queues trades",
        (OURS,), [Rises("final_accuracy"), Rises("total_delay_s"), Rises("total_energy_j")], ["totals"], _MANY_ARMS,
        "queue memory μ",
        # The standard rule has no memory to set.
        _over("decision.queue_memory", "0.1", "0.3", "0.5", "0.7", "0.9", also=["decision.queue_rule=printed"]),
    ),
    Recipe(
        "ablation", "–", "what each decision of asfl-plus is worth: switched off in turn",
        (OURS, PLUS, *ABLATION, *_FIXED, CEILING), [], ["ablation", "curves"], _MANY_ARMS,
    ),
    Recipe(
        "mixing", "–", "what a server's step for every mini-batch, mixed from all clients', is worth",
        (PLUS, _MIXES_NOT, _MIXES, *SAME_TOOLS, "sfl-best", CEILING),
        [
            Saves(what, other, 0, one)
            for one, other in (
                *((_MIXES, "sfl-best"), (PLUS, _MIXES_NOT), (PLUS, _MIXES)),
                *((PLUS, rule) for rule in SAME_TOOLS),
            )
            for what in _BOTH
        ],
        ["curves", "way"], _everywhere(["vgg19-cifar10", "resnet18-cifar100"]),
    ),
    Recipe(
        "rivals", "–", "against schemes with few bits, and the nearest published ones",
        (
            *(OURS, PLUS, "fedavg:bits=8", "sfl-best:bits=8", "sfl-best:bits=8,mix=on", *SAME_TOOLS),
            *("adaptsfl", "hasfl", CEILING),
        ),
        [Saves("delay_s", BEST, 0, PLUS), Saves("energy_j", BEST, 0, PLUS), *_DECISIONS, *_NEVER_BEHIND],
        ["curves", "way", "pareto"], _MANY_ARMS,
    ),
    Recipe(
        "local-loss", "–", "against schemes whose clients wait for no gradients, with unlike labels and like ones",
        (OURS, PLUS, "sfl-best", "sfl-best:bits=8", _MIXES, *_LOCAL, CEILING),
        [Saves(what, name, 0, PLUS) for name in _LOCAL for what in _BOTH], ["curves", "way", "pareto"],
        _MANY_ARMS, "label mix ρ", _over("data.dirichlet_alpha", "0.1", "1"),
    ),
    Recipe(
        "pareto", "–", "delay against energy at equal accuracy: every scheme, and what prices and budgets trade",
        _MATTER, _goals(), ["pareto"], _MANY_ARMS, "setting", dict.fromkeys(get_args(Scale), _PARETO),
    ),
    Recipe(
        "worlds", "–", "what deciding is worth where no rule fits all: fixed rules with the tools of asfl-plus",
        (PLUS, *SAME_TOOLS), _DECISIONS, ["way"], _MAIN, "world", dict.fromkeys(get_args(Scale), _PLACES),
    ),
    Recipe(
        "local-steps", "–", "what several mini-batches between two averages trade, with as many samples in all",
        (OURS, PLUS, "fedavg", "sfl-best", *_FIXED, CEILING), [], ["accuracy", "totals"], _MANY_ARMS,
        "local steps", {"demo": _steps(40), "evidence": _steps(150), "paper": _steps(200)},
    ),
    Recipe(
        "readings", "–", "what each reading of the equations learns",
        (OURS,), [], ["totals"], _MANY_ARMS, "reading", dict.fromkeys(get_args(Scale), _READINGS),
    ),
)  # fmt: skip
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        raise AsflError(f"unknown recipe {short(name)}: {nearest(name, RECIPES)}")
    return RECIPES[name]


def on_traces(recipe: Recipe, files: Sequence[Path]) -> Recipe:
    """The recipe on measured channels, one point per file."""
    variants = tuple(
        Variant(file.name, (f"scenario.channel.trace_file={file}", "scenario.channel.kind=trace")) for file in files
    )
    return replace(recipe, variants=dict.fromkeys(get_args(Scale), variants))


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
