"""The folder of a run: its checkpoints, where the run goes on, whether it is finished, and which files are intact.

A checkpoint is a safetensors file, which holds numbers and no code. One that doesn't match its seal is torn, and the
checkpoint before it is taken; so two are kept. A run goes on after the newest checkpoint that is whole and of whose
rounds every record is intact.

What a run takes from outside its folder (data, a trace, initial weights, plugins) has a checksum in its manifest, by
the field that names it: `data.name`, `scenario.channel.trace_file`, `training.initial`; and `scheme`,
`scenario.channel.kind` and `model.architecture`, where a plugin says what the name means.
"""

import hashlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from asfl.config import Config
from asfl.config.errors import AsflError, printable
from asfl.config.files import open_to_read
from asfl.config.names import CHANNELS, MODELS, loaded_plugins
from asfl.data import load_data
from asfl.data.load import origin_of
from asfl.runs.files import LOCK_FILE, DamagedError, Seal, lock_in, read_sealed, refuse_links, seal_of, write_sealed
from asfl.runs.manifest import CHECKPOINTS, MANIFEST_FILE, MODEL_FILE, Manifest, Source, read_manifest
from asfl.runs.records import DIVERGED, RECORDS_FILE, Journal, Rounds, read_rounds
from asfl.schemes import SCHEMES

if TYPE_CHECKING:
    from torch import Tensor

MODEL_SEAL = seal_of(Path(MODEL_FILE)).name
KEPT = 2
_NAME = re.compile(r"round-(\d{6,})\.safetensors")
_MAY_BE_ANYTHING = ("signals.", "fleet.", "reserves.")
"""Tensors of things that aren't known yet, or have no limit."""
_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------- checkpoints
@dataclass(frozen=True)
class Checkpoint:
    """One that is whole."""

    file: Path
    seal: Seal
    tensors: "dict[str, Tensor]"


def save_checkpoint(folder: Path, round: int, tensors: "Mapping[str, Tensor]", fingerprint: str, records: str) -> None:
    """Save the state after so many rounds; older checkpoints but the last are removed.

    Others may not read it: it holds the sides of all clients.
    """
    from safetensors.torch import save

    check_finite(tensors, round)
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    file = folder / CHECKPOINTS / f"round-{round:06d}.safetensors"
    refuse_links(file.parent)
    write_sealed(file, content, round=round, fingerprint=fingerprint, records=records, mode=0o600)
    for old in [path for number, path in checkpoint_files(folder) if number <= round][KEPT:]:
        _remove(old)


def check_finite(tensors: "Mapping[str, Tensor]", rounds: int) -> None:
    """Refuse a state or a model, after so many rounds, that no run could go on from."""
    for name, tensor in tensors.items():
        if name.startswith(_MAY_BE_ANYTHING) or not tensor.is_floating_point():
            continue
        if not tensor.isfinite().all():
            raise AsflError(
                f"after round {rounds}: {DIVERGED}, {name} has numbers that are not finite; it is not saved, and the "
                "checkpoint before is whole"
            )


def read_checkpoint(file: Path, fingerprint: str) -> Checkpoint:
    """`DamagedError` if it isn't whole, `AsflError` if it is one of another run."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    seal, content = read_sealed(file)
    if seal.fingerprint != fingerprint:
        raise AsflError(
            f"{file} belongs to another configuration or scheme than the manifest beside it; "
            "remove it, or bring back the manifest it was made with"
        )
    if file.name != f"round-{seal.round:06d}.safetensors":
        raise DamagedError(f"it is the checkpoint of round {seal.round} under another name")
    try:
        return Checkpoint(file, seal, load(content))
    except SafetensorError as error:
        raise DamagedError(f"it holds no tensors ({error})") from None


def checkpoint_files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Checkpoints of a run and the round of each, newest first."""
    below = (folder / CHECKPOINTS).glob("*")
    return iter(
        sorted(((int(match[1]), path) for path in below if (match := _NAME.fullmatch(path.name))), reverse=True)
    )


def _remove(checkpoint: Path) -> None:
    """First the seal: without it the rest isn't valid."""
    refuse_links(checkpoint.parent)
    seal_of(checkpoint).unlink(missing_ok=True)
    checkpoint.unlink(missing_ok=True)


# ---------------------------------------------------------------------- going on
@dataclass(frozen=True)
class Start:
    """A state to go on from."""

    folder: Path
    checkpoint: Checkpoint | None
    """None: the first round is the next."""
    rounds: Rounds

    @property
    def round(self) -> int:
        """How many rounds are kept."""
        return 0 if self.checkpoint is None else self.checkpoint.seal.round

    def clear(self) -> Journal:
        """Remove what comes after: records and checkpoints that are played again, or were damaged."""
        for number, file in checkpoint_files(self.folder):
            if number > self.round:
                _remove(file)
        return Journal(self.folder, self.rounds, self.round)


