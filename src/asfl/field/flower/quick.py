"""Flower's commands, noticing sooner that something died: `python -m asfl.field.flower.quick COMMAND …`.

A SuperNode waits for its ClientApp until heartbeats have been missing for a minute, and a SuperLink as long for a
ServerApp or a SuperNode. Only then can any of them be replaced. Flower has no option for that, only constants; here it
is a third of a minute. An app that doesn't say within half a minute that it has started is started once more; on a
machine so slow that it never does, that would go on until nothing moves. Here it has twice as long.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

HEARTBEAT_S = 10
"""The least that a SuperLink accepts; two of them may be missing."""
START_WITHIN_S = 60
COMMANDS = ("flower-superlink", "flower-supernode", "flwr-clientapp", "flwr-serverapp")
_INTERVAL, _PATIENCE = "HEARTBEAT_DEFAULT_INTERVAL", "HEARTBEAT_PATIENCE"


def write_commands(folder: Path, names: Sequence[str], *words: str) -> None:
    """Commands of the same names, for a folder that comes first in PATH: Python is called with these words."""
    for name in names:
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words, name])} "$@"\n')
        file.chmod(0o700)


@cache
def loaded(name: str) -> Callable[[], Any]:
    """What a command of Flower's calls."""
    (found,) = entry_points(group="console_scripts", name=name)
    command: Callable[[], Any] = found.load()
    return command


def called(name: str, words: Sequence[str]) -> Any:
    """Be that command, with these words; its exit code."""
    sys.argv, command = [name, *words], loaded(name)
    notice_sooner()
    return command()


def notice_sooner() -> None:
    """Change Flower's constants, wherever they were imported to."""
    for path, module in list(sys.modules.items()):
        if not path.startswith("flwr.") or not hasattr(module, _INTERVAL):
            continue
        if ".corestate." in path:  # who starts apps: the interval is how long a start takes, and × patience, a silence
            setattr(module, _INTERVAL, START_WITHIN_S)
            setattr(module, _PATIENCE, 2 * HEARTBEAT_S / START_WITHIN_S)
        else:
            setattr(module, _INTERVAL, HEARTBEAT_S)


if __name__ == "__main__":
    sys.exit(called(sys.argv[1], sys.argv[2:]))
