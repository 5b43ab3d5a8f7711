"""Files reach the disk whole or not at all."""

import os
import re
import tempfile
from pathlib import Path

from asfl.config.errors import AsflError


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write beside the file, make sure it is on the disk, then put it in place in one step."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise AsflError(f"can't write {path}: {error.strerror or error}") from None


def append_line(path: Path, line: str) -> None:
    """Add a line, and make sure it is on the disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise AsflError(f"can't write {path}: {error.strerror or error}; the rounds before are safe") from None


def safe_name(text: str) -> str:
    """A file name: characters that file systems dislike become "_"."""
    return re.sub(r"[^A-Za-z0-9.=,+_-]", "_", text)
