"""Files reach the disk whole or not at all, only where they seem to go (through no link), and with a checksum.

A small JSON file has a `seal`, the checksum of the rest of it. A file of numbers has such a file beside it, written
last, with its length and SHA-256, and with the run and the rounds it belongs to. Checksums, not signatures: they tell
accidents, not forgers. A folder has one writer at a time: a lock of the operating system, which ends with the process
that holds it.
"""

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from asfl._version import __version__
from asfl.config.errors import AsflError
from asfl.config.files import MAX_TEXT_BYTES, no_key_twice, open_ordinary, read_file

LOCK_FILE = ".lock"
_BEING_WRITTEN = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_log = logging.getLogger(__name__)


def write_whole(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write beside the file, make sure it is on the disk, then put it in place in one step.

    Text is written in UTF-8; what isn't text in it, such as a part of a folder's name, is spelt out.
    `mode` is what the file may be at most; the process's umask takes from it, as from any other file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open_ordinary(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, ValueError) as error:  # a path with a NUL in it is a ValueError
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)
        raise AsflError(f"can't write {path}: {_reason(error)}") from None


def append_line(path: Path, line: str) -> None:
    """Add a line, and make sure it is on the disk."""
    try:
        with os.fdopen(open_ordinary(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise AsflError(f"can't write {path}: {_reason(error)}; the rounds before are safe") from None


def sync_folder(folder: Path) -> None:
    """The new name of a file is on the disk only when its folder is."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows has no such thing
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise AsflError(f"can't write {folder}: {_reason(error)}") from None


def remove_abandoned(folder: Path) -> None:
    """Remove what killed writes left in a folder; only its writer may."""
    for path in _entries(folder):
        if _BEING_WRITTEN.fullmatch(path.name):
            with suppress(OSError):
                path.unlink()


def is_untouched(folder: Path) -> bool:
    """Whether nothing is in a folder, if there is one, but what a killed process left before its first file."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        path.name == LOCK_FILE or _BEING_WRITTEN.fullmatch(path.name) for path in _entries(folder)
    )


def refuse_links(folder: Path) -> None:
    """Refuse a folder that is a link, or has a link to a folder in it: what is written below would land elsewhere."""
    for path in (folder, *_entries(folder)):
        if path.is_symlink() and (path.is_dir() or not path.exists()):
            raise AsflError(f"{path} is a link, and links aren't followed to write; give the folder itself")


def cell(value: Any) -> Any:
    """What stands in a CSV file for a value: a text that a spreadsheet would take for a formula begins with an '."""
    if not isinstance(value, str) or not value.lstrip().startswith(("=", "+", "-", "@")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def safe_name(text: str) -> str:
    """A file name: characters that file systems dislike become "_"."""
    return re.sub(r"[^A-Za-z0-9.=,+_-]", "_", text)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


# ---------------------------------------------------------------------- a JSON file with its checksum in it
_SEAL = "seal"
MAX_JSON_BYTES = 1 << 30
"""A manifest may hold what ASFL decided in every round."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RoundsChecksum = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


def sealed_json(data: dict[str, Any]) -> bytes:
    return json.dumps({**data, _SEAL: _checksum(data)}, indent=2).encode()


def read_sealed_json(file: Path, format_: int) -> dict[str, Any]:
    """What is in such a file; `AsflError` if it isn't of this format or was changed, ValueError if it isn't JSON."""
    try:
        data = json.loads(read_file(file, MAX_JSON_BYTES), object_pairs_hook=no_key_twice)
    except (OSError, RecursionError) as error:
        raise ValueError(_reason(error)) from None
    if not isinstance(data, dict) or "format" not in data:
        raise ValueError("no format in it")
    if data["format"] != format_:
        raise AsflError(
            f"{file}: format {ascii(data['format'])[:40]}, but this asfl ({__version__}) reads format {format_}; "
            "use the version that wrote it"
        )
    if _SEAL not in data:
        raise ValueError("no seal in it")
    try:
        return _opened(data)
    except ValueError:
        raise AsflError(
            f"{file} was changed or damaged after it was written: its seal doesn't match; bring back the file as it was"
        ) from None


def _opened(data: Any) -> dict[str, Any]:
    """Without its seal, which must match."""
    if not isinstance(data, dict) or data.pop(_SEAL, None) != _checksum(data):
        raise ValueError("the seal doesn't match")
    return data


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------------- a file of numbers with its checksum beside it
class Seal(BaseModel):
    """What is written beside a checkpoint or a model."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    round: Annotated[int, Field(ge=0)]
    """How many rounds were played."""
    bytes: Annotated[int, Field(ge=0)]
    sha256: Sha256
    fingerprint: Sha256
    """Of the run."""
    records: RoundsChecksum
    """Checksum of the last of those rounds, in rounds.jsonl."""


def seal_of(file: Path) -> Path:
    return file.with_suffix(".json")


def write_sealed(file: Path, content: bytes, *, round: int, fingerprint: str, records: str, mode: int = 0o666) -> None:
    """First the content, then the seal that makes it valid."""
    sha256 = hashlib.sha256(content).hexdigest()
    seal = Seal(round=round, bytes=len(content), sha256=sha256, fingerprint=fingerprint, records=records)
    write_whole(file, content, mode)
    write_whole(seal_of(file), sealed_json(seal.model_dump()))


class DamagedError(Exception):
    """A sealed file isn't what was written. The message says in which way."""


def read_sealed(file: Path) -> tuple[Seal, bytes]:
    """Seal and content, if they belong together; else `DamagedError`."""
    if not file.is_file():
        raise DamagedError("it is gone")
    try:
        seal = Seal.model_validate(_opened(json.loads(read_file(seal_of(file)), object_pairs_hook=no_key_twice)))
    except FileNotFoundError:
        raise DamagedError("it has no seal: its writing was never finished, or the seal was removed") from None
    except (OSError, ValueError, RecursionError):  # a ValidationError is a ValueError
        raise DamagedError(f"its seal, {seal_of(file).name}, was changed or can't be read") from None
    try:
        content = read_file(file, max(seal.bytes, MAX_TEXT_BYTES))
    except OSError as error:
        raise DamagedError(f"it can't be read ({error.strerror})") from None
    if len(content) != seal.bytes:
        raise DamagedError(f"it has {len(content):,} bytes instead of {seal.bytes:,}")
    if hashlib.sha256(content).hexdigest() != seal.sha256:
        raise DamagedError("its content was changed: the checksum doesn't match")
    return seal, content


# ---------------------------------------------------------------------- one writer a folder
PATIENCE_S = 3.0
"""A process that was killed a moment ago may still be on its way out."""
_MOST_WORDS = 500
_NOT_SUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold a folder, made if it isn't there, for as long as this process may write to it.

    Refused, with the name of the holder, if another process writes to it, and if a link would lead out of it. What
    killed writes left in it is removed.
    """
    refuse_links(folder)
    file = folder / LOCK_FILE
    handle = _acquire(folder, file)
    try:
        remove_abandoned(folder)
        yield
    finally:
        if handle is not None:
            with suppress(OSError):  # Windows removes nothing that is open; there the file stays, and says nothing
                file.unlink()
            os.close(handle)


def lock_in(folder: Path) -> tuple[bool, str]:
    """Whether a process writes to a folder at this moment, and what its lock file says; nothing if there is none.

    One that isn't held was left by a process that was killed.
    """
    file = folder / LOCK_FILE
    try:
        handle = open_ordinary(file, os.O_RDWR)
    except FileNotFoundError:
        return False, ""
    except OSError as error:
        return False, f"can't be opened: {error.strerror}"
    try:
        if not _lock(handle):
            return True, f"{_holder(file)} is writing to it"
        return False, f"left by {_holder(file)}, which ended without removing it; the next command may write here"
    except OSError as error:
        return False, f"can't be locked: {error.strerror}"
    finally:
        os.close(handle)


def _acquire(folder: Path, file: Path) -> int | None:
    """The open lock file, locked and ours; None where the file system has no locks."""
    due = time.monotonic() + PATIENCE_S
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = open_ordinary(file, os.O_RDWR | os.O_CREAT)
        except (OSError, ValueError) as error:
            named = file if isinstance(error, OSError) and error.filename == str(file) else folder
            raise AsflError(f"can't write to {named}: {_reason(error)}") from None
        try:
            locked = _lock(handle)
        except OSError as error:
            os.close(handle)
            if error.errno not in _NOT_SUPPORTED:
                raise AsflError(f"can't lock {folder}: {error.strerror}") from None
            _log.warning("%s: this file system has no locks; make sure that no other process writes there", folder)
            return None
        if locked and _is_still(handle, file):
            command = shlex.join([Path(sys.argv[0] or "asfl").name, *sys.argv[1:]])[:200]
            since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
            words = f"process {os.getpid()} on {socket.gethostname()} ({command}), since {since},"
            with suppress(OSError):  # a full disk: then others aren't told who holds it
                os.ftruncate(handle, 0)
                os.write(handle, words.encode("ascii", "backslashreplace")[:_MOST_WORDS])
            return handle
        os.close(handle)
        if time.monotonic() > due:
            raise AsflError(f"{folder} is in use: {_holder(file)} is writing to it; wait for it, or give another --out")
        time.sleep(0.02)


def _is_still(handle: int, file: Path) -> bool:
    """Whether the file we locked is the one that is there: its last holder removed it when leaving."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except OSError:
        return False


def _holder(file: Path) -> str:
    """As its lock file says, whatever it says."""
    with suppress(OSError):
        words = read_file(file, _MOST_WORDS).decode("ascii", "replace")
        if words and words.isprintable():
            return words
    return "another process"


def _lock(handle: int) -> bool:
    """Lock an open file for this process; False if another one has it."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise OSError(errno.ENOTSUP, "this system has no such locks") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
