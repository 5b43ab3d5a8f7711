"""Whether a run is finished: all rounds and the model are there, and nothing of it was changed since."""

import sys
from functools import lru_cache
from pathlib import Path

from asfl.config.errors import AsflError
from asfl.runs.manifest import MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest
from asfl.runs.records import RECORDS_FILE, read_rounds
from asfl.runs.seals import DamagedError, read_sealed, seal_of

MODEL_SEAL = seal_of(Path(MODEL_FILE)).name
Stamp = tuple[int, int, int]


def is_finished(folder: Path, rounds: int = 1) -> bool:
    """Whether all rounds of the run in this folder, and at least so many, are done and intact; False without a run."""
    try:
        stamps = tuple(_stamp(folder / name) for name in (MANIFEST_FILE, RECORDS_FILE, MODEL_FILE, MODEL_SEAL))
    except (OSError, ValueError):
        return False
    return _finished_rounds(folder.absolute(), stamps) >= rounds


def was_finished(folder: Path, manifest: Manifest) -> bool:
    """Whether it was, once, whatever has happened to its files since."""
    if manifest.begun_with_rounds is None:
        return has_model(folder)
    return model_round(folder, manifest) == manifest.rounds


def has_model(folder: Path) -> bool:
    return (folder / MODEL_SEAL).exists() or (folder / MODEL_FILE).exists()


def model_round(folder: Path, manifest: Manifest) -> int | None:
    """After how many rounds the model of a run is; None if there is none that is intact.

    A run that is extended keeps its model until it has the new one.
    """
    try:
        seal, _ = read_sealed(folder / MODEL_FILE)
    except DamagedError:
        return None
    return seal.round if seal.fingerprint == manifest.fingerprint else None


@lru_cache(maxsize=4096)  # comparisons ask again and again, and models can be large
def _finished_rounds(folder: Path, stamps: tuple[Stamp, ...]) -> int:
    """0 if it isn't finished; as many as anybody may ask for, if its total budgets are used up."""
    try:
        manifest = read_manifest(folder)
        rounds = read_rounds(folder, manifest.fingerprint)
        seal, _ = read_sealed(folder / MODEL_FILE)
    except (AsflError, DamagedError):
        return 0
    complete = not rounds.problem and not rounds.torn and rounds.are_all(manifest.rounds)
    of_this_run = (seal.fingerprint, seal.round, seal.records) == (
        manifest.fingerprint,
        len(rounds.lines),
        rounds.seals[-1],
    )
    if not (complete and of_this_run):
        return 0
    return sys.maxsize if rounds.records[-1].uses_up_the_budget else len(rounds.lines)


def _stamp(file: Path) -> Stamp:
    facts = file.stat()
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
