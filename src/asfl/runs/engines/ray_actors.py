"""Processes of ours on the nodes of a Ray cluster: how they begin and end, and why one failed, in a few words."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asfl._version import __version__

if TYPE_CHECKING:
    from ray.exceptions import RayError, RayTaskError

_PASSED_ON = (
    *("ASFL_PLUGINS", "ASFL_DATA_DIR", "OMP_WAIT_POLICY"),
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL"),
)
"""Environment variables that mean something on other machines too; none that hold secrets."""

GPU_STAYS_VISIBLE = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""To processes that reserve none, as without Ray; some versions warn that this will be so."""


# ---------------------------------------------------------------------- on the driver
def start_actor(kind: type, *arguments: object, cpus: float, threads: int, **options: object) -> Any:
    """Start an actor that reserves `cpus`, computes with `threads`, and isn't started again if it dies.

    The first argument of every actor is the driver's folder, where relative paths begin.
    """
    import ray

    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment = {"OMP_NUM_THREADS": str(threads), **GPU_STAYS_VISIBLE, **passed_on}
    actor: Any = ray.remote(kind).options(
        num_cpus=cpus,
        scheduling_strategy="SPREAD",  # over the nodes
        max_restarts=0,
        max_task_retries=0,
        runtime_env={"env_vars": environment},
        **options,
    )
    return actor.remote(str(Path.cwd()), *arguments)


def end_actor(actor: Any) -> None:
    import ray

    if actor is not None:
        with suppress(Exception):  # it may be dead, and so may the cluster
            ray.kill(actor)


def cause_of_failure(error: "RayTaskError") -> str:
    """What went wrong on a worker, in one line."""
    lines = [line for line in str(error.cause).splitlines() if line.strip()]
    return f"{type(error.cause).__name__}: {lines[-1] if lines else ''}"


def cause_of_death(error: "RayError") -> str:
    """Why a worker is gone."""
    causes = {
        "node has died": "its node is gone",
        "running low on memory": "its node ran out of memory",
        "worker process has died": "its process was killed or crashed; out of memory?",
    }
    return next((cause for words, cause in causes.items() if words in str(error)), "it can't be reached any more")


def check_version(there: object) -> str | None:
    """What is wrong with a node whose `Actor.hello` said this; None: nothing."""
    if there == __version__:
        return None
    return f"has asfl {there}, and here it is {__version__}; all nodes need the same version"


# ---------------------------------------------------------------------- on the node
class Actor:
    """What all our actors can do."""

    def __init__(self, driver_folder: str) -> None:
        """Relative paths begin in the driver's folder, if this node has it."""
        if Path(driver_folder).is_dir():
            os.chdir(driver_folder)

    def hello(self) -> str:
        """Say which asfl this is. From now on, end with the process that manages this node.

        Ray's own workers notice only after a minute that their node is dead, and would work on until then.
        """
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        return __version__


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
