"""A whole federation on this machine, for one run: SuperLink, SuperNodes, keys and certificates of its own."""

import json
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from asfl._version import __version__
from asfl.engines.scratch import Scratch
from asfl.errors import AsflError
from asfl.field.certificates import Certificates, make_certificates
from asfl.field.flower.environment import flower_environment
from asfl.field.flower.processes import end_all, processes_of, start
from asfl.field.flower.run_config import Value, as_toml
from asfl.field.namespaces import Namespaces

_HOST, _NAME = "127.0.0.1", "fleet"
_START_WITHIN_S = 120.0
_POLL_S = 0.05
_LONGEST_FOLDER = 16
"""Ray puts sockets far below it, and the path of a socket may have 100 characters or so."""
_SAID_ERROR = "asfl: error: "
_APP = f"""[project]
name = "asfl"
version = "{__version__}"
description = "asfl"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "asfl"

[tool.flwr.app.components]
serverapp = "asfl.field.flower.server_app:app"
clientapp = "asfl.field.flower.client_app:app"

"""


class StoppedError(AsflError):
    """Somebody wanted it before the run began."""


class Federation:
    """What is started here is ended here. Nothing of it is to be seen but its logs."""

    def __init__(
        self,
        scratch: Path,
        logs: Path,
        clients: int,
        should_stop: Callable[[], bool],
        *,
        simulated: bool,
        network: Namespaces | None,
    ) -> None:
        self._logs, self._clients, self._simulated, self._network = logs, clients, simulated, network
        self._host = _HOST if network is None else network.server
        self._should_stop = should_stop
        self._home, self._scratch = scratch / "home", scratch
        self._environment = flower_environment(self._home, scratch / "tmp")
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        for folder in (self._home, scratch / "tmp", scratch / "app", logs):
            folder.mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------------ begin
    def begin(self, configuration: str, run_config: Mapping[str, Value], node_config: Mapping[str, Value]) -> None:
        """Start everybody, and submit the run with a configuration in TOML."""
        app, preset, order = (self._scratch / name for name in ("app", "configuration.toml", "run.toml"))
        (app / "pyproject.toml").write_text(_APP + as_toml())
        preset.write_text(configuration)
        order.write_text(_toml({"preset": str(preset), **run_config}))
        certificates = make_certificates(self._scratch / "pem", [self._host])
        superlink = f"{self._host}:{_free_port()}"
        connection = {"address": superlink, "root-certificates": str(certificates.authority)}
        (self._home / "config.toml").write_text(f"[superlink.{_NAME}]\n{_toml(connection)}")
        self._start_superlink(superlink, certificates)
        self._start_commands()
        self._wait_for(superlink)
        if not self._simulated:
            keys = [self._new_key(client) for client in range(self._clients)]
            for key in keys:
                self._order("supernode", "register", f"{key}.pub", _NAME)
            for client, key in enumerate(keys):
                self._answer()
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
        if self._network is not None:  # then it matters who is who
            inside, node_config = self._network.inside(client), {**node_config, "client": client}
        where = ("--superlink", address, "--root-certificates", certificates.authority)
        settings = " ".join(_toml(node_config).splitlines()).replace(" = ", "=")
        mine = ("--auth-supernode-private-key", key, "--port", _free_port(), "--node-config", settings)
        self._start(key.name, *inside, "flower-supernode", *where, *mine)

    def _start_commands(self) -> None:
        helper = start(
            [sys.executable, "-P", "-m", "asfl.field.flower.commands"],
            self._environment,
            self._logs / "run.log",
            talk=True,
        )
        self._children["flwr"] = helper

        def listen() -> None:
            assert helper.stdout is not None
            for line in helper.stdout:
                self._answers.put(line.strip())
            self._answers.put("flwr ended")

        threading.Thread(target=listen, daemon=True).start()

    def _start(self, name: str, *command: object) -> None:
        self._children[name] = start(list(map(str, command)), self._environment, self._logs / f"{name}.log")

    def _sizes(self) -> list[str]:
        """Of a simulation: Ray is told of so many CPUs that everybody has a place in it at the same time."""
        if not self._simulated:
            return []
        sizes = ("num-supernodes={0}", "client-resources-num-cpus=1", "init-args-num-cpus={0}")
        return ["--federation-config", " ".join(sizes).format(self._clients)]

    def _new_key(self, client: int) -> Path:
        """Of a SuperNode: two files in the format of SSH."""
        key, file = ec.generate_private_key(ec.SECP384R1()), self._scratch / f"supernode-{client}"
        ssh = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        file.touch(mode=0o600)
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, *ssh))
        public = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        Path(f"{file}.pub").write_bytes(key.public_key().public_bytes(*public))
        return file

    def _wait_for(self, address: str) -> None:
        host, _, port = address.partition(":")
        due = time.monotonic() + _START_WITHIN_S
        while True:
            self._still_wanted()
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return
            if time.monotonic() > due:
                raise AsflError(f"Flower's SuperLink didn't start within {_START_WITHIN_S:g} s")
            time.sleep(_POLL_S)

    def _order(self, *words: str) -> None:
        """Have a `flwr` command called."""
        with suppress(OSError):  # it has ended; the answer says why
            talk = self._children["flwr"].stdin
            assert talk is not None
            talk.write(json.dumps(words) + "\n")
            talk.flush()

    def _answer(self) -> None:
        """Wait until a command is done."""
        due = time.monotonic() + _START_WITHIN_S
        while True:
            self._still_wanted()
            with suppress(queue.Empty):
                answer = self._answers.get(timeout=_POLL_S)
                if answer == "ok":
                    return
                raise AsflError(f"Flower: {answer}")
            if time.monotonic() > due:
                raise AsflError(f"Flower didn't answer within {_START_WITHIN_S:g} s")

    def _still_wanted(self) -> None:
        self.check()
        if self._should_stop():
            raise StoppedError("stopped before the run began")

    # ------------------------------------------------------------------ while it runs
    @property
    def running(self) -> bool:
        """Until the run is over, in whatever way."""
        with suppress(queue.Empty):
            answer = self._answers.get_nowait()
            if answer != "ok":  # that a run failed is no error of the command
                raise AsflError(f"Flower: {answer}")
            return False
        return True

    def check(self) -> None:
        """Refuse to go on without somebody who must be there."""
        for name, child in self._children.items():
            if name != "flwr" and child.poll() is not None:
                raise AsflError(f"Flower's {name} ended with exit code {child.returncode}")

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
) -> Iterator[Federation]:
    """A federation that isn't begun yet; in the end nothing is left of it, but its logs if there was an error."""
    usual = tempfile.gettempdir()
    scratch = Scratch(Path("/tmp" if simulated and len(usual) > _LONGEST_FOLDER else usual), "asfl-fleet-")
    started, failed = None, False
    try:
        started = Federation(scratch.folder, logs, clients, should_stop, simulated=simulated, network=network)
        yield started
    except Exception:
        failed = True
        raise
    finally:
        if started is not None:
            started.end()
        scratch.remove()
        if not failed:
            shutil.rmtree(logs, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _toml(values: Mapping[str, Value]) -> str:
    """Lines of TOML; text in JSON's quotes, which TOML reads the same way."""
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
