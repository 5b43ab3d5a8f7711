"""Flower's commands on a device, noticing sooner that something died: `python -m asfl.field.flower.quick COMMAND …`.

A SuperNode waits for its ClientApp until heartbeats have been missing for a minute, and a SuperLink as long for a
SuperNode. Only then can either be replaced. Flower has no option for that, only a constant; here it is a third.
"""

import shlex
import sys
from importlib.metadata import entry_points
from pathlib import Path

HEARTBEAT_S = 10
"""The least that a SuperLink accepts; two of them may be missing."""
COMMANDS = ("flower-supernode", "flwr-clientapp")
_CONSTANT = "HEARTBEAT_DEFAULT_INTERVAL"


def write_commands(folder: Path) -> None:
    """Commands of the same names, for a folder that comes first in PATH."""
    for name in COMMANDS:
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m asfl.field.flower.quick {name} "$@"\n')
        file.chmod(0o700)


def main() -> None:
    name = sys.argv[1]
    (found,) = entry_points(group="console_scripts", name=name)
    sys.argv = [name, *sys.argv[2:]]
    command = found.load()
    for module in [module for path, module in sys.modules.items() if path.startswith("flwr.")]:
        if hasattr(module, _CONSTANT):
            setattr(module, _CONSTANT, HEARTBEAT_S)
    sys.exit(command())


if __name__ == "__main__":
    main()
