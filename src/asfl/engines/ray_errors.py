"""What Ray's exceptions say, in a few words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.exceptions import RayError, RayTaskError


def cause_of_failure(error: "RayTaskError") -> str:
    """What went wrong on a worker, in one line."""
    lines = [line for line in str(error.cause).splitlines() if line.strip()]
    return f"{type(error.cause).__name__}: {lines[-1] if lines else ''}"


def cause_of_death(error: "RayError") -> str:
    """Why a worker is there no more."""
    text = str(error)
    if "node has died" in text:
        return "its node is gone"
    if "running low on memory" in text:
        return "its node ran out of memory"
    if "worker process has died" in text:
        return "its process was killed or crashed; out of memory?"
    return "it can't be reached any more"
