"""Flower's processes: quiet, offline, on this machine only, and gone when they are told to or if we are killed."""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from asfl.config.errors import AsflError
from asfl.runs import end_with_parent

_SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # what runs is what is installed
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # else every start takes up to a second longer
    "PYTHONUNBUFFERED": "1",  # logs are complete, whatever happens
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray listens on the loopback address only
}
_HOME = "FLWR_HOME"
"""Flower's folder, with its own configuration; also how our processes are told from others."""
_END_WITH_PARENT = Path(end_with_parent.__file__)
_END_WITHIN_S = 10.0


def flower_environment(home: Path, temporary: Path) -> dict[str, str]:
    """For a process that keeps everything of Flower's in `home`, and its temporary files in another folder."""
    scripts = sysconfig.get_path("scripts")  # Flower calls its own commands by name
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    return {**os.environ, **_SWITCHES, _HOME: str(home), "TMPDIR": str(temporary), "PATH": path}


def start(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, talk: bool = False
) -> "subprocess.Popen[str]":
    """Start a command whose output goes to a file; with `talk` we write to it, and read its standard output.

    It is in a session of its own: Ctrl-C on our terminal doesn't reach it.
    """
    pipe = subprocess.PIPE if talk else None
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-I", str(_END_WITH_PARENT), str(os.getpid()), *command],
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
            if process.environ().get(_HOME) == str(home):
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
