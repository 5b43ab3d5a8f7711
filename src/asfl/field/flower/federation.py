"""A whole federation on this machine, for one run: SuperLink, SuperNodes, keys and certificates of its own."""

import json
import logging
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import tomlkit
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from asfl._version import __version__
from asfl.config.errors import AsflError
from asfl.field.emulate.namespaces import Namespaces
from asfl.field.flower import forked, nursery, quick
from asfl.field.flower.processes import end_all, flower_environment, listens, processes_of, start
from asfl.field.flower.quick import write_commands
from asfl.field.flower.run_config import DEFAULTS, Value
from asfl.field.stream.certificates import Certificates, make_certificates
from asfl.runs.engines.scratch import scratch_folder

_log = logging.getLogger(__name__)
_HOST, _NAME = "127.0.0.1", "fleet"
_SUPERNODE = "supernode-"
_RESTART_AFTER_S = 5.0
_START_WITHIN_S = 120.0
_POLL_S = 0.05
_LONGEST_FOLDER = 16
_SAID_ERROR = "asfl: error: "
_APP: dict[str, Any] = {
    "project": {"name": "asfl", "version": __version__, "description": "asfl", "license": "Apache-2.0"},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "asfl",
                "components": {
                    "serverapp": "asfl.field.flower.server_app:app",
                    "clientapp": "asfl.field.flower.client_app:app",
                },
                "config": DEFAULTS,
            }
        }
    },
}
"""The pyproject.toml of a Flower app: what it runs is installed."""


class StoppedError(AsflError):
    """The run was stopped before it began."""


