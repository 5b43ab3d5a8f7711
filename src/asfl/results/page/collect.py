"""Folders → runs, grouped by world, and where they come from: what a report is about; nothing is written.

Runs share a world if their configurations differ in nothing but the seed (and in what doesn't change results), or in
what a comparison sets for single schemes. Only such runs may be averaged over seeds or held against each other in a
table.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from asfl.config import Config, by_name, differing_names, load_config, preset_names
from asfl.config.errors import AsflError
from asfl.config.names import CHANNELS, MODELS, Dataset, is_own_file
from asfl.config.show import toml_value
from asfl.config.units import number
from asfl.costs.world import charged_profile
from asfl.data import load_data
from asfl.models.profile import ModelProfile
from asfl.results.charts.world import LabelMix, rule_of
from asfl.results.curves import RunFolder, read_run
from asfl.results.reproduce.plan import WORLDS
from asfl.results.summary import Summary
from asfl.runs.comparison import COMPARE_FILE, SWEEP_FILE, read_comparison
from asfl.runs.folder import MODEL_SEAL
from asfl.runs.jobs import error_report
from asfl.runs.manifest import MANIFEST_FILE, comparable
from asfl.runs.records import RECORDS_FILE
from asfl.schemes import SCHEMES, usual_schemes

WATCHED = (COMPARE_FILE, MANIFEST_FILE, RECORDS_FILE, MODEL_SEAL)
"""The files of a folder that a report depends on."""


@dataclass(frozen=True)
class RunGroup:
    """Runs of one world, which may be compared."""

    title: str
    """What sets its world apart from the others of the report; empty if there is only one."""
    config: Config
    """Its seed has no meaning."""
    runs: Sequence[RunFolder]
    """By scheme, then seed."""
    is_comparison: bool
    """Whether `asfl compare` made them."""

    @property
    def finished(self) -> list[RunFolder]:
        return [run for run in self.runs if run.finished]

    @property
    def counted(self) -> list[RunFolder]:
        """Whose numbers go into tables and sentences: finished runs; before there are any, what has begun.

        Those are taken as far as all of them have come: one that is ahead would be compared with itself to be.
        """
        begun = [run for run in self.runs if run.records]
        shortest = min((len(run.records) for run in begun), default=0)
        return self.finished or [replace(run, records=run.records[:shortest]) for run in begun]

    @property
    def schemes(self) -> list[str]:
        return list(dict.fromkeys(run.scheme for run in self.runs))

    def series(self, scheme: str) -> str:
        """What a scheme of this world is called where several worlds meet."""
        return f"{scheme} ({self.title})" if self.title else scheme

    def summary(self, targets: Sequence[float] | None = None) -> Summary:
        return Summary.of(self.counted, targets)


@dataclass(frozen=True)
class Collected:
    """All a report shows."""

    title: str
    groups: Sequence[RunGroup]
    notes: Sequence[str]
    """What isn't shown, and why."""

    @property
    def costs(self) -> str:
        """Where seconds and joules are from."""
        kinds = {run.manifest.config.field.costs for run in self.runs}
        if len(kinds) > 1:
            return "simulated or measured"
        return "measured" if kinds == {"measured"} else "simulated"

    @property
    def runs(self) -> list[RunFolder]:
        return [run for group in self.groups for run in group.runs]


def collect(folders: Sequence[Path]) -> Collected:
    """Read run folders, comparisons and sweeps of them; a clear error for anything else."""
    if not folders:
        raise AsflError("no folder given; give run folders or the folders of comparisons")
    notes: list[str] = []
    compared: set[Path] = set()
    places: dict[Path, Path] = {}
    for folder in _points(folders):
        for place in _run_folders(folder, notes):
            places.setdefault(place.resolve(), place)
            if place != folder:
                compared.add(place)
    worlds = [read_comparison(folder).config for folder in _points(folders) if (folder / COMPARE_FILE).is_file()]
    runs = _without_twins([read_run(place) for place in places.values()], notes)
    names = list(dict.fromkeys(folder.resolve().name for folder in folders))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return Collected(", ".join(names[:3]) + more, _groups(runs, compared, worlds), notes)


def signature(folders: Sequence[Path]) -> str:
    """Changes whenever a report of these folders would."""
    files = (place / name for folder in _points(folders) for place in (folder, *_below(folder)) for name in WATCHED)
    return repr([_stamp(file) for file in files])


