"""Devices on the server's own machine: for each client of a run one `asfl join`, started again if it dies."""

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Self

from asfl.config.errors import AsflError
from asfl.field.enrolment import Membership, enrol_here
from asfl.field.serve import Waiting
from asfl.runs import this_process

_POLL_S, _RESTART_AFTER_S = 0.2, 2.0
_REFUSED = 2
"""How `asfl join` ends if another attempt wouldn't help."""


class LocalDevices:
    """Processes that end with this one, whatever ends it; each has its folder and its log in `folder`."""

    def __init__(self, folder: Path, clients: int, data: str = "") -> None:
        """`data`: the folder with the data sets."""
        self._folder, self._clients, self._data = folder, clients, data
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._restart_at: dict[int, float] = {}
        self._refusal = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="asfl-devices", daemon=True)

    @property
    def server_home(self) -> Path:
        """For the authority, and the list of devices."""
        return self._folder / "server"

    def begin(self, server: Waiting) -> None:
        """Enrol all if they aren't yet, and start them. Client n is device n: they enrol in this order."""
        for client in range(self._clients):
            home = self._home(client)
            member = Membership.read(home) or enrol_here(home, server.authority, home.name, server.enrolment, "")
            replace(member, enrolment=server.enrolment, stream=server.stream, data=self._data).write(home)
        for client in range(self._clients):
            self._start(client)
        self._thread.start()

    def check(self) -> None:
        """Raise the reason if one of them can't take part."""
        if self._refusal:
            raise AsflError(self._refusal)

    def __enter__(self) -> Self:
        if not all((self._home(client) / "member.json").exists() for client in range(self._clients)):
            shutil.rmtree(self._folder, ignore_errors=True)  # of a fleet that ended while it enrolled
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def _home(self, client: int) -> Path:
        return self._folder / f"client-{client}"

    def _start(self, client: int) -> None:
        joins = [sys.executable, "-m", "asfl", "join", "--once", "--home", str(self._home(client).absolute())]
        command = [sys.executable, "-I", "-S", str(this_process.__file__), str(os.getpid()), *joins]
        with self._log(client).open("ab") as log:
            self._processes[client] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _log(self, client: int) -> Path:
        return self._folder / f"client-{client}.log"

    def _look_after(self) -> None:
        while not self._over.wait(_POLL_S):
            for client, process in self._processes.items():
                code = process.poll()
                if code == _REFUSED:
                    lines = self._log(client).read_text("utf-8", "replace").splitlines() or [""]
                    reason = lines[-1].removeprefix("error: ")
                    self._refusal = f"client {client} can't take part: {reason} (its log: {self._log(client)})"
                elif code not in (None, 0):
                    due = self._restart_at.setdefault(client, time.monotonic() + _RESTART_AFTER_S)
                    if time.monotonic() > due:
                        del self._restart_at[client]
                        self._start(client)
