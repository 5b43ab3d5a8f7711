"""How processes of Flower and Ray are started by us: quiet, offline, and on this machine only."""

import os
import sysconfig
from pathlib import Path

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # what runs is what is installed
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray listens on the loopback address only
}
HOME = "FLWR_HOME"
"""Flower's folder, with its own configuration; also how our processes are told from others."""
_POLL_S = "0.1"


def flower_environment(home: Path, temporary: Path) -> dict[str, str]:
    """For a process that keeps everything of Flower's in `home`, and its temporary files in another folder."""
    scripts = sysconfig.get_path("scripts")  # Flower calls its own commands by name
    return {
        **os.environ,
        **SWITCHES,
        HOME: str(home),
        "TMPDIR": str(temporary),
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _POLL_S,  # else every start takes up to a second longer
        "PYTHONUNBUFFERED": "1",  # logs are complete, whatever happens
    }
