"""Flower's processes: quiet, offline, on this machine only, and gone when they are told to or if we are killed."""

import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
_PRIVATE_NETWORK = Path(__file__).with_name("private_network.py")
_END_WITHIN_S = 10.0


def flower_environment(home: Path, temporary: Path, commands: Path) -> dict[str, str]:
    """For a process that keeps everything of Flower's in `home`, and its temporary files in another folder.

    Flower calls its own commands by name; those in `commands` come first.
    """
    path = os.pathsep.join([str(commands), sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **_SWITCHES, _HOME: str(home), "TMPDIR": str(temporary), "PATH": path}


def start(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, talk: bool = False, network: int = 0
) -> "subprocess.Popen[str]":
    """Start a command whose output goes to a file; with `talk` we write to it, and read its standard output.

    It is in a session of its own: Ctrl-C on our terminal doesn't reach it. `network` is the process that holds the
    private network it is to be in; 0: this machine's.
    """
    pipe = subprocess.PIPE if talk else None
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-I", str(_END_WITH_PARENT), str(os.getpid()), str(network), *command],
                env=dict(environment),
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or out,
                stderr=out,
                text=True,
                start_new_session=True,
            )
    except OSError as error:
        raise AsflError(f"can't start {command[0]}: {error.strerror or error}") from None


@contextmanager
def private_network() -> Iterator[tuple[int, str]]:
    """The process that holds a network of its own; or 0, and the reason why there is none."""
    command = [sys.executable, "-I", str(_END_WITH_PARENT), str(os.getpid()), "0", sys.executable, "-I"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, str(_PRIVATE_NETWORK)], stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        ready = holder.stdout.readline().strip() == "ready"
        try:
            yield (holder.pid, "") if ready else (0, holder.stderr.read().strip())
        finally:
            holder.kill()


def listens(host: str, port: int, network: int = 0) -> bool:
    """Whether somebody listens there; on 127.0.0.1, if it is in the private network that this process holds."""
    with suppress(OSError):
        if not network:
            socket.create_connection((host, port), timeout=1.0).close()
            return True
        sockets = [line.split() for line in Path(f"/proc/{network}/net/tcp").read_text().splitlines()[1:]]
        return any((local, state) == (f"0100007F:{port:04X}", "0A") for _, local, _, state, *_ in sockets)
    return False


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
