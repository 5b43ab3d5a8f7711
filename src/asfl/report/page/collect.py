"""Folders → runs, grouped by world: what a report is about, read once and never written to.

Runs share a world if their configurations differ in nothing but the seed (and in what doesn't change results). Only
such runs may be averaged over seeds or held against each other in a table.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asfl.compare import COMPARE_FILE, read_comparison
from asfl.config import Config, by_name, differing_names
from asfl.errors import AsflError
from asfl.jobs import error_report
from asfl.records import RECORDS_FILE, RoundRecord, read_records
from asfl.reproduce.plan import WORLDS
from asfl.run import MANIFEST_FILE, MODEL_FILE, Manifest, comparable, is_finished, read_manifest
from asfl.schemes import SCHEMES
from asfl.summary import Run, Summary
from asfl.sweep import SWEEP_FILE

WATCHED = (COMPARE_FILE, MANIFEST_FILE, RECORDS_FILE, MODEL_FILE)
"""The files of a folder that a report depends on."""


@dataclass(frozen=True)
class FoundRun:
    """One run folder, as far as it has come."""

    folder: Path
    manifest: Manifest
    records: Sequence[RoundRecord]
    finished: bool

    @property
    def scheme(self) -> str:
        return self.manifest.scheme

    @property
    def seed(self) -> int:
        return self.manifest.config.scenario.seed

    @property
    def name(self) -> str:
        return f"{self.scheme} seed {self.seed}"

    @property
    def rounds(self) -> int:
        """Of the whole run, played or not."""
        return self.manifest.config.training.rounds

    def as_run(self) -> Run:
        return Run(self.scheme, self.seed, self.records, self.manifest.budgets)


@dataclass(frozen=True)
class World:
    """Runs that may be compared."""

    title: str
    """What sets it apart from the other worlds of the report; empty if there is only one."""
    config: Config
    """Its seed has no meaning."""
    runs: Sequence[FoundRun]
    """By scheme, then seed."""
    is_comparison: bool
    """Whether `asfl compare` made them."""

    @property
    def finished(self) -> list[FoundRun]:
        return [run for run in self.runs if run.finished]

    @property
    def counted(self) -> list[FoundRun]:
        """Whose numbers go into tables and sentences: finished runs; before there are any, what has begun."""
        return self.finished or [run for run in self.runs if run.records]

    @property
    def schemes(self) -> list[str]:
        return list(dict.fromkeys(run.scheme for run in self.runs))

    def series(self, scheme: str) -> str:
        """What a scheme of this world is called where several worlds meet."""
        return f"{scheme} ({self.title})" if self.title else scheme

    def summary(self, targets: Sequence[float] | None = None) -> Summary:
        return Summary.of([run.as_run() for run in self.counted], targets)


@dataclass(frozen=True)
class Collected:
    """All a report shows."""

    title: str
    worlds: Sequence[World]
    notes: Sequence[str]
    """What isn't shown, and why."""

    @property
    def runs(self) -> list[FoundRun]:
        return [run for world in self.worlds for run in world.runs]


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
    runs = _without_twins([_read(place) for place in places.values()], notes)
    names = list(dict.fromkeys(folder.resolve().name for folder in folders))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return Collected(", ".join(names[:3]) + more, _worlds(runs, compared), notes)


def signature(folders: Sequence[Path]) -> str:
    """Changes whenever a report of these folders would."""
    files = (place / name for folder in _points(folders) for place in (folder, *_below(folder)) for name in WATCHED)
    return repr([_stamp(file) for file in files])


# ---------------------------------------------------------------------- reading
def _points(folders: Sequence[Path]) -> list[Path]:
    """A sweep is the comparisons in it; what recipes made is their worlds."""
    found: list[Path] = []
    for folder in folders:
        several = folder if (folder / SWEEP_FILE).is_file() else folder / WORLDS
        if several.is_dir():
            found += [child for child in _below(several) if (child / COMPARE_FILE).is_file()]
        else:
            found.append(folder)
    return found


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
        inside = sum((child / name).is_file() for child in _below(folder) for name in (MANIFEST_FILE, COMPARE_FILE))
        hint = f"; {_count(inside, 'run')} or comparisons lie in it: give their folders" if inside else ""
        raise AsflError(f"{folder} is neither a run nor a comparison: no {MANIFEST_FILE} or {COMPARE_FILE} in it{hint}")
    yield folder


def _read(folder: Path) -> FoundRun:
    manifest = read_manifest(folder)
    records = read_records(folder) if (folder / RECORDS_FILE).is_file() else []
    return FoundRun(folder, manifest, records, is_finished(folder))


def _without_twins(runs: Iterable[FoundRun], notes: list[str]) -> list[FoundRun]:
    """The same run in two folders counts once: the one that has come further."""
    kept: dict[tuple[str, str], FoundRun] = {}
    for run in runs:
        key = (run.scheme, run.manifest.fingerprint)
        other = kept.get(key)
        if other is None:
            kept[key] = run
            continue
        more, less = (run, other) if len(run.records) > len(other.records) else (other, run)
        notes.append(f"{less.folder.name} is the same run as {more.folder.name} and left out.")
        kept[key] = more
    return list(kept.values())


def _worlds(runs: Sequence[FoundRun], compared: set[Path]) -> list[World]:
    groups: dict[str, list[FoundRun]] = {}
    for run in runs:
        groups.setdefault(_world_key(run), []).append(run)
    titles = _titles([group[0] for group in groups.values()], compared)
    return [
        World(
            title,
            group[0].manifest.config,
            sorted(group, key=lambda run: (_place(run.scheme), run.scheme, run.seed)),
            is_comparison=all(run.folder in compared for run in group),
        )
        for title, group in zip(titles, groups.values(), strict=True)
    ]


def _world_key(run: FoundRun) -> str:
    plain = comparable(run.manifest.config)
    plain["scenario"].pop("seed")
    return json.dumps(plain, sort_keys=True)


def _titles(firsts: Sequence[FoundRun], compared: set[Path]) -> list[str]:
    """What is different, such as "learning_rate 0.01"; where that is more than two fields, the name of the folder."""
    if len(firsts) == 1:
        return [""]
    plain = [by_name(comparable(run.manifest.config)) for run in firsts]
    different = [name for name in differing_names(plain) if name != "scenario.seed"]
    folders = [(run.folder.parent if run.folder in compared else run.folder).resolve().name for run in firsts]
    if len(different) > 2 and len(set(folders)) == len(folders):
        return folders
    return [", ".join(f"{name.rpartition('.')[2]} {_short(one.get(name))}" for name in different) for one in plain]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _place(scheme: str) -> int:
    return list(SCHEMES).index(scheme) if scheme in SCHEMES else len(SCHEMES)


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