# ---------------------------------------------------------------------- reading
def _points(folders: Sequence[Path]) -> list[Path]:
    """A sweep is the comparisons in it; what recipes made is their worlds; any other folder is whatever lies below."""
    found: list[Path] = []
    for folder in folders:
        several = folder if (folder / SWEEP_FILE).is_file() else folder / WORLDS
        if several.is_dir():
            found += [child for child in _below(several) if (child / COMPARE_FILE).is_file()]
        else:
            found += _runs_and_comparisons(folder) or [folder]
    return list(dict.fromkeys(found))


def _runs_and_comparisons(folder: Path) -> list[Path]:
    """The folder itself, if it is one, else all below; not what lies inside of one."""
    if any((folder / name).is_file() for name in (MANIFEST_FILE, COMPARE_FILE)):
        return [folder]
    return [found for child in _below(folder) if not child.is_symlink() for found in _runs_and_comparisons(child)]


def _run_folders(folder: Path, notes: list[str]) -> Iterator[Path]:
    if (folder / COMPARE_FILE).is_file():
        comparison = read_comparison(folder)
        places = [comparison.run_folder(scheme, seed) for scheme in comparison.schemes for seed in comparison.seeds]
        begun = [place for place in places if (place / MANIFEST_FILE).is_file()]
        if len(begun) < len(places):
            notes.append(f"{folder.name}: {_count(len(places) - len(begun), 'run')} of {len(places)} not begun yet.")
        failed = [place.name for place in places if error_report(place).is_file()]
        if failed:
            notes.append(f"{folder.name}: failed at the last try: {', '.join(failed)} (see the .error.txt files).")
        yield from begun
        return
    if folder.is_dir() and not (folder / MANIFEST_FILE).is_file():
        raise AsflError(
            f"{folder} is neither a run nor a comparison: no {MANIFEST_FILE} or {COMPARE_FILE} in or below it"
        )
    yield folder


def _without_twins(runs: Iterable[RunFolder], notes: list[str]) -> list[RunFolder]:
    """The same run in two folders counts once: the one that has come further."""
    kept: dict[tuple[str, str], RunFolder] = {}
    for run in runs:
        key = (run.scheme, run.manifest.fingerprint)
        other = kept.setdefault(key, run)
        if other is not run:
            kept[key], less = (run, other) if len(run.records) > len(other.records) else (other, run)
            notes.append(f"{less.folder.name} is the same run as {kept[key].folder.name} and left out.")
    return list(kept.values())


def _groups(runs: Sequence[RunFolder], compared: set[Path], worlds: Sequence[Config]) -> list[RunGroup]:
    """`worlds` are those of comparisons; other runs have a world of their own."""
    configs: dict[str, Config] = {}
    by_world: dict[str, list[RunFolder]] = {}
    for run in runs:
        config = _world_of(run, worlds)
        configs.setdefault(_world_key(config), config)
        by_world.setdefault(_world_key(config), []).append(run)
    titles = _titles([group[0] for group in by_world.values()], list(configs.values()), compared)
    return [
        RunGroup(title, config, sorted(group, key=_place), compared >= {run.folder for run in group})
        for title, config, group in zip(titles, configs.values(), by_world.values(), strict=True)
    ]


def _world_of(run: RunFolder, worlds: Sequence[Config]) -> Config:
    """A run's configuration has its scheme's own settings in it; that of its world has those of all schemes."""
    own = run.manifest.config
    return next((one for one in worlds if _world_key(one.for_scheme(run.scheme)) == _world_key(own)), own)


def _world_key(config: Config) -> str:
    plain = comparable(config)
    plain["scenario"].pop("seed")
    return json.dumps(plain, sort_keys=True)


def _titles(firsts: Sequence[RunFolder], configs: Sequence[Config], compared: set[Path]) -> list[str]:
    """What is different, such as "learning_rate 0.01"; where that is more than two fields, the name of the folder."""
    if len(firsts) == 1:
        return [""]
    plain = [by_name(comparable(config)) for config in configs]
    different = [name for name in differing_names(plain) if name != "scenario.seed"]
    folders = [(run.folder.parent if run.folder in compared else run.folder).resolve().name for run in firsts]
    if len(different) > 2 and len(set(folders)) == len(folders):
        return folders
    return [", ".join(f"{name.rpartition('.')[2]} {_short(one.get(name))}" for name in different) for one in plain]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _place(run: RunFolder) -> tuple[int, str, int]:
    known = list(SCHEMES)
    return known.index(run.scheme) if run.scheme in known else len(known), run.scheme, run.seed


def _below(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir())
    except OSError:
        return []


def _stamp(file: Path) -> tuple[str, int, int]:
    try:
        stat = file.stat()
    except OSError:
        return (str(file), 0, 0)
    return (str(file), stat.st_mtime_ns, stat.st_size)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


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
    """The command, and that a plugin is needed if something doesn't ship; its file isn't known here."""
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
