"""Processes that don't outlive us: they end when they are told to, and also if we are killed."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from asfl.errors import AsflError
from asfl.field.flower.environment import HOME

_LEASH = Path(__file__).with_name("leash.py")
_END_WITHIN_S = 10.0


def start(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, talk: bool = False
) -> "subprocess.Popen[str]":
    """Start a command whose output goes to a file; with `talk` we write to it, and read its standard output.

    It is in a session of its own: Ctrl-C on our terminal doesn't reach it.
    """
    leashed = [sys.executable, "-I", str(_LEASH), str(os.getpid()), *command]
    pipe = subprocess.PIPE if talk else None
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                leashed,
                env=dict(environment),
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or out,
                stderr=out,
                text=True,
                start_new_session=True,
            )
    except OSError as error:
        raise AsflError(f"can't start {command[0]}: {error.strerror or error}") from None


def processes_of(home: Path) -> list[psutil.Process]:
    """All processes that were started, by us or by one of them, with this folder as Flower's home."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(HOME) == str(home):
                found.append(process)
    return found


def end_all(home: Path) -> None:
    """End them, however many more they start meanwhile."""
    due = time.monotonic() + _END_WITHIN_S
    while (left := processes_of(home)) and time.monotonic() < due:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)
