"""One process that has imported Flower and PyTorch, and forks the others: `python -m asfl.field.flower.nursery SOCKET`.

A fleet has three processes of Flower's for each client, and one that starts alone computes for seconds before it does
anything: that is most of what a start, or the replacement of a process that died, took. `asfl.field.flower.forked`
asks for a process, and stands for it. The nursery has one thread and opens nothing but its socket, so a fork of it is
as good as new. Only Linux can do this, and only in one network.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from asfl.field.flower.quick import called, loaded
from asfl.runs.end_with_parent import end_with_parent

COMMANDS = ("flower-supernode", "flower-superexec", "flwr-clientapp", "flwr-serverapp")
_APPS = (
    "asfl.field.flower.client_app", "asfl.field.flower.server_app", "asfl.field.stream.client",
    "asfl.field.stream.server", "asfl.field.engine", "asfl.runs.run", "asfl.runs.simulation",
)  # fmt: skip
"""What the apps import when they begin."""
_LONGEST_SOCKET = 100
_LONGEST_ORDER = 1 << 20


def socket_in(folder: Path) -> Path | None:
    """Where a nursery can listen; None where there can be none."""
    there = folder / "nursery"
    return there if sys.platform == "linux" and len(os.fsencode(there)) <= _LONGEST_SOCKET else None


@dataclass(frozen=True)
class _Order:
    words: list[str]
    folder: str
    environment: dict[str, str]
    streams: list[int]


def main() -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(sys.argv[1])  # in a folder that only its owner can enter
        door.listen(1024)
        for name in COMMANDS:
            loaded(name)
        for name in _APPS:
            import_module(name)
        gc.collect()
        gc.freeze()  # the pages stay shared
        order = _fork_on_demand(door)
    # Only in a fork does anybody get here.
    for here, stream in enumerate(order.streams):
        os.dup2(stream, here)
        os.close(stream)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    name, *words = order.words
    sys.exit(called(name, words))


def _fork_on_demand(door: socket.socket) -> _Order:
    """Returns in a fork, with what it is to do."""
    selector, nursery = selectors.DefaultSelector(), os.getpid()
    woken, wake = socket.socketpair()
    for end in (woken, wake, door):
        end.setblocking(False)
    before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno())
    selector.register(door, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    asking: dict[socket.socket, int] = {}
    """{who asked: its process}."""
    while True:
        for key, _ in selector.select():
            one: Any = key.fileobj
            if one is door:
                asked, _ = door.accept()
                order = _read(asked)
                if order is None:
                    asked.close()
                    continue
                process = os.fork()
                if not process:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, before)
                    for other in (*asking, asked, woken, wake, selector):
                        other.close()
                    end_with_parent(nursery)
                    return order
                for stream in order.streams:
                    os.close(stream)
                asking[asked] = process
                selector.register(asked, selectors.EVENT_READ)
                _tell(asked, process)
            elif one is woken:
                woken.recv(1024)
                for process, code in _ended():
                    for asked in [asked for asked, its in asking.items() if its == process]:
                        _tell(asked, code)
                        del asking[asked]
                        selector.unregister(asked)
                        asked.close()
            elif one in asking:  # it never says anything else: it was killed
                os.kill(asking.pop(one), signal.SIGKILL)
                selector.unregister(one)
                one.close()


def _read(asked: socket.socket) -> _Order | None:
    asked.settimeout(10.0)
    with contextlib.suppress(OSError, ValueError):
        _, streams, _, _ = socket.recv_fds(asked, 1, 3)
        text = b""
        while not text.endswith(b"\n") and len(text) < _LONGEST_ORDER:
            if not (more := asked.recv(1 << 16)):
                return None
            text += more
        return _Order(**json.loads(text), streams=list(streams))
    return None


def _tell(asked: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        asked.sendall(f"{number}\n".encode())


def _ended() -> list[tuple[int, int]]:
    """Processes and their exit codes."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            ended.append((process, os.waitstatus_to_exitcode(status)))
    return ended


if __name__ == "__main__":
    main()
