"""What is intact in a run folder, file by file; nothing is changed."""

from dataclasses import dataclass
from pathlib import Path

from asfl.config.errors import AsflError
from asfl.runs.checkpoints import checkpoint_files, read_checkpoint
from asfl.runs.files import LOCK_FILE
from asfl.runs.finished import has_model, was_finished
from asfl.runs.lock import lock_in
from asfl.runs.manifest import CHECKPOINTS, MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest
from asfl.runs.records import RECORDS_FILE, Rounds, read_rounds
from asfl.runs.seals import DamagedError, read_sealed
from asfl.runs.sources import changes, sources_of


@dataclass(frozen=True)
class Finding:
    """About one file."""

    file: str
    intact: bool
    words: str


def check_folder(folder: Path) -> list[Finding]:
    """One finding for each file that belongs to the run."""
    findings = []
    held, lock = lock_in(folder)
    if lock:
        findings.append(Finding("." if held else LOCK_FILE, True, lock))
    try:
        manifest = read_manifest(folder)
    except AsflError as error:
        return [*findings, Finding(MANIFEST_FILE, False, f"{error}; nothing else can be checked without it")]
    findings.append(Finding(MANIFEST_FILE, True, f"intact: {manifest.scheme}, seed {manifest.config.scenario.seed}"))
    try:
        rounds = read_rounds(folder, manifest.fingerprint)
    except AsflError as error:
        return [*findings, Finding(RECORDS_FILE, False, str(error))]
    findings.append(_records(rounds, manifest.rounds, finished=was_finished(folder, manifest)))
    findings += [_checkpoint(file, manifest, rounds) for _, file in checkpoint_files(folder / CHECKPOINTS)]
    if has_model(folder):
        findings.append(_model(folder / MODEL_FILE, manifest, rounds))
    return [*findings, *_sources(manifest)]


def _sources(manifest: Manifest) -> list[Finding]:
    """What isn't as it was when the run began; what can't be read here isn't looked at."""
    try:
        now = sources_of(manifest.config, manifest.scheme, manifest.data_dir(None))
    except AsflError:
        return []
    other = changes(manifest, manifest.config, manifest.data_dir(None), now)
    return [Finding(field, False, words.removeprefix(f"{field} ")) for field, words in other.items()]


def _records(rounds: Rounds, total: int, *, finished: bool) -> Finding:
    count = f"{len(rounds.lines)} of {total} rounds"
    if rounds.problem:
        return Finding(RECORDS_FILE, False, f"{count} intact, then {rounds.problem}")
    if finished and (rounds.torn or not rounds.are_all(total)):
        return Finding(RECORDS_FILE, False, f"{count} intact, but the run was finished: the end was changed")
    if rounds.are_all(total) and len(rounds.lines) < total:
        count += ", as many as the total budget allows"
    return Finding(RECORDS_FILE, True, f"intact: {count}{', and one that was never finished' if rounds.torn else ''}")


def _checkpoint(file: Path, manifest: Manifest, rounds: Rounds) -> Finding:
    name = f"{CHECKPOINTS}/{file.name}"
    try:
        seal = read_checkpoint(file, manifest.fingerprint).seal
    except DamagedError as damage:
        return Finding(name, False, str(damage))
    except AsflError as error:
        return Finding(name, False, str(error))
    if seal.round > len(rounds.lines) or seal.records != rounds.seals[seal.round]:
        return Finding(name, False, f"intact, but of other rounds than {RECORDS_FILE} has")
    return Finding(name, True, f"intact: after round {seal.round}")


def _model(file: Path, manifest: Manifest, rounds: Rounds) -> Finding:
    try:
        seal, content = read_sealed(file)
    except DamagedError as damage:
        return Finding(MODEL_FILE, False, str(damage))
    shorter = manifest.begun_with_rounds is not None and seal.round < manifest.rounds
    if seal.fingerprint != manifest.fingerprint or not (shorter or seal.records == rounds.seals[-1]):
        return Finding(MODEL_FILE, False, "it is the model of another run, or of other rounds")
    after = f", of round {seal.round}, kept until the run has all {manifest.rounds}" if shorter else ""
    return Finding(MODEL_FILE, True, f"intact: {len(content):,} bytes{after}")
