"""Flower's commands on a device, noticing sooner that something died: `python -m asfl.field.flower.quick COMMAND …`.

A SuperNode waits for its ClientApp until heartbeats have been missing for a minute, and a SuperLink as long for a
SuperNode. Only then can either be replaced. Flower has no option for that, only a constant; here it is a third.
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
COMMANDS = ("flower-supernode", "flwr-clientapp")
_CONSTANT = "HEARTBEAT_DEFAULT_INTERVAL"


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
    if name in COMMANDS:
        for module in [module for path, module in sys.modules.items() if path.startswith("flwr.")]:
            if hasattr(module, _CONSTANT):
                setattr(module, _CONSTANT, HEARTBEAT_S)
    return command()


if __name__ == "__main__":
    sys.exit(called(sys.argv[1], sys.argv[2:]))
