"""The recipes: section V-B of the paper, experiment by experiment, and one of our own.

Each says which schemes meet in which worlds, what is drawn, and what the paper claims about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from asfl.config.errors import AsflError, nearest, short
from asfl.radio.traces import HDF5_SUFFIXES
from asfl.results.reproduce.claims import (
    Claim,
    Lower,
    MoreAccurate,
    MostAccurate,
    MovesLessLater,
    Rises,
    Saves,
    ShareOfDelay,
)

Scale = Literal["demo", "small", "paper"]
Picture = Literal["curves", "way", "accuracy", "totals", "errors", "resplits"]

BASELINES = ("fedavg", "sl", "sfl", "acc-sfl", "epsl")
SEEDS: Mapping[Scale, int] = {"demo": 1, "small": 3, "paper": 3}
TARGETS: Mapping[str, tuple[float, ...]] = {"small-cifar10": (0.25, 0.3, 0.35), "small-cifar100": (0.04, 0.06, 0.08)}
"""Accuracies on the way that most schemes reach; elsewhere they are chosen from the runs."""


@dataclass(frozen=True)
class Variant:
    """One value of what a recipe varies."""

    label: str
    overrides: tuple[str, ...] = ()


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

    def points(self, scale: Scale) -> tuple[Variant, ...]:
        return self.variants.get(scale, (Variant(""),))


def _everywhere(small: Sequence[str], paper: Sequence[str]) -> dict[Scale, tuple[str, ...]]:
    return {"demo": ("demo",), "small": tuple(small), "paper": tuple(paper)}


_BOTH = _everywhere(["small-cifar10", "small-cifar100"], ["paper-cifar100"])
_ONE = _everywhere(["small-cifar10"], ["paper-cifar100"])


def _over(name: str, *values: str, demo: Sequence[str] | None = None) -> dict[Scale, tuple[Variant, ...]]:
    def variants(chosen: Sequence[str]) -> tuple[Variant, ...]:
        return tuple(Variant(value, (f"{name}={value}",)) for value in chosen)

    return {"demo": variants(demo or values), "small": variants(values), "paper": variants(values)}


def _saves(*figures: tuple[str, float, float]) -> list[Claim]:
    """(scheme, share of its delay, share of its energy) that ASFL saves; 0 where the paper gives no figure."""
    delays = [Saves("delay_s", scheme, delay) for scheme, delay, _ in figures]
    return [*delays, *(Saves("energy_j", scheme, energy) for scheme, _, energy in figures)]


_ALL = ("asfl", *BASELINES)
_AHEAD = [MostAccurate("rounds"), MostAccurate("time")]
_MODELS = tuple(Variant(name, (f"model.architecture={name}",)) for name in ("vgg19", "resnet50"))
_READINGS = (
    Variant("corrected, drift"),
    # Costs are charged as corrected, so that the objectives are compared and nothing else.
    Variant(
        "printed objective",
        ("decision.equations=printed", "decision.uplink_power=shared", "decision.gradient_bits=activations"),
    ),
    Variant("budgets per round", ("decision.form=per_round_budgets",)),
    Variant("standard queues", ("decision.queue_rule=standard",)),
)
_RECIPES = (
    Recipe(
        "table3", "Table III", "the accuracy of every scheme, for each model and data set",
        _ALL, [MostAccurate("rounds")], ["accuracy"],
        _everywhere(["small-cifar10", "small-cifar100"], ["paper-cifar10", "paper-cifar100"]),
        "model", {"paper": _MODELS},
    ),
    Recipe(
        "accuracy-delay-energy", "Fig. 4", "accuracy against seconds and joules: the headline",
        _ALL, _saves(("acc-sfl", 0.51, 0.8), ("sfl", 0.69, 0.56), ("epsl", 0.75, 0.74), ("fedavg", 0, 0), ("sl", 0, 0)),
        ["curves", "way"], _BOTH,
    ),
    Recipe(
        "errors-discrepancy", "Fig. 5", "packet errors, and how far client models drift apart",
        _ALL,
        [
            *(Lower("packet_error_rate", name) for name in ("acc-sfl", "epsl")),
            *(Lower("discrepancy", name) for name in BASELINES),
        ],
        ["errors"], _BOTH,
    ),
    Recipe(
        "heterogeneity", "Fig. 6", "accuracy from nearly disjoint labels to nearly equal ones",
        _ALL, _AHEAD, ["accuracy"], _ONE, "label mix ρ", _over("data.dirichlet_alpha", "0.1", "1", "10", "100"),
    ),
    Recipe(
        "clients", "Fig. 7", "accuracy with 10 to 50 clients on 8 resource blocks",
        _ALL, _AHEAD, ["accuracy"], _ONE,
        "clients N", _over("scenario.clients", "10", "20", "30", "40", "50", demo=["6", "12", "24", "36"]),
    ),
    Recipe(
        "resplit-overhead", "Fig. 8", "what moving the cut costs, and when it moves",
        ("asfl",), [ShareOfDelay(0.2086), MovesLessLater()], ["resplits"], _BOTH,
    ),
    Recipe(
        "measured-channel", "Fig. 9", "the same on measured channels; needs --trace FILE",
        _ALL,
        [*_AHEAD, *(Lower(what, name) for what in ("total_delay_s", "total_energy_j") for name in BASELINES)],
        ["curves", "totals"], _ONE, "trace",
    ),
    Recipe(
        "fixed-cuts", "Fig. 10", "what adapting the cut is worth, against cuts fixed at 2 and 3",
        ("asfl", "sfl-cut2", "sfl-cut3"),
        [MoreAccurate("sfl-cut3", 0.076), Saves("energy_j", "sfl-cut2", 0.17), Saves("energy_j", "sfl-cut3", 0.23)],
        ["curves", "way"], _BOTH,
    ),
    Recipe(
        "power-rb", "Fig. 11", "what power control and block allocation are worth",
        ("asfl", "asfl-pmax", "asfl-prand", "asfl-rbrand"),
        _saves(("asfl-pmax", 0.5, 0.63), ("asfl-prand", 0.61, 0.41), ("asfl-rbrand", 0, 0)),
        ["curves", "way"], _BOTH,
    ),
    Recipe(
        "queue-memory", "Fig. 12", "what the memory μ of the queues trades",
        ("asfl",), [Rises("final_accuracy"), Rises("total_delay_s"), Rises("total_energy_j")], ["totals"], _ONE,
        "queue memory μ", _over("decision.queue_memory", "0.1", "0.3", "0.5", "0.7", "0.9"),
    ),
    Recipe(
        "epsl-share", "–", "what EPSL's share φ of averaged gradients trades: 0, 0.5 and 1",
        ("asfl", "epsl-0", "epsl", "epsl-1"), [], ["curves", "way"], _ONE,
    ),
    Recipe(
        "readings", "–", "what each reading of the equations learns",
        ("asfl",), [], ["totals"], _ONE, "reading", dict.fromkeys(get_args(Scale), _READINGS),
    ),
)  # fmt: skip
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        raise AsflError(f"unknown recipe {short(name)}: {nearest(name, RECIPES)}")
    return RECIPES[name]


def on_traces(recipe: Recipe, files: Sequence[Path]) -> Recipe:
    """The recipe on measured channels, one point per file."""
    variants = tuple(Variant(file.name, _channel_of(file)) for file in files)
    return replace(recipe, variants=dict.fromkeys(get_args(Scale), variants))


def _channel_of(file: Path) -> tuple[str, ...]:
    settings = (f"scenario.channel.trace_file={file}", "scenario.channel.kind=trace")
    # HDF5 files hold few clients but many antennas; the paper gives each client an antenna pair.
    pairs = ("scenario.channel.trace_antenna=each",) if file.suffix.lower() in HDF5_SUFFIXES else ()
    return (*settings, *pairs)
