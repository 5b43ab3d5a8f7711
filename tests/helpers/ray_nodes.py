"""A real Ray cluster on the loopback address: a head without CPUs and two nodes."""

import gc
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import LONG_S

SWITCHES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

_SMALL = {"object_store_memory": 80 * 2**20, "include_log_monitor": False}

RAY_LEAVES_THINGS_OPEN = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""Files and processes, in the process that starts it."""


def ray_command(words: Sequence[str], folder: Path, address: str) -> "subprocess.Popen[str]":
    """An `asfl` command in a session of its own: a signal reaches all its processes at once."""
    return subprocess.Popen(
        [sys.executable, "-c", "from asfl.cli import main; main()", *words, "--engine", "ray", "--address", address],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TwoNodes:
    """A cluster of a head without CPUs and two nodes, of which one can be killed and replaced."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
        system = {
            "worker_niceness": 0,
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 4,
            "health_check_timeout_ms": int(1000 * LONG_S),  # dead is who refuses the connection, not who is slow
            "worker_register_timeout_seconds": int(LONG_S),
            "timeout_ms_task_wait_for_death_info": int(1000 * LONG_S),  # else it doesn't know why an actor is gone
        }
        with self._environment():
            from ray.cluster_utils import Cluster

            head = {"num_cpus": 0, "include_dashboard": False, "_system_config": system, **_SMALL}
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
            self._nodes = [self._add_node() for _ in range(2)]
        self._cluster.wait_for_nodes(timeout=LONG_S)
        self.address = str(self._cluster.address)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("RAY_TMPDIR", "TMPDIR"):
                patch.setenv(name, self._folder.name)
            yield

    def _add_node(self) -> Any:
        return self._cluster.add_node(num_cpus=4, wait=False, **_SMALL)

    def kill_a_node(self) -> None:
        """As if its machine lost power."""
        self._killed = self._nodes.pop()
        raylet = psutil.Process(self._killed.all_processes["raylet"][0].process.pid)
        for process in [raylet, *raylet.children(recursive=True)]:
            process.kill()

    def replace_killed_node(self) -> None:
        self._cluster.remove_node(self._killed, allow_graceful=False)
        with self._environment():
            self._nodes.append(self._add_node())
        self._cluster.wait_for_nodes(timeout=LONG_S)

    def shut_down(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._cluster.shutdown()  # type: ignore[no-untyped-call]
            del self._cluster
            gc.collect()  # what Ray left open goes now, and not in somebody else's test
        self._folder.cleanup()