def where_to_go_on(folder: Path, manifest: Manifest) -> Start:
    """Change nothing yet, and say what is damaged."""
    rounds = read_rounds(folder, manifest.fingerprint)
    found, problems = _newest_usable(folder, manifest, rounds)
    if rounds.problem:
        problems.insert(0, f"{RECORDS_FILE}, {rounds.problem}")
    if rounds.torn:
        problems.append(f"{RECORDS_FILE} has something behind its last round, which is removed")
    if has_model(folder):
        try:
            read_sealed(folder / MODEL_FILE)
        except DamagedError as damage:
            problems.append(f"{MODEL_FILE}: {damage}; it is written again")
    start = Start(folder, found, rounds)
    newest = max((number for number, _ in checkpoint_files(folder)), default=0)
    again = max(rounds.written, newest) - start.round
    if manifest.config.field.costs == "measured" and again > 1:
        # One round may be lost: that between whose record and whose checkpoint the process was killed.
        raise AsflError(
            f"{folder}: {'; '.join(problems) or 'there is no checkpoint'}. So the run could only go on after round "
            f"{start.round}, and {again} rounds behind it were measured and can't be played again; bring back the "
            "files as they were, or give another --out"
        )
    if again and not newest and not problems:
        problems.append("there is no checkpoint yet")
    if problems:
        last = start.round + again
        what = "no round is lost" if not again else f"rounds {start.round + 1} to {last} are played again"
        _log.warning("%s: %s; the run goes on after round %d, %s", folder, "; ".join(problems), start.round, what)
    return start


def _newest_usable(folder: Path, manifest: Manifest, rounds: Rounds) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from, and why newer ones can't be."""
    problems: list[str] = []
    for _, file in checkpoint_files(folder):
        found, words = _usable(file, manifest, rounds)
        if found is not None:
            return found, problems
        problems.append(f"{CHECKPOINTS}/{file.name}: {words}")
    return None, problems


def _usable(file: Path, manifest: Manifest, rounds: Rounds) -> tuple[Checkpoint | None, str]:
    """A checkpoint, if the run could go on from it; and what is to be said of it."""
    try:
        found = read_checkpoint(file, manifest.fingerprint)
    except DamagedError as damage:
        return None, str(damage)
    if found.seal.round > len(rounds.lines):
        return None, f"intact, but {RECORDS_FILE} has only {len(rounds.lines)} intact rounds"
    if found.seal.records != rounds.checksum(found.seal.round):
        return None, f"intact, but of other rounds than {RECORDS_FILE} has"
    return found, f"intact: after round {found.seal.round}"


# ---------------------------------------------------------------------- finished
def is_finished(folder: Path, rounds: int = 1) -> bool:
    """Whether all rounds of the run in this folder, and at least so many, are done and intact; False without a run."""
    try:
        facts = [(folder / name).stat() for name in (MANIFEST_FILE, RECORDS_FILE, MODEL_FILE, MODEL_SEAL)]
    except (OSError, ValueError):
        return False
    stamps = tuple((of.st_mtime_ns, of.st_size, of.st_ino) for of in facts)
    return _finished_rounds(folder.absolute(), stamps) >= rounds


@lru_cache(maxsize=4096)  # comparisons ask again and again, and models can be large
def _finished_rounds(folder: Path, stamps: tuple[tuple[int, int, int], ...]) -> int:
    """0 if it isn't finished; more than any, if its total budgets are used up."""
    try:
        manifest = read_manifest(folder)
        rounds = read_rounds(folder, manifest.fingerprint)
        seal, _ = read_sealed(folder / MODEL_FILE)
    except (AsflError, DamagedError):
        return 0
    played = len(rounds.lines)
    complete = not rounds.problem and not rounds.torn and rounds.are_all(manifest.rounds)
    if not complete or (seal.fingerprint, seal.round, seal.records) != (
        manifest.fingerprint,
        played,
        rounds.checksum(played),
    ):
        return 0
    return sys.maxsize if rounds.records[-1].uses_up_the_budget else played


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


# ---------------------------------------------------------------------- what a run takes from outside its folder
def source_of(path: Path) -> Source:
    """A file, streamed once."""
    path = path.expanduser().absolute()
    try:
        facts = path.stat()
        return Source(origin=printable(str(path)), sha256=_sha256(path, facts.st_mtime_ns, facts.st_size))
    except OSError as error:
        raise AsflError(f"can't read {path}: {error.strerror}") from None


