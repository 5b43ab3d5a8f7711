"""A run with devices that have certificates: where they enrol, their streams, the training, and what is shown of it:
a file for `asfl devices`, a page for Prometheus, the server's health.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, Unpack

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.field.certificates import Authority
from asfl.field.fleet import agreement_for, train
from asfl.field.membership import EnrolmentServer, Membership, Registry, enrol_here, now, pasted_code
from asfl.field.stream import StreamLink, StreamServer
from asfl.runs import this_process
from asfl.runs.files import write_whole
from asfl.runs.http_server import Asked, HttpServer, Reply
from asfl.runs.manifest import run_to_go_on_with
from asfl.runs.records import RoundRecord
from asfl.runs.run import RunOptions

STATUS_FILE = "status.json"
_EVERY_S = 2.0
_UNWELL_S = 900.0


@dataclass(frozen=True)
class Listening:
    """Where a server is reached."""

    host: str = "127.0.0.1"
    port: int = 7400
    """Of the streams; devices enrol at the next one."""
    shown_host: str = ""
    """As devices reach it, if that is another name."""
    metrics: tuple[str, int] | None = None


@dataclass(frozen=True)
class Waiting:
    """What a server that waits for its devices tells."""

    authority: Authority
    enrolment: str
    """host:port where new devices enrol."""
    stream: str
    """host:port of the streams."""
    codes: Sequence[str]
    """One for each device that is missing on the list."""


def serve_run(
    config: Config,
    scheme: str,
    folder: Path,
    home: Path,
    listening: Listening,
    *,
    code_hours: float = 24.0,
    wait_s: float = float("inf"),
    on_listening: Callable[[Waiting], None] = lambda waiting: None,
    on_waiting: Callable[[int, int], None] = lambda there, wanted: None,
    **watching: Unpack[RunOptions],
) -> bool:
    """Train with devices. True: all rounds are done; False: it was told to stop, and the same call goes on.

    `on_listening` is called once, before devices are waited for; `on_waiting` gets how many are there.
    """
    run_to_go_on_with(folder, config, scheme)  # refuses another run of that name
    authority, clients = Authority.of(home), config.scenario.clients
    agreement = agreement_for(config, scheme, folder, watching.get("threads"))
    should_stop, on_round = watching.get("should_stop", lambda: False), watching.get("on_round")
    with ExitStack() as open_:
        server = open_.enter_context(StreamServer(f"{listening.host}:{listening.port}", agreement, authority))
        registry, stream_port = server.registry, server.address.rpartition(":")[2]
        port = listening.port + 1 if listening.port else 0
        enrolment = open_.enter_context(EnrolmentServer(listening.host.strip("[]"), port, authority, stream_port))
        dashboard = Dashboard(home, registry, server.links, str(folder), config.training.rounds)
        open_.enter_context(dashboard)
        if listening.metrics is not None:
            open_.enter_context(MetricsPage(*listening.metrics, dashboard))
        known = {device.number for device in registry.read().active}
        missing = sum(number not in known for number in range(clients))
        new = registry.invite(missing, code_hours) if missing else []
        codes = [pasted_code(enrolment.fingerprint, code) for code in new]
        host = listening.shown_host or listening.host
        on_listening(Waiting(authority, f"{host}:{enrolment.server_port}", f"{host}:{stream_port}", codes))
        if not server.wait_for_clients(wait_s, on_waiting, should_stop):
            return False
        registry.audit("run begins", run=str(folder), scheme=scheme, devices=clients)

        def after_round(record: RoundRecord) -> None:
            dashboard.round(record)
            if on_round is not None:
                on_round(record)

        try:
            watching["on_round"] = after_round
            finished = train(agreement, folder, server.links, **watching)
        except AsflError as error:
            registry.audit("run failed", run=str(folder), reason=str(error))
            raise
        registry.audit("run finished" if finished else "run stopped", run=str(folder))
        if finished:
            server.say_bye()
        return finished


# ---------------------------------------------------------------------- what is shown
class Dashboard:
    """Looks at the links every two seconds; is told of every round. A device that is revoked loses its stream here."""

    def __init__(self, home: Path, registry: Registry, links: Sequence[StreamLink], run: str, rounds: int) -> None:
        self._home, self._registry, self._links = home, registry, links
        self._facts: dict[str, Any] = {"run": run, "rounds": rounds, "round": 0}
        self._latest: RoundRecord | None = None
        self._accuracies: list[float | None] | None = None
        """As the devices said last."""
        self._seen: dict[int, str] = {}
        self._totals = {name: defaultdict[int, float](float) for name in ("faults", "arrived", "energy_j")}
        self._delay_s, self._moved_at = 0.0, time.monotonic()
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._look, name="asfl-dashboard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._write()

    def round(self, record: RoundRecord) -> None:
        """It is over; clients that were lost are in the audit log."""
        names = self._names()
        with self._lock:
            self._latest, self._moved_at = record, time.monotonic()
            self._accuracies = record.device_accuracy or self._accuracies
            self._delay_s += record.delay_s
            for client, (arrived, energy_j) in enumerate(zip(record.arrived, record.energy_j, strict=True)):
                self._totals["arrived"][client] += arrived
                self._totals["energy_j"][client] += energy_j
            self._facts |= {"round": record.round, "accuracy": record.accuracy, "train_loss": record.train_loss}
        for fault in record.faults or ():
            client = int(fault["client"])
            self._totals["faults"][client] += 1
            reason = {"round": fault["round"], "stage": fault["stage"], "reason": fault["reason"]}
            self._registry.audit("fault", device=names.get(client, f"client {client}"), **reason)

    def _names(self) -> dict[int, str]:
        return {device.number: device.name for device in self._registry.read().active}

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._write()

    def _write(self) -> None:
        try:
            for link in self._links:
                link.close_if_out()
            write_whole(self._home / STATUS_FILE, json.dumps(self.status(), indent=1).encode(), mode=0o600)
        except AsflError:
            return  # a full disk: the run itself will say so

    def status(self) -> dict[str, Any]:
        """Of the run, and of each device by its name."""
        at, names, measured = now(), self._names(), dict((self._latest.measured if self._latest else None) or {})
        measured |= {} if self._accuracies is None else {"accuracy": self._accuracies}
        devices = {}
        for client, link in enumerate(self._links):
            if link.connected:
                self._seen[client] = at
            of_client = {name: values[client] for name, values in measured.items() if client < len(values)}
            devices[names.get(client, f"client {client}")] = {
                "client": client,
                "connected": link.connected,
                "last_seen": self._seen.get(client),
                "sent_bytes": link.sent_bytes,
                "received_bytes": link.received_bytes,
                **{name: total[client] for name, total in self._totals.items()},
                **of_client,
            }
        return {**self._facts, "at": at, "well": self.well, "devices": devices}

    @property
    def well(self) -> bool:
        """Whether a round was finished not too long ago, or the first one is waited for."""
        return time.monotonic() - self._moved_at < _UNWELL_S

    def metrics(self) -> str:
        """In Prometheus' text format."""
        status = self.status()
        lines = [f"asfl_rounds_total {status['round']}", f"asfl_round_delay_seconds_total {self._delay_s:g}"]
        lines += [
            f"asfl_{name} {status[name]:g}" for name in ("accuracy", "train_loss") if status.get(name) is not None
        ]
        for device, facts in status["devices"].items():
            for name in ("connected", "sent_bytes", "received_bytes", "faults", "arrived", "energy_j"):
                if facts.get(name) is not None:
                    lines.append(f'asfl_device_{name}{{device="{device}"}} {float(facts[name]):g}')
        return "\n".join(lines) + "\n"


class MetricsPage(HttpServer):
    """HTTP at /health and /metrics, for this machine unless told otherwise."""

    def __init__(self, host: str, port: int, dashboard: Dashboard) -> None:
        def answer(asked: Asked) -> Reply:
            if asked.path == "/metrics":
                return Reply(dashboard.metrics().encode(), "text/plain; version=0.0.4")
            if asked.path != "/health":
                return Reply(b"there are /health and /metrics\n", status=404)
            if dashboard.well:
                return Reply(b"well\n")
            return Reply(f"no round was finished for {_UNWELL_S:g} s\n".encode(), status=503)

        try:
            super().__init__(host, port, answer)
        except OSError as error:
            raise AsflError(f"--metrics: can't listen on {host}:{port}: {error.strerror or error}") from None


# ---------------------------------------------------------------------- devices on this machine
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
