"""Ray, started on this machine or joined elsewhere, and left again.

A cluster of our own listens on the loopback address only, asks for a token that nobody else knows, and is gone with its
files when it is left. It writes nothing to our terminal. Ctrl-C doesn't reach it: Ray's processes block the signal or
have groups of their own.
"""

import functools
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from urllib.parse import urlsplit

from asfl.config.errors import AsflError, MissingExtraError
from asfl.runs.engines.ray_actors import GPU_STAYS_VISIBLE
from asfl.runs.engines.scratch import scratch_folder
from asfl.runs.this_process import usual_threads

OBJECT_STORE_BYTES = 256 * 2**20
"""Of a cluster of our own: most messages are small, and so is /dev/shm in many containers."""
_SHARED_MEMORY = Path("/dev/shm")

ANSWER_WITHIN_S, JOIN_WITHIN_S, LEAVE_WITHIN_S = 10.0, 60.0, 3.0
_LONGEST_FOLDER = 36

_BEFORE_IMPORT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to anybody
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # messages of its processes aren't repeated on our terminal
    **GPU_STAYS_VISIBLE,
}
"""Switches that Ray reads when it is imported. What the user has set, stays."""

_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HTTP2_SETTINGS = 4


@dataclass(frozen=True)
class RayCluster:
    """What is known of the cluster we are in."""

    cpus: int
    scratch: Path | None
    """A folder that lives as long as the cluster, if it is ours; else every node has its own folder for such things."""


def check_ray(address: str | None) -> None:
    """Refuse what can't work, before anything is started: no Ray here, or none at the address."""
    if util.find_spec("ray") is None:
        raise MissingExtraError("training on Ray", "ray")
    if address is not None:
        _check_address(address)


@contextmanager
def ray_cluster(
    address: str | None = None, *, cpus: int = 0, store_bytes: int = OBJECT_STORE_BYTES
) -> Iterator[RayCluster]:
    """Be in a Ray cluster: the one at `address`, or a new one on this machine with at least `cpus` CPUs.

    `store_bytes`: what may be under way at a time in a new cluster; what is more goes through the disk.
    A process that is in a cluster already stays in that one, and doesn't leave it in the end.
    """
    check_ray(address)
    for name, value in _BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield RayCluster(_cpus(), None)
    elif address is not None:
        import ray

        try:
            _join(address)
            yield RayCluster(_cpus(), None)
        finally:
            ray.shutdown()
    else:
        with (
            scratch_folder("asfl-ray-", longest=_LONGEST_FOLDER) as folder,
            _environment({**_private_cluster(), **_OF_A_CLUSTER, "RAY_TMPDIR": str(folder)}),
            _no_process_left(folder),
        ):
            _start(max(usual_threads(), cpus), store_bytes)
            yield RayCluster(_cpus(), folder)


_OF_A_CLUSTER = {
    "RAY_worker_niceness": "0",  # a run is as important here as it is without Ray
    "RAY_prestart_worker_first_driver": "0",  # workers have an environment of their own
}


@functools.cache
def _private_cluster() -> dict[str, str]:
    """Switches of a cluster that listens on the loopback address only, and lets nobody in without a token.

    Ray reads them once in a process, when it is imported. So all clusters of a process have the same token, and where
    Ray was imported before, it is too late.
    """
    if "ray" in sys.modules:
        raise AsflError(
            "Ray was imported before asfl could start a cluster that nobody else reaches; "
            "call ray.init() first, or give the address of a cluster"
        )
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _cpus() -> int:
    import ray

    return int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]


def _start(cpus: int, store_bytes: int) -> None:
    import ray

    free = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0
    with _sigterm_handler_kept():
        ray.init(
            "local",  # never one that happens to run here
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=min(store_bytes, max(free // 2, OBJECT_STORE_BYTES)),
            log_to_driver=False,
            logging_level=logging.CRITICAL,
        )
    host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if host != "127.0.0.1":
        raise AsflError(f"this version of Ray ({ray.__version__}) would listen at {host}, not only on this machine")


def _join(address: str) -> None:
    import ray

    if not address.startswith("ray://"):  # then Ray's client reports what is wrong, and doesn't end the process
        _try_to_join(address)
    try:
        with _sigterm_handler_kept():
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        raise AsflError(f"can't join the Ray cluster at {address}: {_in_one_line(str(error))}") from None


_TRY = """
import logging, os, sys, ray
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except Exception as error:
    print(error.__cause__ or error)
    sys.exit(1)
os._exit(0)
"""


@functools.cache
def _try_to_join(address: str) -> None:
    """Join in another process first: where Ray can't, it says so at length, and may end the process that asked."""
    command = [sys.executable, "-P", "-c", _TRY, address]
    try:
        tried = subprocess.run(
            command, capture_output=True, text=True, timeout=JOIN_WITHIN_S, start_new_session=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise AsflError(f"can't join the Ray cluster at {address}: no answer in {JOIN_WITHIN_S:.0f} s") from None
    if tried.returncode == 0:
        return
    if "Failed to connect to socket" in tried.stderr:
        reason = "this machine is no node of it; call the command on one that is, or give the address of a Ray client"
    else:
        reason = _in_one_line(tried.stdout or tried.stderr)
    raise AsflError(f"can't join the Ray cluster at {address}: {reason}")


def _in_one_line(message: str) -> str:
    """The last line of a traceback; all lines of anything else."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = lines[-1] if "Traceback" in message else " ".join(lines)
    return text.removeprefix("ray.exceptions.") or "no reason was given"


def _check_address(address: str) -> None:
    """Ask at the address for HTTP/2, which Ray speaks; Ray itself would try for minutes."""
    scheme, _, rest = address.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if scheme not in ("", "ray") or not host or not port or parts.path:
        raise AsflError(
            f"--address {address}: give HOST:PORT of a Ray cluster, such as 10.0.0.1:6379, or ray://HOST:PORT"
        )
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):  # then a plain greeting is no greeting
        return
    try:
        with socket.create_connection((host, port), timeout=ANSWER_WITHIN_S) as connection:
            connection.sendall(_HTTP2_GREETING)
            answer = connection.recv(9)
    except OSError as error:
        raise AsflError(f"--address {address}: no Ray cluster answers there ({error.strerror or error})") from None
    if answer[3:4] != bytes([_HTTP2_SETTINGS]):
        raise AsflError(f"--address {address}: what answers there isn't a Ray cluster")


@contextmanager
def _no_process_left(folder: Path) -> Iterator[None]:
    """End the cluster that keeps its files in a folder, and whoever is slow to notice."""
    import psutil
    import ray

    try:
        yield
    finally:
        processes: list[psutil.Process] = []
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if any(str(folder) in word for word in child.cmdline()):
                    processes += [child, *child.children(recursive=True)]
        ray.shutdown()
        slow = psutil.wait_procs(processes, timeout=LEAVE_WITHIN_S)[1]
        for process in slow:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(slow, timeout=LEAVE_WITHIN_S)


@contextmanager
def _sigterm_handler_kept() -> Iterator[None]:
    """Ray installs one of its own, which prints a stack trace."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
