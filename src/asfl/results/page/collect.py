"""Folders → the runs of one world: what a report is about; nothing is written.

Runs share a world if their configurations differ in nothing but the seed (and in what doesn't change results), or in
what a comparison sets for single schemes. Only such runs may be averaged over seeds or held against each other.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.results.curves import RunFolder, read_run
from asfl.runs.comparison import COMPARE_FILE, Comparison, read_comparison
from asfl.runs.folder import MODEL_SEAL
from asfl.runs.jobs import error_report
from asfl.runs.manifest import MANIFEST_FILE, comparable, first_difference
from asfl.runs.play import with_seed
from asfl.runs.records import RECORDS_FILE
from asfl.schemes import SCHEMES

WATCHED = (COMPARE_FILE, MANIFEST_FILE, RECORDS_FILE, MODEL_SEAL)
"""The files of a folder that a report depends on."""


@dataclass(frozen=True)
class Collected:
    """All a report shows."""

    title: str
    config: Config
    """Its seed has no meaning."""
    runs: Sequence[RunFolder]
    """By scheme, then seed."""
    notes: Sequence[str]
    """What isn't shown, and why."""

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

    @property
    def costs(self) -> str:
        """Where seconds and joules are from."""
        return "measured" if self.config.field.costs == "measured" else "simulated"


def collect(folders: Sequence[Path]) -> Collected:
    """Read run folders and comparisons of one world; a clear error for anything else."""
    if not folders:
        raise AsflError("no folder given; give run folders or the folders of comparisons")
    compared = [read_comparison(place) for place in _holding(COMPARE_FILE, folders)]
    notes = [note for one in compared for note in _not_shown(one)]
    runs = _without_twins([read_run(place) for place in _holding(MANIFEST_FILE, folders)], notes)
    configs = [one.config for one in compared]
    worlds = [_world_of(run, configs) for run in runs] or configs
    for run, world in zip(runs[1:], worlds[1:], strict=False):
        if _world_key(world) != _world_key(worlds[0]):
            difference = first_difference(with_seed(worlds[0], world.scenario.seed), world)
            raise AsflError(
                f"{run.folder} is in another world than {runs[0].folder} ({difference}); a report is about one world"
            )
    names = list(dict.fromkeys(folder.resolve().name for folder in folders))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return Collected(", ".join(names[:3]) + more, worlds[0], sorted(runs, key=_place), notes)


def signature(folders: Sequence[Path]) -> str:
    """Changes whenever a report of these folders would."""
    files = (place for folder in folders for name in WATCHED for place in sorted(folder.rglob(name)))
    return repr([_stamp(file) for file in files])


# ---------------------------------------------------------------------- reading
def _holding(name: str, folders: Sequence[Path]) -> list[Path]:
    """All folders in and below these, each once, that have such a file."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise AsflError(f"{folder} is not a run folder: there is no such folder")
        if not any(next(folder.rglob(one), None) for one in (MANIFEST_FILE, COMPARE_FILE)):
            raise AsflError(
                f"{folder} is neither a run nor a comparison: no {MANIFEST_FILE} or {COMPARE_FILE} in or below it"
            )
        for file in sorted(folder.rglob(name)):
            found.setdefault(file.parent.resolve(), file.parent)
    return list(found.values())


def _not_shown(comparison: Comparison) -> Iterator[str]:
    places = [comparison.run_folder(scheme, seed) for scheme in comparison.schemes for seed in comparison.seeds]
    name, missing = comparison.folder.name, sum(not (place / MANIFEST_FILE).is_file() for place in places)
    if missing:
        yield f"{name}: {missing} run{'' if missing == 1 else 's'} of {len(places)} not begun yet."
    failed = [place.name for place in places if error_report(place).is_file()]
    if failed:
        yield f"{name}: failed at the last try: {', '.join(failed)} (see the .error.txt files)."


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


def _world_of(run: RunFolder, worlds: Sequence[Config]) -> Config:
    """A run's configuration has its scheme's own settings in it; that of its world has those of all schemes."""
    own = run.manifest.config
    return next((one for one in worlds if _world_key(one.for_scheme(run.scheme)) == _world_key(own)), own)


def _world_key(config: Config) -> str:
    plain = comparable(config)
    plain["scenario"].pop("seed")
    return json.dumps(plain, sort_keys=True)


def _place(run: RunFolder) -> tuple[int, str, int]:
    known = list(SCHEMES)
    return known.index(run.scheme) if run.scheme in known else len(known), run.scheme, run.seed


def _stamp(file: Path) -> tuple[str, int, int]:
    try:
        stat = file.stat()
    except OSError:
        return (str(file), 0, 0)
    return (str(file), stat.st_mtime_ns, stat.st_size)
