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
