"""Where the runs come from: the data behind them, the model's layers, and the commands that make them again."""

import json
import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import numpy as np

from asfl.channel import CHANNELS
from asfl.config import Config, by_name, load_config, preset_names
from asfl.data import load_data
from asfl.data.arrays import is_own_file
from asfl.errors import AsflError
from asfl.profile import MODELS, Dataset, ModelProfile, load_profile
from asfl.report.data import LabelMix
from asfl.report.page.charts import Json, numbers
from asfl.report.page.collect import FoundRun, World
from asfl.run import comparable
from asfl.schemes import SCHEMES


# ---------------------------------------------------------------------- label mix
def mix_key(config: Config) -> str:
    """The same for runs whose clients hold the same samples."""
    data, scenario = config.data, config.scenario
    return f"{data.name}, α = {data.dirichlet_alpha:g}, {scenario.clients} clients, seed {scenario.seed}"


def label_mixes(runs: Sequence[FoundRun], data_dir: Path | None) -> tuple[Json, list[str]]:
    """Which labels each client holds, by `mix_key`; and why some aren't known. Nothing is downloaded."""
    found: Json = {}
    notes: dict[str, None] = {}
    for run in runs:
        config, key = run.manifest.config, mix_key(run.manifest.config)
        if key in found:
            continue
        try:
            mix = LabelMix.of(config, load_data(config, run.manifest.data_dir(data_dir)))
        except (AsflError, OSError) as error:
            notes[f"The label mix of {config.data.name} isn't shown: {str(error).splitlines()[0]}"] = None
            continue
        shares = 100 * mix.counts / np.maximum(mix.counts.sum(axis=1, keepdims=True), 1)
        found[key] = {"shares": [numbers(row) for row in shares], "distance": numbers(mix.distance)}
    return found, list(notes)


# ---------------------------------------------------------------------- layers
def profile_of(world: World) -> tuple[Json | None, str]:
    """The layers of the model and how often each scheme cut behind each of them; or why they aren't known."""
    try:
        profile = load_profile(world.config.model_spec)
    except (AsflError, ImportError) as error:
        return None, f"The layers of {world.config.model_spec.name} aren't shown: {error}"
    cuts = {world.series(scheme): _cut_shares(world, scheme, profile) for scheme in world.schemes}
    return {
        "title": profile.name,
        "units": list(profile.unit_names),
        "parameters": numbers(profile.param_bits / 1e6),
        "activations": numbers(profile.activation_bits / 1e6),
        "forward": numbers(profile.forward_flops / 1e6),
        "backward": numbers(profile.backward_flops / 1e6),
        "cuts": {name: numbers(shares) for name, shares in cuts.items() if shares is not None},
    }, ""


def _cut_shares(world: World, scheme: str, profile: ModelProfile) -> Any:
    """[M−1] per cent of rounds (with a cut per client: of rounds and clients that took part); None without a cut."""
    counts = np.zeros(profile.num_layers + 1)
    for record in (record for run in world.runs if run.scheme == scheme for record in run.records):
        if isinstance(record.cut, int):
            chosen = [record.cut]
        else:
            each = zip(record.cut or [], record.rb_count, strict=False)
            chosen = [cut for cut, blocks in each if blocks > 0]
        for cut in chosen:
            counts[min(max(cut, 0), profile.num_layers)] += 1
    counts = counts[1 : profile.num_layers]
    return 100 * counts / counts.sum() if counts.sum() else None


# ---------------------------------------------------------------------- commands
def run_command(run: FoundRun) -> str:
    """`asfl run …` with as few `--set` as possible."""
    preset, changed = nearest_preset(run.manifest.config)
    return _command([*_asfl(run.manifest.config, [run.scheme]), "run", preset, "--scheme", run.scheme], changed)


def compare_command(world: World) -> str | None:
    """`asfl compare …` if that is what made these runs, with every scheme and consecutive seeds."""
    seeds = sorted({run.seed for run in world.runs})
    if not world.is_comparison or seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        return None
    first = world.config.scenario.model_copy(update={"seed": seeds[0]})
    preset, changed = nearest_preset(world.config.model_copy(update={"scenario": first}))
    words = [*_asfl(world.config, world.schemes), "compare", preset]
    if set(world.schemes) != set(SCHEMES):
        words += ["--schemes", ",".join(world.schemes)]
    return _command([*words, *(["--seeds", str(len(seeds))] if len(seeds) > 1 else [])], changed)


def _asfl(config: Config, schemes: Sequence[str]) -> list[str]:
    """The command, and that a plugin is needed if something doesn't ship; its file is known to nobody here."""
    ships = [
        all(SCHEMES.ships(scheme) for scheme in schemes),
        CHANNELS.ships(config.scenario.channel.kind),
        MODELS.ships(config.model.architecture),
        config.data.name in get_args(Dataset) or is_own_file(config.data.name),
    ]
    return ["asfl"] if all(ships) else ["asfl", "--plugin", "FILE"]


def nearest_preset(config: Config) -> tuple[str, dict[str, Any]]:
    """The preset that needs the fewest changes, and those changes."""
    wanted = by_name(comparable(config))
    found: dict[str, dict[str, Any]] = {}
    for name in preset_names():
        preset = _preset(name)
        found[name] = {field: value for field, value in wanted.items() if preset.get(field) != value}
    best = min(found, key=lambda name: len(found[name]))
    return best, found[best]


@lru_cache
def _preset(name: str) -> dict[str, Any]:
    return by_name(comparable(load_config(name).config))


def _command(words: Sequence[str], changed: dict[str, Any]) -> str:
    settings = [part for field, value in changed.items() for part in ("--set", f"{field}={_as_toml(value)}")]
    return shlex.join([*words, *settings])


def _as_toml(value: Any) -> str:
    """As `--set` reads it; words need no quotes."""
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z][\w-]*", value)
        and value not in ("true", "false", "nan", "inf")
    ):
        return value
    return json.dumps(value)
