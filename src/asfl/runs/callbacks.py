"""Trackers of a run besides rounds.jsonl: TensorBoard, Weights & Biases, MLflow, or your own.

The truth is rounds.jsonl; a tracker is a view of it. No tracker can hurt a run: one that fails is switched off, and the
run goes on. What is given per client is summed (energy) or averaged (queues; packet error rates and cuts over the
clients that took part).
"""

import io
import logging
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import fields
from importlib import util
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol
from uuid import uuid4

from asfl.config.errors import AsflError, MissingExtraError
from asfl.config.files import read_file
from asfl.runs.files import write_whole
from asfl.runs.records import RoundRecord

Settings = Mapping[str, str | int | float | bool]
"""`scheme`, `seed`, and every field of the configuration under its own name, such as `training.rounds`."""


class Tracker(Protocol):
    """Shows a run somewhere else, round by round."""

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        """A run begins, or goes on after the rounds `before`.

        Not all of those need have been seen: a tracker may be chosen late, or have failed. Later ones may have been
        seen: rounds after the last checkpoint are played again, to the same numbers.
        """

    def round(self, record: RoundRecord) -> None:
        """A round is over and its record is on the disk."""

    def end(self, finished: bool) -> None:
        """No more rounds: all are done, or the run was stopped or failed and may go on one day."""


class Tracking:
    """Tells several trackers about a run, and never raises: one that fails is switched off."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self._on = list(trackers)

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        self._tell(lambda tracker: tracker.begin(folder, settings, before))

    def round(self, record: RoundRecord) -> None:
        self._tell(lambda tracker: tracker.round(record))

    def end(self, finished: bool) -> None:
        self._tell(lambda tracker: tracker.end(finished))

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._on):
            try:
                with quiet() if type(tracker) in _TRACKERS.values() else nullcontext():
                    call(tracker)
            except Exception as error:
                self._on.remove(tracker)
                reason = shorten(f"{type(error).__name__}: {error}".splitlines()[0], 200, placeholder=" …")
                name = type(tracker).__name__
                print(
                    f"warning: {name} is switched off until the run is resumed ({reason})", file=sys.stderr, flush=True
                )
                with suppress(Exception), quiet():
                    tracker.end(False)  # it may hold files or processes


def scalars(record: RoundRecord) -> dict[str, float]:
    """What there is to plot of a round, the same for all trackers; what doesn't exist or isn't finite is left out.

    Behind the slash stands the name the number has in rounds.jsonl and `asfl.load_runs`.
    """
    named: dict[str, float | None] = {
        "decision/cut": record.mean_cut,
        "decision/scheduled": record.scheduled_count,
        "radio/packet_error_rate": record.mean_packet_error_rate,
        "radio/arrived": record.arrived_count,
    }
    for one in fields(record):
        if group := one.metadata.get("group"):
            value = getattr(record, one.name)
            if isinstance(value, list):
                value = sum(value) / (len(value) if group == "queues" else 1)
            named[f"{group}/{one.name}"] = value
    return {name: float(value) for name, value in named.items() if value is not None and math.isfinite(value)}


@contextmanager
def quiet() -> Iterator[None]:
    """No prints, warnings or log lines from what is called inside, and no questions: what goes wrong is raised."""
    log_level, stdin = logging.root.manager.disable, sys.stdin
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(max(log_level, logging.ERROR))
        sys.stdin = io.StringIO()
        try:
            yield
        finally:
            sys.stdin = stdin
            logging.disable(log_level)


class TensorBoard:
    """Scalars in `tensorboard/` below the run folder; settings on the HParams page."""

    _writer: Any = None

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        """In a new event file, with all rounds from the first one on: TensorBoard forgets what it has read."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        home = folder / "tensorboard"
        self._writer = SummaryWriter(home, purge_step=1 if any(home.glob("events.out.*")) else None)
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
        _, start, self._success = hparams(words, {})  # type: ignore[no-untyped-call]
        self._writer.file_writer.add_summary(start)
        for record in before:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def end(self, finished: bool) -> None:
        if self._writer is not None:
            if finished:
                self._writer.file_writer.add_summary(self._success)
            self._writer.close()


