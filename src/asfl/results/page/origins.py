"""Where the runs come from: the data behind them, the model's layers, and the commands that make them again."""

import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from asfl.config import Config, by_name, load_config, preset_names
from asfl.config.errors import AsflError
from asfl.config.names import CHANNELS, MODELS, Dataset, is_own_file
from asfl.config.show import toml_value
from asfl.config.units import number
from asfl.costs.world import charged_profile
from asfl.data import load_data
from asfl.models.profile import ModelProfile
from asfl.results.charts.world import LabelMix, rule_of
from asfl.results.curves import RunFolder
from asfl.results.page.collect import RunGroup
from asfl.runs.manifest import comparable
from asfl.schemes import SCHEMES, usual_schemes


# ---------------------------------------------------------------------- label mix
def mix_key(config: Config) -> str:
    """The same for runs whose clients hold the same samples."""
    scenario = config.scenario
    return f"{config.data.name}, {rule_of(config)}, {scenario.clients} clients, seed {scenario.seed}"


def label_mixes(runs: Sequence[RunFolder], data_dir: Path | None) -> tuple[dict[str, LabelMix], list[str]]:
    """Which labels each client holds, by `mix_key`; and why some aren't known. Nothing is downloaded."""
    found: dict[str, LabelMix] = {}
    notes: dict[str, None] = {}
    for run in runs:
        config, key = run.manifest.config, mix_key(run.manifest.config)
        if key in found:
            continue
        try:
            found[key] = LabelMix.of(config, load_data(config, run.manifest.data_dir(data_dir)))
        except (AsflError, OSError) as error:
            said = ", ".join(number(samples) for samples in run.manifest.samples)
            how_many = f". They say they train with {said} images" if said else ""
            about = "" if config.data.private else f"The label mix of {config.data.name} isn't shown: "
            notes[f"{about}{str(error).splitlines()[0]}{how_many}"] = None
    return found, list(notes)


# ---------------------------------------------------------------------- layers
def profile_of(group: RunGroup) -> tuple[ModelProfile | None, str]:
    """The layers of the model that is charged; or why they aren't known."""
    try:
        return charged_profile(group.config), ""
    except (AsflError, ImportError) as error:
        return None, f"The layers of {group.config.model_spec.name} aren't shown: {error}"


# ---------------------------------------------------------------------- commands
def run_command(run: RunFolder) -> str:
    """`asfl run …`, or `serve` where devices have the images, with as few `--set` as possible."""
    preset, changed = nearest_preset(run.manifest.config, run.scheme)
    command = "serve" if run.manifest.config.data.private else "run"
    return _command([*_asfl(run.manifest.config, [run.scheme]), command, preset, "--scheme", run.scheme], changed)


def compare_command(group: RunGroup) -> str | None:
    """`asfl compare …` if that is what made these runs, with every scheme and consecutive seeds."""
    seeds = sorted({run.seed for run in group.runs})
    if not group.is_comparison or seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        return None
    first = group.config.scenario.model_copy(update={"seed": seeds[0]})
    preset, changed = nearest_preset(group.config.model_copy(update={"scenario": first}))
    words = [*_asfl(group.config, group.schemes), "compare", preset]
    if set(group.schemes) != set(usual_schemes()):
        words += ["--schemes", ",".join(group.schemes)]
    return _command([*words, *(["--seeds", str(len(seeds))] if len(seeds) > 1 else [])], changed)


def _asfl(config: Config, schemes: Sequence[str]) -> list[str]:
    """The command, and that a plugin is needed if something doesn't ship; its file is known to nobody here."""
    ships = [
        all(SCHEMES.ships(scheme) for scheme in schemes),
        CHANNELS.ships(config.scenario.channel.kind),
        MODELS.ships(config.model.architecture),
        config.data.private or config.data.name in get_args(Dataset) or is_own_file(config.data.name),
    ]
    return ["asfl"] if all(ships) else ["asfl", "--plugin", "FILE"]


def nearest_preset(config: Config, scheme: str = "") -> tuple[str, dict[str, Any]]:
    """The preset that needs the fewest changes, and those changes; as this scheme sees it, if one is given."""
    wanted = by_name(comparable(config))
    found: dict[str, dict[str, Any]] = {}
    for name in preset_names():
        preset = _preset(name, scheme)
        found[name] = {field: value for field, value in wanted.items() if preset.get(field) != value}
    best = min(found, key=lambda name: len(found[name]))
    return best, found[best]


@lru_cache
def _preset(name: str, scheme: str) -> dict[str, Any]:
    config = load_config(name).config
    return by_name(comparable(config.for_scheme(scheme) if scheme else config))


def _command(words: Sequence[str], changed: dict[str, Any]) -> str:
    settings = [part for field, value in changed.items() for part in ("--set", f"{field}={_as_toml(value)}")]
    return shlex.join([*words, *settings])


def _as_toml(value: Any) -> str:
    """As `--set` reads it; words need no quotes."""
    is_word = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w-]*", value)
    return value if is_word and value not in ("true", "false", "nan", "inf") else toml_value(value)
