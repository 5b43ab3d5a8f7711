"""What a call asks for: a configuration, in any of the ways Python has, and where its runs go."""

import hashlib
import json
from pathlib import Path
from typing import Any

from asfl.config import Config, by_name, load_config
from asfl.config.load import ConfigLike
from asfl.runs.manifest import comparable
from asfl.schemes import check_scheme_settings

_NOT_IN_NAMES = ("training.rounds", "scenario.seed")
"""A run can be given more rounds, and its seed is in its name anyway."""


def configuration(base: ConfigLike, rounds: int | None, seed: int | None, settings: dict[str, Any]) -> Config:
    """As the command line resolves it, and with its sentences for what is wrong."""
    short = {"training.rounds": rounds, "scenario.seed": seed}
    given = {**settings, **{name: value for name, value in short.items() if value is not None}}
    config = load_config(base, given).config
    check_scheme_settings(config)
    return config


def folder_for(base: ConfigLike, config: Config, name: str, out: str | Path | None) -> Path:
    """The folder asked for; else one below `output.folder` that the same call finds again, and no other call does."""
    if out is not None:
        return Path(out)
    named = isinstance(base, str | Path)
    stem = Path(str(base)).stem if named else "own"
    changed = _result_fields(config)
    if named:
        plain = _result_fields(load_config(base).config)
        changed = {field: value for field, value in changed.items() if plain.get(field) != value}
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
    return Path(config.output.folder) / (name.format(stem) + (f"-{digest}" if changed else ""))


def _result_fields(config: Config) -> dict[str, Any]:
    return {field: value for field, value in by_name(comparable(config)).items() if field not in _NOT_IN_NAMES}
