"""Files reach the disk whole or not at all, and only where they seem to go: through no link."""

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from asfl.config.errors import AsflError
from asfl.config.files import open_ordinary

LOCK_FILE = ".lock"
"""Who writes to a folder (`asfl.runs.lock`)."""
_BEING_WRITTEN = re.compile(r"\..+\.(?:[0-9a-f]{8}|part)\.tmp")


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
        reason = error.strerror if isinstance(error, OSError) else None
        raise AsflError(f"can't write {path}: {reason or error}") from None


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
        raise AsflError(f"can't write {folder}: {error.strerror or error}") from None


def part_of(path: Path) -> Path:
    """Where a file that arrives in pieces is put together."""
    return path.with_name(f".{path.name}.part.tmp")


def remove_abandoned(folder: Path) -> None:
    """Remove what killed writes left in a folder; only for whoever has its lock."""
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


def append_line(path: Path, line: str) -> None:
    """Add a line, and make sure it is on the disk."""
    try:
        with os.fdopen(open_ordinary(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise AsflError(f"can't write {path}: {error.strerror or error}; the rounds before are safe") from None


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
