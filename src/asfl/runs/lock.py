"""One writer a folder: a lock of the operating system, which ends with the process that holds it."""

import errno
import json
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from asfl.config.errors import AsflError
from asfl.config.files import open_ordinary, read_file
from asfl.runs.files import LOCK_FILE, refuse_links, remove_abandoned

PATIENCE_S = 3.0
"""A process that was killed a moment ago may still be on its way out."""
_LONGEST_COMMAND, _LONGEST_LOCK = 200, 4096
_NOT_SUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
_log = logging.getLogger(__name__)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold a folder, made if it isn't there, for as long as this process may write to it.

    Refused, with the name of the holder, if somebody else writes to it, and if a link would lead out of it. What killed
    writes left in it is removed.
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


def writer_of(folder: Path) -> str | None:
    """Who writes to a folder at this moment: process, host, command, since when; None: nobody."""
    held, words = lock_in(folder)
    return words if held else None


def lock_in(folder: Path) -> tuple[bool, str]:
    """Whether somebody writes to a folder at this moment, and what the lock file in it says; nothing if there is none.

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
            return True, _holder(file)
        who = _holder(file).partition(" has been writing ")[0].removesuffix(" is writing to it")
        return False, f"left by {who}, which ended without removing it; nobody writes here, and the next command may"
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
            reason = error.strerror if isinstance(error, OSError) else None
            named = file if isinstance(error, OSError) and error.filename == str(file) else folder
            raise AsflError(f"can't write to {named}: {reason or error}") from None
        try:
            locked = _lock(handle)
        except OSError as error:
            os.close(handle)
            if error.errno not in _NOT_SUPPORTED:
                raise AsflError(f"can't lock {folder}: {error.strerror}") from None
            _log.warning("%s: this file system has no locks; see to it that nobody else writes there", folder)
            return None
        if locked and _is_still(handle, file):
            with suppress(OSError):  # a full disk: then whoever finds it locked isn't told by whom
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps(_this_process()).encode())
            return handle
        os.close(handle)
        if time.monotonic() > due:
            raise AsflError(f"{folder} is in use: {_holder(file)}; wait for it, or give another --out")
        time.sleep(0.02)


def _is_still(handle: int, file: Path) -> bool:
    """Whether the file we locked is the one that is there: its last holder removed it when leaving."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except OSError:
        return False


def _this_process() -> dict[str, str | int]:
    name, *arguments = sys.argv or ["asfl"]
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join([Path(name).name, *arguments])[:_LONGEST_COMMAND],
        "since": datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
    }


def _holder(file: Path) -> str:
    try:
        of = json.loads(read_file(file, _LONGEST_LOCK))
        command, host, since = (
            str(of[key])[:_LONGEST_COMMAND].encode("ascii", "backslashreplace").decode()
            for key in ("command", "host", "since")
        )
        return f"process {int(of['pid'])} on {host} ({command}) has been writing to it since {since}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process is writing to it"


if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30
    """Windows keeps others from reading what is locked: so it is a byte that nobody reads."""

    def _lock(handle: int) -> bool:
        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _lock(handle: int) -> bool:
        """Lock an open file for this process; False if another one has it."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