class Federation:
    """Starts everything, and ends what it started. Only its logs can be seen."""

    def __init__(
        self,
        scratch: Path,
        logs: Path,
        clients: int,
        should_stop: Callable[[], bool],
        *,
        simulated: bool,
        network: Namespaces | None,
        private: int,
    ) -> None:
        self._logs, self._clients, self._simulated, self._network = logs, clients, simulated, network
        self._private = private
        self._host = _HOST if network is None else network.server
        self._should_stop = should_stop
        self._home, self._scratch = scratch / "home", scratch
        self._environment = flower_environment(self._home, scratch / "tmp", scratch / "bin")
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._commands: dict[str, list[str]] = {}
        self._restart_at: dict[str, float] = {}
        """SuperNodes that have ended, and when they are started again."""
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        for folder in (self._home, scratch / "tmp", scratch / "app", scratch / "bin", logs):
            folder.mkdir(parents=True, exist_ok=True)
        # Where processes can be forked, they are; a client in a namespace of its own can't be.
        self._nursery = None if simulated or network is not None else nursery.socket_in(scratch)
        if not simulated:
            write_commands(scratch / "bin", quick.COMMANDS, "-P", "-m", quick.__name__)
        if self._nursery is not None:
            write_commands(scratch / "bin", nursery.COMMANDS, "-I", "-S", str(forked.__file__), str(self._nursery))

    # ------------------------------------------------------------------ begin
    def begin(self, configuration: str, run_config: Mapping[str, Value], node_config: Mapping[str, Value]) -> None:
        """Start everybody, and submit the run with a configuration in TOML."""
        app, base, order = (self._scratch / name for name in ("app", "configuration.toml", "run.toml"))
        base.write_text(configuration)
        if self._nursery is not None:
            self._start("nursery", sys.executable, "-P", "-m", nursery.__name__, self._nursery)
        certificates = make_certificates(self._scratch / "pem", [self._host])
        superlink = f"{self._host}:{_free_port()}"
        connection = {"address": superlink, "root-certificates": str(certificates.authority)}
        (app / "pyproject.toml").write_text(tomlkit.dumps(_APP))
        patient = {"nodes-s": DEFAULTS["wait-s"]}  # all of them are on their way
        order.write_text(tomlkit.dumps({"base": str(base), **patient, **run_config}))
        (self._home / "config.toml").write_text(tomlkit.dumps({"superlink": {_NAME: connection}}))
        self._start_superlink(superlink, certificates)
        self._start_commands()
        host, _, port = superlink.partition(":")
        self._wait(lambda: listens(host, int(port), self._private), "Flower's SuperLink didn't start")
        if not self._simulated:
            keys = [self._new_key(client) for client in range(self._clients)]
            for key in keys:
                self._order("supernode", "register", f"{key}.pub", _NAME)
            for client, key in enumerate(keys):
                self._wait(self._answered, "Flower didn't answer")
                self._start_supernode(client, key, superlink, certificates, node_config)
        self._order("run", str(app), _NAME, "--run-config", str(order), *self._sizes(), "--stream")

    def _start_superlink(self, address: str, certificates: Certificates) -> None:
        host, _, port = address.partition(":")
        tls = ("--ssl-certfile", certificates.certificate, "--ssl-keyfile", certificates.key)
        kind = "--simulation" if self._simulated else "--enable-supernode-auth"
        place = ("--host", host, "--port", port)
        self._start("superlink", "flower-superlink", *place, *tls, "--ssl-ca-certfile", certificates.authority, kind)

    def _start_supernode(
        self, client: int, key: Path, address: str, certificates: Certificates, node_config: Mapping[str, Value]
    ) -> None:
        inside: list[str] = []
        if self._network is not None:  # then each client has a link of its own
            inside, node_config = self._network.inside(client), {**node_config, "client": client}
        where = ("--superlink", address, "--root-certificates", certificates.authority)
        settings = " ".join(f"{name}={tomlkit.item(value).as_string()}" for name, value in node_config.items())
        mine = ("--auth-supernode-private-key", key, "--port", _free_port(), "--node-config", settings)
        self._start(key.name, *inside, "flower-supernode", *where, *mine)

    def _start_commands(self) -> None:
        command = [sys.executable, "-P", "-m", "asfl.field.flower.commands"]
        helper = self._children["flwr"] = start(
            command, self._environment, self._logs / "run.log", talk=True, network=self._private
        )

        def listen() -> None:
            assert helper.stdout is not None
            for line in helper.stdout:
                self._answers.put(line.strip())
            self._answers.put("flwr ended")

        threading.Thread(target=listen, daemon=True).start()

    def _start(self, name: str, *command: object) -> None:
        self._commands[name] = list(map(str, command))
        self._start_again(name)

    def _start_again(self, name: str) -> None:
        log = self._logs / f"{name}.log"
        self._children[name] = start(self._commands[name], self._environment, log, network=self._private)

    def _sizes(self) -> list[str]:
        """Of a simulation: Ray is told of so many CPUs that everybody has a place in it at the same time."""
        if not self._simulated:
            return []
        sizes = ("num-supernodes={0}", "client-resources-num-cpus=1", "init-args-num-cpus={0}")
        return ["--federation-config", " ".join(sizes).format(self._clients)]

    def _new_key(self, client: int) -> Path:
        """Of a SuperNode: two files in the format of SSH."""
        key, file = ec.generate_private_key(ec.SECP384R1()), self._scratch / f"{_SUPERNODE}{client}"
        ssh = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        file.touch(mode=0o600)
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, *ssh))
        public = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        Path(f"{file}.pub").write_bytes(key.public_key().public_bytes(*public))
        return file

    def _order(self, *words: str) -> None:
        """Have a `flwr` command called."""
        with suppress(OSError):  # it has ended; the answer says why
            talk = self._children["flwr"].stdin
            assert talk is not None
            talk.write(json.dumps(words) + "\n")
            talk.flush()

    def _answered(self) -> bool:
        """Whether a command has been done since the last time."""
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return False
        if answer != "ok":  # that a run failed is no error of the command
            raise AsflError(f"Flower: {answer}")
        return True

    def _wait(self, ready: Callable[[], bool], otherwise: str) -> None:
        due = time.monotonic() + _START_WITHIN_S
        while not ready():
            self.check()
            if self._should_stop():
                raise StoppedError("stopped before the run began")
            if time.monotonic() > due:
                raise AsflError(f"{otherwise} within {_START_WITHIN_S:g} s")
            time.sleep(_POLL_S)

    # ------------------------------------------------------------------ while it runs
    @property
    def running(self) -> bool:
        """Until the run is over, in whatever way."""
        return not self._answered()

    def check(self) -> None:
        """Refuse to go on if one of Flower's processes has ended; but a SuperNode is started again, if others live."""
        ended = {name: child.returncode for name, child in self._children.items() if child.poll() is not None}
        nodes = [name for name in self._children if name.startswith(_SUPERNODE)]
        for name, code in ended.items():
            if name == "flwr":
                continue
            if name not in nodes or all(node in ended for node in nodes):
                raise AsflError(f"Flower's {name} ended with exit code {code}")
            if name not in self._restart_at:
                _log.warning("Flower's %s ended with exit code %d; it is started again", name, code)
                self._restart_at[name] = time.monotonic() + _RESTART_AFTER_S
            elif time.monotonic() > self._restart_at[name]:
                self._restart_at[name] = time.monotonic() + _RESTART_AFTER_S
                self._start_again(name)

    def error(self) -> str | None:
        """What the ServerApp said last, if it was an error."""
        log = (self._logs / "run.log").read_text("utf-8", errors="replace")
        said = [line.partition(_SAID_ERROR)[2].strip() for line in log.splitlines() if _SAID_ERROR in line]
        return said[-1] if said else None

    def stop_after_the_round(self) -> bool:
        """Ask the ServerApp to; False if there is none (yet)."""
        for process in processes_of(self._home):
            with suppress(psutil.Error):
                if any(word.endswith("flwr-serverapp") for word in process.cmdline()):
                    process.send_signal(signal.SIGINT)
                    return True
        return False

    def end(self) -> None:
        end_all(self._home)
        for child in self._children.values():
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            child.wait()


@contextmanager
def federation(
    logs: Path,
    clients: int,
    should_stop: Callable[[], bool],
    *,
    simulated: bool = False,
    network: Namespaces | None = None,
    private: int = 0,
) -> Iterator[Federation]:
    """A federation that isn't begun yet; in the end nothing is left of it, but its logs if there was an error.

    `private` is the process that holds the network in which all of it is to be (`processes.private_network`).
    """
    with scratch_folder("asfl-fleet-", longest=_LONGEST_FOLDER if simulated else None) as scratch:
        started = Federation(scratch, logs, clients, should_stop, simulated=simulated, network=network, private=private)
        failed = False
        try:
            yield started
        except Exception:
            failed = True
            raise
        finally:
            started.end()
            if not failed:
                shutil.rmtree(logs, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
