"""Files reach the disk whole or not at all."""

import os
import tempfile
from pathlib import Path

from asfl.errors import AsflError


def write_whole(path: Path, content: bytes) -> None:
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
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise AsflError(f"can't write {path}: {error.strerror or error}") from None
