"""Folders that are needed for a while, and go sooner or later even if the process that made them is killed."""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_LOCK = ".lock"
_YOUNG_S = 60.0


class Scratch:
    """A new folder below `parent`, locked for as long as this process lives."""

    def __init__(self, parent: Path, prefix: str) -> None:
        _remove_abandoned(parent, prefix)
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock = os.open(self.folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove what was left by processes that were killed: nobody holds the lock any more."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # somebody else's, in use, or gone
            if time.time() - folder.stat().st_mtime < _YOUNG_S:  # it may be about to be locked
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
