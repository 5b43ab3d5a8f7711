"""A run folder on its way between machines that share no disk: what changed, in pieces, in an order that is safe.

At home the folder can be resumed at any moment, whatever has arrived so far. So the manifest goes first; a round is
recorded before a checkpoint that knows it; a checkpoint's numbers come before the seal that makes them valid; and the
model goes last and is put in place with its seal, which says that the run is finished. A file is put in place in one
step, when it is whole.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath

from asfl.config.errors import AsflError
from asfl.config.files import open_ordinary, open_to_read
from asfl.runs.files import Seal, write_sealed, write_whole
from asfl.runs.folder import MODEL_SEAL
from asfl.runs.jobs import Ended
from asfl.runs.manifest import CHECKPOINTS, MANIFEST_FILE, MODEL_FILE, read_manifest
from asfl.runs.records import RECORDS_FILE, Journal, RoundRecord, read_rounds

PIECE_BYTES = 16 * 2**20
"""Checkpoints can be gigabytes; nobody on the way has to hold a whole one."""

Stamp = tuple[int, int]
"""Of a file: when it was written, and its size."""


@dataclass(frozen=True)
class Piece:
    """Part of a file."""

    name: str
    """Below the run folder, with "/" between its parts."""
    content: bytes
    first: bool
    last: bool


@dataclass(frozen=True)
class Gone:
    """Files that were there and were removed."""

    names: tuple[str, ...]


News = RoundRecord | Piece | Gone | Ended
"""What is heard of a run; `Ended` is the last word."""


def list_files(folder: Path) -> dict[str, Stamp]:
    """All files of a run folder in a safe order; not the ones being written, whose names begin with a dot."""
    found: dict[str, Stamp] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(root) / name for name in files if not name.startswith(".")):
            with suppress(FileNotFoundError):  # an old checkpoint, removed this moment
                facts = path.lstat()
                if stat.S_ISREG(facts.st_mode):
                    found[path.relative_to(folder).as_posix()] = facts.st_mtime_ns, facts.st_size
    return {name: found[name] for name in sorted(found, key=_turn)}


def _turn(name: str) -> tuple[int, str, bool]:
    if PurePosixPath(name).parts[0] == CHECKPOINTS:
        return 2, PurePosixPath(name).stem, _is_seal(name)  # the seal after what it seals
    return {MANIFEST_FILE: 0, MODEL_FILE: 3, MODEL_SEAL: 4}.get(name, 1), name, False


def part_of(path: Path) -> Path:
    """Where a file that arrives in pieces is put together."""
    return path.with_name(f".{path.name}.0123abcd.tmp")


class Source:
    """A run folder that is trained in, and whose changes are sent home."""

    def __init__(self, folder: Path) -> None:
        """What is in it now came from home."""
        self.folder = folder
        self._at_home = list_files(folder)
        self._manifest = self._at_home.get(MANIFEST_FILE)
        self._parcel: Iterator[Piece | Gone] = iter(())

    def manifest(self) -> list[Piece]:
        """The manifest, if it is new or was changed; to be sent before anything else."""
        with suppress(FileNotFoundError):
            facts = (self.folder / MANIFEST_FILE).stat()
            before, self._manifest = self._manifest, (facts.st_mtime_ns, facts.st_size)
            if self._manifest == before:
                return []
        return list(_in_pieces(self.folder, [MANIFEST_FILE]))

    def next_piece(self, everything: bool) -> Piece | Gone | None:
        """What to send next: what changed, whenever there is a new checkpoint; if `everything`, also without one."""
        piece = next(self._parcel, None)
        if piece is None:
            self._pack(everything)
            piece = next(self._parcel, None)
        return piece

    def _pack(self, everything: bool) -> None:
        here = list_files(self.folder)
        changed = [
            name
            for name, stamp in here.items()
            if stamp != self._at_home.get(name)
            and name not in (MANIFEST_FILE, RECORDS_FILE)  # they travel by themselves
        ]
        if everything or any(_is_seal(name) for name in changed):
            gone = tuple(name for name in self._at_home if name not in here)
            self._at_home = here
            self._parcel = chain(_in_pieces(self.folder, changed), [Gone(gone)] if gone else [])


def send(folder: Path) -> Iterator[Piece]:
    """A whole run folder, as it is."""
    return _in_pieces(folder, list_files(folder))


def _is_seal(name: str) -> bool:
    """Whether a file says of a checkpoint that it is whole."""
    path = PurePosixPath(name)
    return path.parts[0] == CHECKPOINTS and path.suffix == ".json"


def _in_pieces(folder: Path, names: Iterable[str]) -> Iterator[Piece]:
    """The contents of files; of one that is gone by now, nothing."""
    for name in names:
        try:
            file = open_to_read(folder / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AsflError(f"can't read {folder / name}: {error.strerror or error}") from None
        with file:  # stays readable if it is removed or replaced on the way
            content, first = file.read(PIECE_BYTES), True
            while True:
                after = file.read(PIECE_BYTES)
                yield Piece(name, content, first, last=not after)
                if not after:
                    break
                content, first = after, False


class Destination:
    """A run folder that files arrive in, and rounds as they are played."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journal: Journal | None = None

    def take(self, news: News) -> None:
        """Put down what arrived."""
        if isinstance(news, RoundRecord):
            self._append(news)
        elif isinstance(news, Gone):
            self._remove(news.names)
        elif isinstance(news, Piece):
            self._write(news)

    def _append(self, record: RoundRecord) -> None:
        """Record a round. The first one after a death may have been recorded before: it is played again."""
        if self._journal is None:
            rounds, before = read_rounds(self.folder, read_manifest(self.folder).fingerprint), record.round - 1
            if len(rounds.lines) < before:
                raise AsflError(
                    f"{self.folder / RECORDS_FILE} ends after round {len(rounds.lines)}, but round {record.round} came "
                    "next"
                )
            self._journal = Journal(self.folder, rounds, before)
        self._journal.append(record)

    def _remove(self, names: Iterable[str]) -> None:
        for name in sorted(names, key=_turn, reverse=True):  # a seal before what it sealed
            place = self.folder / name
            place.unlink(missing_ok=True)
            with suppress(OSError):  # not empty yet
                for parent in place.relative_to(self.folder).parents[:-1]:
                    (self.folder / parent).rmdir()

    def _write(self, piece: Piece) -> None:
        """The last piece of a file puts the file in its place; a model waits for its seal."""
        place = self.folder / piece.name
        model = self.folder / MODEL_FILE
        if piece.name == MODEL_SEAL and part_of(model).exists():
            facts = json.loads(piece.content)
            facts.pop("seal")
            seal = Seal.model_validate(facts)
            content, records = part_of(model).read_bytes(), seal.records
            write_sealed(model, content, round=seal.round, fingerprint=seal.fingerprint, records=records)
            part_of(model).unlink()
            return
        mode = 0o600 if piece.name.startswith(f"{CHECKPOINTS}/") else 0o666
        if piece.first and piece.last and piece.name != MODEL_FILE:
            write_whole(place, piece.content, mode)
            return
        part = part_of(place)  # the next attempt writes over what an interrupted one left
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            begin = os.O_TRUNC if piece.first else os.O_APPEND
            with os.fdopen(open_ordinary(part, os.O_WRONLY | os.O_CREAT | begin, mode), "wb") as out:
                out.write(piece.content)
                out.flush()
                if piece.last:
                    os.fsync(out.fileno())
            if piece.last and piece.name != MODEL_FILE:
                part.replace(place)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise AsflError(f"can't write {place}: {error.strerror or error}") from None
