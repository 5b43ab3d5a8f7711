"""Temporary folders that go sooner or later, even if the process that made them is killed."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".lock"
_YOUNG_S = 60.0


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None, *, longest: int | None = None) -> Iterator[Path]:
    """A new folder below `parent` (default: where temporary files go), locked for as long as this process uses it.

    `longest`: how many characters the parent may have; /tmp takes the place of a longer one. Ray puts sockets far
    below such a folder, and the path of a socket has room for about 100 characters.
    """
    from filelock import FileLock

    parent = parent or Path(tempfile.gettempdir())
    if longest is not None and len(str(parent)) > longest:
        parent = Path("/tmp")
    _remove_abandoned(parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    lock = FileLock(folder / _LOCK)
    lock.acquire()
    try:
        yield folder
    finally:
        lock.release()  # Windows removes nothing that is open
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove what killed processes left behind: nobody holds the lock any more."""
    from filelock import FileLock, Timeout

    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError, Timeout):  # somebody else's, gone, or in use
            if time.time() - folder.stat().st_mtime < _YOUNG_S or not (folder / _LOCK).exists():
                continue  # it may be about to be locked, or isn't ours
            with FileLock(folder / _LOCK, timeout=0):
                pass  # so nobody holds it
            shutil.rmtree(folder, ignore_errors=True)
