"""Who is shown the rounds of a run besides rounds.jsonl: TensorBoard, Weights & Biases, MLflow, or your own tracker."""

import os
from importlib import util

from asfl.config.errors import MissingExtraError
from asfl.runs.callbacks.base import Settings, Tracker
from asfl.runs.callbacks.guard import Tracking
from asfl.runs.callbacks.mlflow import MLflow
from asfl.runs.callbacks.scalars import scalars
from asfl.runs.callbacks.tensorboard import TensorBoard
from asfl.runs.callbacks.wandb import WeightsAndBiases

__all__ = ["Settings", "Tracker", "Tracking", "check_trackers", "scalars", "tracker_names", "trackers_for"]

_TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def tracker_names(track: str) -> list[str]:
    """The names behind `output.track`, "auto" and "none" resolved."""
    if track == "auto":
        return ["tensorboard"] if _is_installed("tensorboard") else []
    return [] if track == "none" else track.split(",")


def trackers_for(track: str) -> list[Tracker]:
    """A new tracker for each name; nothing is imported or written before it begins."""
    return [_TRACKERS[name]() for name in tracker_names(track)]


def check_trackers(track: str) -> None:
    """Refuse a tracker that was named and isn't installed."""
    for name in tracker_names(track):
        packages = [name]
        if name == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI"):
            packages += ["sqlalchemy", "alembic", "filelock"]  # for the database file
        if not all(map(_is_installed, packages)):
            raise MissingExtraError(f'output.track = "{track}"', "trackers")


def _is_installed(package: str) -> bool:
    """A folder such as ./wandb, left behind by a run, is no package."""
    spec = util.find_spec(package)
    return spec is not None and spec.origin is not None
