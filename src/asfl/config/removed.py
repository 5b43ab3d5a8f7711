"""What is gone, by the name it had, and what to use instead.

Runs recorded their whole configuration. Where a setting had its usual value, the run is as it would be today.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from asfl.config.errors import AsflError

SETTINGS: dict[str, tuple[object, str]] = {
    "decision.rb_sharing": ("whole", "resource blocks are whole; leave it out"),
}
"""Usual value, and the sentence."""


def refuse_removed(names: Iterable[str]) -> None:
    """Raise an AsflError for the first dotted name of a setting that is gone."""
    for name in names:
        if name in SETTINGS:
            raise AsflError(f"{name} no longer exists: {SETTINGS[name][1]}")


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration without settings that are gone, if they had their usual values."""
    kept: dict[str, Any] = {name: dict(one) if isinstance(one, Mapping) else one for name, one in values.items()}
    for name, (usual, _) in SETTINGS.items():
        section, _, key = name.rpartition(".")
        if key in (of := kept.get(section, {}) if section else kept):
            if of[key] != usual:
                refuse_removed([name])
            del of[key]
    return kept


GONE_COMMANDS: dict[str, str] = {
    "config": "asfl explain demo prints a configuration, asfl check FILE.toml checks one, asfl list presets names them",
    "cost": "asfl decide FILE --cost says what the decision in a round file costs",
    "plan": "asfl advise PRESET --time 30min --battery 50 says what total budgets can buy",
    "profile": "asfl explain vgg19-cifar100 shows a model, asfl list profiles names them",
    "trace": "asfl data trace SCENE --out FILE.npz walks clients through a city",
    "tune": "asfl sweep PRESET --over training.learning_rate=1e-3,3e-3 --set data.validation=0.2 tries learning rates",
    "watch": "asfl report DIR --watch shows runs while they are trained",
}
"""What to type instead."""

RENAMED_SCHEMES: dict[str, str] = {
    "asfl-sync": "asfl:sync=on",
    "asfl-quant": "asfl:quant=on",
    "asfl-rate": "asfl:rate=on",
    "asfl-mix": "asfl:mix=on",
    "asfl-plus-no-sync": "asfl-plus:sync=off",
    "asfl-plus-no-quant": "asfl-plus:quant=off",
    "asfl-plus-no-rate": "asfl-plus:rate=off",
    "asfl-plus-no-mix": "asfl-plus:mix=off",
    "fedavg-8bit": "fedavg:bits=8",
    "sfl-best-8bit": "sfl-best:bits=8",
    "sfl-best-mix": "sfl-best:mix=on",
    "sfl-best-mix-8bit": "sfl-best:bits=8,mix=on",
    "sfl-best-mix-4bit": "sfl-best:bits=4,mix=on",
    "best-gains-few": "best-gains:clients=0.75",
    "epsl-0": "epsl:share=0",
    "epsl-1": "epsl:share=1",
}
"""Schemes that became parameters of others; read under both names."""
GONE_SCHEMES: dict[str, str] = {
    "energy-delay": "acc-sfl and hasfl choose a cut for each client, too",
    "asfl-hetero": "asfl-plus has one cut for all clients",
    "asfl-plus-no-hetero": "asfl-plus has one cut for all clients",
}
"""Schemes that nothing replaces, and a sentence."""


def scheme_today(name: str) -> str:
    """What a scheme that an earlier version recorded is called now."""
    return RENAMED_SCHEMES.get(name, name)
