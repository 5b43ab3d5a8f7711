"""`asfl sweep`: points × schemes × seeds through one pool."""

import json
from functools import partial
from pathlib import Path

import pytest
from made_up import pretend, train_here

from asfl.cli.compare import train_runs
from asfl.config.errors import AsflError
from asfl.runs.comparison import SWEEP_FILE, Axis, Sweep, plan_sweep, point_name
from asfl.runs.jobs import Job
from conftest import Asfl, assert_refused

AXES = [Axis("data.dirichlet_alpha", ("0.1", "10")), Axis("radio.num_rbs", ("4", "8"))]


def _jobs(sweep: Sweep) -> list[Job]:
    return [job for one in sweep.comparisons for job in one.jobs()]


def test_all_combinations_once(tmp_path: Path) -> None:
    sweep = plan_sweep("demo", ["training.rounds=2"], AXES, ["asfl", "fedavg"], 2, tmp_path / "out")
    left = {name: run for one in sweep.comparisons for name, run in one.left().items()}
    assert len(left) == sum(one.num_runs for one in sweep.comparisons) == 16
    jobs = _jobs(sweep)
    assert len({job.name for job in jobs}) == len({job.folder for job in jobs}) == 8  # FedAvg waits for ASFL
    assert {job.name for job in jobs} < left.keys()
    found = {(job.config.data.dirichlet_alpha, job.config.radio.num_rbs) for job in jobs}
    assert found == {(0.1, 4), (0.1, 8), (10.0, 4), (10.0, 8)}
    assert not (tmp_path / "out").exists()  # planning writes nothing


def test_finished_runs_are_not_repeated_and_failures_are_left(tmp_path: Path) -> None:
    sweep = plan_sweep("demo", ["training.rounds=2"], AXES[:1], ["asfl", "sfl"], 1, tmp_path / "out")
    sweep.remember()
    failed = train_runs(sweep.comparisons, None, partial(train_here, train=pretend))
    assert set(failed.values()) == {"the loss is not a number"}
    assert sum(len(one.finished()) for one in sweep.comparisons) == 2
    again = plan_sweep("demo", ["training.rounds=2"], AXES[:1], ["asfl", "sfl"], 1, tmp_path / "out")
    assert {job.scheme for job in _jobs(again)} == {"sfl"}
    assert json.loads((tmp_path / "out" / SWEEP_FILE).read_text())["over"] == {"data.dirichlet_alpha": ["0.1", "10"]}


def test_names_are_safe_folder_names() -> None:
    assert point_name([("data.name", "../x y/é.npz")]) == "data.name=.._x_y__.npz"


@pytest.mark.parametrize("text", ["data.dirichlet_alpha", "=1,2", "data.dirichlet_alpha=", "scenario.seed=1,2"])
def test_axes_that_are_none(text: str) -> None:
    with pytest.raises(AsflError, match="--over"):
        Axis.parse(text)


def test_the_command(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", train_here)
    sets = ["scenario.clients=3", "model.width=0.1", "training.batch_size=8", "training.rounds=2"]
    words = [word for one in sets for word in ("--set", one)]
    sweep = ["sweep", "demo", "--over", "data.dirichlet_alpha=0.1,10", "--schemes", "asfl,sfl", "--out", "out"]
    result = asfl(*sweep, *words)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "sweep.png").stat().st_size > 1000
    assert len((tmp_path / "out" / "sweep.csv").read_text().splitlines()) > 10
    again = asfl(*sweep, *words)
    assert again.stdout == result.stdout
    assert "rounds" not in again.stderr  # nothing was trained


def test_mistakes(asfl: Asfl, tmp_path: Path) -> None:
    assert_refused(asfl("sweep"), "--over")
    assert_refused(asfl("sweep", "--over", "data.dirichlet=1,2"), "data.dirichlet", "did you mean")
    assert_refused(asfl("sweep", "--over", "radio.num_rbs=1,x"), "radio.num_rbs", "x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert_refused(asfl("sweep", "--over", "radio.num_rbs=1,2", "--out", "mine"), "isn't a sweep")
