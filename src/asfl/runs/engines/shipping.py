"""A run folder on its way between machines that share no disk: what changed, in an order that is safe.

At home the folder can be resumed at any moment, whatever has arrived so far. So the manifest goes first; a round is
recorded before a checkpoint that knows it; a checkpoint's numbers come before the seal that makes them valid; and the
model goes last, together with its seal, which says that the run is finished. A file is put in place in one step.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from asfl.config.errors import AsflError
from asfl.config.files import MAX_FILE_BYTES, read_file
from asfl.runs.files import DamagedError, Seal, read_sealed, write_sealed, write_whole
from asfl.runs.folder import MODEL_SEAL
from asfl.runs.jobs import Ended
from asfl.runs.manifest import CHECKPOINTS, MANIFEST_FILE, MODEL_FILE, read_manifest
from asfl.runs.records import RECORDS_FILE, Journal, RoundRecord, read_rounds


@dataclass(frozen=True)
class Parcel:
    """A file."""

    name: str
    """Below the run folder, with "/" between its parts."""
    content: bytes
    seal: Seal | None = None
    """Of the model, which travels with it."""


@dataclass(frozen=True)
class Gone:
    """Files that were there and were removed."""

    names: tuple[str, ...]


News = RoundRecord | Parcel | Gone | Ended
"""What is heard of a run; `Ended` is the last word."""


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """All files of a run folder in a safe order, and when each was written, and its size.

    Not the ones that are being written, whose names begin with a dot.
    """
    found: dict[str, tuple[int, int]] = {}
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
    return {MANIFEST_FILE: 0, MODEL_FILE: 3}.get(name, 1), name, False


def _is_seal(name: str) -> bool:
    """Whether a file says of a checkpoint that it is whole."""
    path = PurePosixPath(name)
    return path.parts[0] == CHECKPOINTS and path.suffix == ".json"


def send(folder: Path, names: Iterable[str] | None = None) -> Iterator[Parcel]:
    """A run folder as it is, or some of its files; of one that is gone by now, nothing."""
    for name in list_files(folder) if names is None else names:
        try:
            if name == MODEL_FILE:
                seal, content = read_sealed(folder / name)
                yield Parcel(name, content, seal)
            elif name != MODEL_SEAL:
                yield Parcel(name, read_file(folder / name, MAX_FILE_BYTES))
        except (FileNotFoundError, DamagedError):
            continue
        except OSError as error:
            raise AsflError(f"can't read {folder / name}: {error.strerror or error}") from None


class Source:
    """A run folder that is trained in, and whose changes are sent home."""

    def __init__(self, folder: Path) -> None:
        """What is in it now came from home."""
        self.folder = folder
        self._at_home = list_files(folder)
        self._manifest = self._at_home.get(MANIFEST_FILE)

    def manifest(self) -> list[Parcel]:
        """The manifest, if it is new or was changed; to be sent before anything else."""
        with suppress(FileNotFoundError):
            facts = (self.folder / MANIFEST_FILE).stat()
            before, self._manifest = self._manifest, (facts.st_mtime_ns, facts.st_size)
            if self._manifest == before:
                return []
        return list(send(self.folder, [MANIFEST_FILE]))

    def changes(self, everything: bool) -> list[Parcel | Gone]:
        """What changed, whenever there is a new checkpoint; if `everything`, also without one."""
        here = list_files(self.folder)
        changed = [
            name
            for name, stamp in here.items()
            if stamp != self._at_home.get(name)
            and name not in (MANIFEST_FILE, RECORDS_FILE)  # they travel by themselves
        ]
        if not everything and not any(_is_seal(name) for name in changed):
            return []
        gone = tuple(name for name in self._at_home if name not in here)
        self._at_home = here
        return [*send(self.folder, changed), *([Gone(gone)] if gone else [])]


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
        elif isinstance(news, Parcel) and news.seal is not None:
            seal = news.seal
            place = self.folder / news.name
            write_sealed(place, news.content, round=seal.round, fingerprint=seal.fingerprint, records=seal.records)
        elif isinstance(news, Parcel):
            write_whole(self.folder / news.name, news.content, 0o600 if news.name.startswith(CHECKPOINTS) else 0o666)

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