_PRIVATE = {  # nothing about the machine, its code or its output is sent
    "silent": True,
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WeightsAndBiases:
    """One W&B run for a run folder, under the same id whenever it goes on: offline, in `wandb/` below the run folder,
    unless WANDB_MODE says otherwise.

    Offline, its file is written anew then and holds every round once. Online, W&B can't take a round back; rounds that
    are played again are the same, so those it has are left as they are.
    """

    _run: Any = None

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        # W&B reports errors in its own code to its makers; only the user may wish that.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        mode = os.environ.get("WANDB_MODE") or "offline"
        folder = folder.absolute()
        file = folder / "wandb-run-id"
        if not file.exists():
            write_whole(file, uuid4().hex[:12])
        if mode == "offline":
            for old in folder.glob("wandb/offline-run-*"):
                shutil.rmtree(old)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "asfl",
            id=read_file(file, 1000).decode().strip(),
            name=f"{folder.parent.name}/{folder.name}",
            config=dict(settings),
            dir=folder,
            mode=mode,
            resume=None if mode == "offline" else "allow",
            reinit="create_new",  # a caller from Python may have a run of its own
            settings=wandb.Settings(**_PRIVATE),
        )
        self._first_unknown = self._run.step
        for record in before:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        if record.round >= self._first_unknown:
            self._run.log(scalars(record), step=record.round, commit=True)

    def end(self, finished: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if finished else 1)


class MLflow:
    """One MLflow run for a run folder, under the same id whenever it goes on, where MLFLOW_TRACKING_URI says.

    MLflow can't take a number back; rounds that are played again are the same, so those it has are left as they are.
    """

    _run_id: str | None = None

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        # MLflow tells its makers who calls what; only the user may wish that.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        folder = folder.absolute()
        file = folder / "mlflow-run-id"
        self._client, self._last_known = MlflowClient(), 0
        if file.exists():
            run_id = read_file(file, 1000).decode().strip()
            self._client.update_run(run_id, status="RUNNING")
            known = self._client.get_metric_history(run_id, "radio/arrived")  # which every round has
            self._last_known = max((metric.step for metric in known), default=0)
        else:
            run = self._client.create_run(_experiment(self._client), run_name=f"{folder.parent.name}/{folder.name}")
            run_id = str(run.info.run_id)
            write_whole(file, run_id)
            params = (Param(name, str(value)) for name, value in settings.items())
            while some := list(islice(params, 100)):  # no request may have more
                self._client.log_batch(run_id, params=some)
        self._run_id = run_id
        for record in before:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        if record.round > self._last_known:
            from mlflow.entities import Metric

            now_ms = int(1000 * time.time())
            metrics = [Metric(name, value, now_ms, record.round) for name, value in scalars(record).items()]
            self._client.log_batch(self._run_id, metrics=metrics)  # all of a round or nothing

    def end(self, finished: bool) -> None:
        if self._run_id is not None:
            self._client.set_terminated(self._run_id, "FINISHED" if finished else "KILLED")


def _experiment(client: Any) -> str:
    from mlflow.exceptions import MlflowException

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "asfl"
    with suppress(MlflowException):  # it is there, or another process is quicker
        client.create_experiment(name)
    return str(client.get_experiment_by_name(name).experiment_id)


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
    """Refuse a tracker that was named and can't work."""
    names = tracker_names(track)
    if not all(map(_is_installed, names)):
        raise MissingExtraError(f'output.track = "{track}"', "trackers")
    if "mlflow" in names and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise AsflError(
            f'output.track = "{track}": MLflow needs the environment variable MLFLOW_TRACKING_URI, such as '
            "http://127.0.0.1:5000 or sqlite:///runs/mlflow.db"
        )


def _is_installed(package: str) -> bool:
    """A folder such as ./wandb, left behind by a run, is no package."""
    spec = util.find_spec(package)
    return spec is not None and spec.origin is not None
