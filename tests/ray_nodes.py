"""A real Ray cluster on the loopback address: a head without CPUs and two nodes."""

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

SWITCHES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

RAY_LEAVES_THINGS_OPEN = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""Files and processes, in the process that starts it."""


def ray_command(words: Sequence[str], folder: Path) -> "subprocess.Popen[str]":
    """An `asfl` command in a cluster and a session of its own: a signal reaches all its processes at once."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-c", "from asfl.cli import main; main()", *words, "--engine", "ray"],
        cwd=folder,
        env={**environment, "HOME": str(folder)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TwoNodes:
    """A cluster whose second node can be killed."""

    def __init__(self, cpus_of_node: int) -> None:
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80 * 2**20, "include_log_monitor": False}
        system = {
            "worker_niceness": 0,
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 4,
        }
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "_system_config": system,
                **small,
            },
        )
        self._nodes = [self._cluster.add_node(num_cpus=cpus_of_node, wait=False, **small) for _ in range(2)]
        self._cluster.wait_for_nodes()
        self.address = str(self._cluster.address)

    def kill_a_node(self) -> None:
        """As if its machine lost power."""
        raylet = psutil.Process(self._nodes.pop().all_processes["raylet"][0].process.pid)
        for process in [raylet, *raylet.children(recursive=True)]:
            process.kill()

    def shut_down(self) -> None:
        self._cluster.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def two_nodes(cpus_of_node: int = 1) -> Iterator[TwoNodes]:
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder,
    ):
        for name, value in {**SWITCHES, "RAY_TMPDIR": folder, "TMPDIR": folder}.items():
            patch.setenv(name, value)
        nodes = TwoNodes(cpus_of_node)
        try:
            yield nodes
        finally:
            nodes.shut_down()
            gc.collect()  # what Ray left open goes now, and not in somebody else's test