@lru_cache(maxsize=64)  # a comparison asks once for each of its runs
def _sha256(path: Path, mtime_ns: int, size: int) -> str:
    with open_to_read(path, sys.maxsize) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sources_of(config: Config, scheme: str, data_dir: Path | None) -> dict[str, Source]:
    """What is there now; the data are read for it, files are streamed."""
    data, channel = load_data(config, data_dir), config.scenario.channel
    found = {"data.name": Source(origin=printable(origin_of(config, data_dir)), sha256=data.digest)}
    if channel.kind == "trace":
        found["scenario.channel.trace_file"] = source_of(Path(channel.trace_file))
    if isinstance(config.training.initial, str) and config.training.initial:
        found["training.initial"] = source_of(Path(config.training.initial))
    plugins = loaded_plugins()
    for field, registry, name in (
        ("scheme", SCHEMES, scheme),
        ("scenario.channel.kind", CHANNELS, channel.kind),
        ("model.architecture", MODELS, config.model.architecture),
    ):
        file = registry.registered_by(name)
        if file in plugins:  # what a notebook registers has no file
            found[field] = Source(origin=printable(file), sha256=plugins[file])
    return found


def check_sources(
    folder: Path, manifest: Manifest, config: Config, data_dir: Path | None, *, needed: bool = True
) -> None:
    """Refuse what isn't as it was when the run began; unless it is `needed`, what can't be read isn't looked at."""
    try:
        now = sources_of(config, manifest.scheme, data_dir)
    except AsflError:
        if needed:
            raise
        return
    if other := changes(manifest, now):
        raise AsflError(f"{folder}: {'; '.join(other.values())}; bring back what was there, or give another --out")


def changes(manifest: Manifest, now: Mapping[str, Source]) -> dict[str, str]:
    """What is something else than when a run began: a sentence for each field."""
    found = {}
    for field, before in manifest.sources.items():
        if field in now and before.sha256 != now[field].sha256:
            there, here = before.origin, now[field].origin
            where = there if there == here else f"{there} then, {here} now"
            found[field] = f"{field} isn't what it was when the run began ({where})"
    return found


# ---------------------------------------------------------------------- what is intact
@dataclass(frozen=True)
class CheckedFile:
    """What was found out about one file."""

    file: str
    intact: bool
    words: str


def check_folder(folder: Path) -> list[CheckedFile]:
    """One for each file that belongs to the run; nothing is changed."""
    checked: list[CheckedFile] = []

    def say(file: str, intact: bool, words: str) -> list[CheckedFile]:
        checked.append(CheckedFile(file, intact, words))
        return checked

    held, lock = lock_in(folder)
    if lock:
        say("." if held else LOCK_FILE, True, lock)
    try:
        manifest = read_manifest(folder)
    except AsflError as error:
        return say(MANIFEST_FILE, False, f"{error}; nothing else can be checked without it")
    say(MANIFEST_FILE, True, f"intact: {manifest.scheme}, seed {manifest.config.scenario.seed}")
    try:
        rounds = read_rounds(folder, manifest.fingerprint)
    except AsflError as error:
        return say(RECORDS_FILE, False, str(error))
    say(RECORDS_FILE, *_check_records(rounds, manifest.rounds, finished=was_finished(folder, manifest)))
    for _, file in checkpoint_files(folder):
        try:
            found, words = _usable(file, manifest, rounds)
        except AsflError as error:  # it is of another run
            found, words = None, str(error)
        say(f"{CHECKPOINTS}/{file.name}", found is not None, words)
    if has_model(folder):
        say(MODEL_FILE, *_check_model(folder / MODEL_FILE, manifest, rounds))
    with suppress(AsflError):  # what can't be read here isn't looked at
        now = sources_of(manifest.config, manifest.scheme, manifest.data_dir(None))
        for name, words in changes(manifest, now).items():
            say(name, False, words.removeprefix(f"{name} "))
    return checked


def _check_records(rounds: Rounds, total: int, *, finished: bool) -> tuple[bool, str]:
    count = f"{len(rounds.lines)} of {total} rounds"
    if rounds.problem:
        return False, f"{count} intact, then {rounds.problem}"
    if finished and (rounds.torn or not rounds.are_all(total)):
        return False, f"{count} intact, but the run was finished: the end was changed"
    if rounds.are_all(total) and len(rounds.lines) < total:
        count += ", as many as the total budget allows"
    return True, f"intact: {count}{', and one that was never finished' if rounds.torn else ''}"


def _check_model(file: Path, manifest: Manifest, rounds: Rounds) -> tuple[bool, str]:
    try:
        seal, content = read_sealed(file)
    except DamagedError as damage:
        return False, str(damage)
    shorter = manifest.begun_with_rounds is not None and seal.round < manifest.rounds
    if seal.fingerprint != manifest.fingerprint or not (shorter or seal.records == rounds.checksum(len(rounds.lines))):
        return False, "it is the model of another run, or of other rounds"
    after = f", of round {seal.round}, kept until the run has all {manifest.rounds}" if shorter else ""
    return True, f"intact: {len(content):,} bytes{after}"
