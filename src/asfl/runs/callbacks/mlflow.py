"""Rounds in MLflow: where MLFLOW_TRACKING_URI says, else in a database file beside the run folder."""

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from asfl.config.errors import AsflError
from asfl.config.files import read_file
from asfl.runs.callbacks.base import Settings
from asfl.runs.callbacks.quiet import quiet
from asfl.runs.callbacks.scalars import scalars
from asfl.runs.files import write_whole
from asfl.runs.records import RoundRecord

ID_FILE, DATABASE_FILE = "mlflow-run-id", "mlflow.db"
_AT_ONCE = 100
"""Numbers or settings in one request; MLflow takes no more than 100 settings."""
_UNLESS_SET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow tells its makers who calls what; only the user may wish that
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # a server that is away holds a round up for seconds, not for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class MLflow:
    """One MLflow run for a run folder, under the same id whenever it goes on.

    MLflow can't take a number back; rounds that are played again are the same, so those it has are left as they are.
    """

    _run_id: str | None = None

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        for name, value in _UNLESS_SET.items():
            os.environ.setdefault(name, value)
        folder = folder.absolute()
        with quiet():
            self._client = _client(folder)
            self._known: dict[str, set[int]] = {}
            known_id = self._known_run(folder / ID_FILE)
            if known_id is None:
                self._run_id = self._new_run(folder, settings)
            else:
                self._run_id = known_id
                self._client.update_run(known_id, status="RUNNING")
                self._known = self._known_rounds(known_id)
        self._log(before)

    def round(self, record: RoundRecord) -> None:
        self._log([record])

    def end(self, finished: bool) -> None:
        if self._run_id is not None:
            with quiet():
                self._client.set_terminated(self._run_id, "FINISHED" if finished else "KILLED")
            self._run_id = None

    def _log(self, records: Sequence[RoundRecord]) -> None:
        now_ms = int(1000 * time.time())
        with quiet():
            from mlflow.entities import Metric

            metrics = (
                Metric(name, value, now_ms, record.round)
                for record in records
                for name, value in scalars(record).items()
                if record.round not in self._known.get(name, ())
            )
            while some := list(islice(metrics, _AT_ONCE)):
                self._client.log_batch(self._run_id, metrics=some)

    def _known_run(self, file: Path) -> str | None:
        """The id this folder's run has in this store; None if there is none, or it was deleted there."""
        from mlflow.exceptions import MlflowException

        if not file.exists():
            return None
        run_id = read_file(file, 1000).decode().strip()
        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run_id if run.info.lifecycle_stage == "active" else None

    def _known_rounds(self, run_id: str) -> dict[str, set[int]]:
        names = self._client.get_run(run_id).data.metrics
        return {name: {metric.step for metric in self._client.get_metric_history(run_id, name)} for name in names}

    def _new_run(self, folder: Path, settings: Settings) -> str:
        from mlflow.entities import Param

        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "asfl"
        run = self._client.create_run(self._experiment_id(experiment), run_name=f"{folder.parent.name}/{folder.name}")
        run_id: str = run.info.run_id
        write_whole(folder / ID_FILE, run_id.encode())
        params = (Param(name, str(value)) for name, value in settings.items())
        while some := list(islice(params, _AT_ONCE)):
            self._client.log_batch(run_id, params=some)
        return run_id

    def _experiment_id(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process was quicker
                    raise
                found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id)


def _client(folder: Path) -> Any:
    """Of the store where the run of a folder is shown; a database file that can't be opened is refused at once."""
    from mlflow import MlflowClient

    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return MlflowClient(uri)
    from filelock import FileLock

    file = folder.parent / DATABASE_FILE
    if set("%?") & set(str(file)):  # SQLAlchemy would read more into them, and its versions don't agree what
        raise AsflError(f"{file}: no % and no ? may be in this path; set MLFLOW_TRACKING_URI")
    with closing(sqlite3.connect(file)) as database:  # MLflow would try for two minutes
        database.execute("PRAGMA schema_version")
    with FileLock(f"{file}.lock"):  # MLflow creates the tables here, and fails if another process does so too
        return MlflowClient(f"sqlite:///{file}")
