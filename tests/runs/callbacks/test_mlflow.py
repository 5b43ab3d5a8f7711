"""MLflow's own client finds every round once, with the numbers of rounds.jsonl."""

from pathlib import Path
from typing import Any

import pytest
from made_up import made_up_round
from tracked_runs import ROUNDS, play, stopped_and_resumed

from asfl.runs.callbacks import Tracking, mlflow as tracker, scalars
from asfl.runs.callbacks.quiet import quiet
from asfl.runs.records import RoundRecord, read_records


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs, with one database beside them: MLflow takes seconds to create it."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def _usual_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def client(folder: Path) -> Any:
    """Of the database beside a run folder. MLflow is imported late: it takes seconds, also if its tests aren't run."""
    with quiet():
        from mlflow import MlflowClient

        return MlflowClient(f"sqlite:///{folder.parent / tracker.DATABASE_FILE}")


def run_of(folder: Path) -> Any:
    return client(folder).get_run((folder / tracker.ID_FILE).read_text())


def history(folder: Path) -> dict[str, list[tuple[int, float]]]:
    run = run_of(folder)
    return {
        name: [(metric.step, metric.value) for metric in client(folder).get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def expected(records: list[RoundRecord]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in scalars(record).items():
            found.setdefault(name, []).append((record.round, value))
    return found


def test_every_round_once_after_a_resume_that_replays(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records = stopped_and_resumed(runs / "resumed", "mlflow")
    assert capfd.readouterr() == ("", "")
    assert history(runs / "resumed") == expected(records)
    run = run_of(runs / "resumed")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"{runs.name}/resumed"
    assert client(runs / "resumed").get_experiment(run.info.experiment_id).name == "asfl"
    params = run.data.params
    assert (params["scheme"], params["seed"], params["training.rounds"]) == ("asfl", "1", str(ROUNDS))


def test_stopped_runs_say_so_and_missed_rounds_are_made_up_for(runs: Path) -> None:
    folder = runs / "late"
    play(folder, "none", rounds=2)
    play(folder, "mlflow", rounds=1)
    assert run_of(folder).info.status == "KILLED"
    assert history(folder) == expected(read_records(folder))


def test_a_run_that_was_deleted_there_is_shown_anew(runs: Path) -> None:
    folder = runs / "deleted"
    folder.mkdir()
    rounds = [made_up_round(number, 0.5) for number in (1, 2)]
    for _ in range(2):
        shown = tracker.MLflow()
        shown.begin(folder, {"seed": 1}, rounds)
        shown.end(True)
    before = run_of(folder).info.run_id
    assert history(folder) == expected(rounds)
    client(folder).delete_run(before)
    shown.begin(folder, {"seed": 1}, rounds)
    shown.end(True)
    assert run_of(folder).info.run_id != before
    assert history(folder) == expected(rounds)


def test_a_round_of_which_half_arrived_is_completed(runs: Path) -> None:
    folder = runs / "half"
    folder.mkdir()
    shown = tracker.MLflow()
    shown.begin(folder, {}, [made_up_round(1)])
    shown._client.log_metric(shown._run_id, "cost/delay_s", made_up_round(2).delay_s, step=2)
    shown.begin(folder, {}, [made_up_round(1), made_up_round(2)])
    shown.end(True)
    assert history(folder) == expected([made_up_round(1), made_up_round(2)])


@pytest.mark.parametrize("name", ["50%", "why?"])
def test_a_place_the_database_cannot_be_in(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name / "run").mkdir(parents=True)
    tracking = Tracking([tracker.MLflow()])
    tracking.begin(tmp_path / name / "run", {}, [])
    tracking.end(True)
    (line,) = capsys.readouterr().err.splitlines()
    assert "MLflow is switched off" in line
    assert "no % and no ? may be in this path; set MLFLOW_TRACKING_URI" in line


def test_a_database_that_cannot_be_opened_is_noticed_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / tracker.DATABASE_FILE).mkdir()
    (tmp_path / "run").mkdir()
    tracking = Tracking([tracker.MLflow()])
    tracking.begin(tmp_path / "run", {}, [])
    tracking.end(True)
    assert "unable to open database file" in capsys.readouterr().err
