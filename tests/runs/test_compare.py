"""`asfl compare`: many runs in processes that may be stopped, fail or be killed; and the real command, tiny."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from made_up import pretend, train_here

from asfl.cli.compare import compare
from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.results.curves import finished_runs
from asfl.runs.comparison import Comparison, plan_comparison, read_comparison
from asfl.runs.engines.processes import threads_a_run, train_all
from asfl.runs.jobs import Ended, Event, Job
from asfl.runs.records import RoundRecord, read_records
from conftest import Asfl, assert_refused

ROUNDS = 3


def _config(rounds: int = ROUNDS) -> Config:
    return load_config("demo", [f"training.rounds={rounds}"]).config


def _plan(folder: Path, schemes: str, seeds: int = 1, rounds: int = ROUNDS) -> Comparison:
    return plan_comparison(_config(rounds), schemes.split(","), range(1, 1 + seeds), folder)


def test_failures_leave_the_other_runs_alone(tmp_path: Path) -> None:
    comparison = _plan(tmp_path / "out", "asfl,epsl,sfl,acc-sfl,fedavg")
    events: list[tuple[str, Event]] = []
    engine = partial(train_all, workers=2, on_event=lambda job, event: events.append((job.name, event)), train=pretend)
    assert {job.scheme for job in comparison.jobs()} == {"asfl"}  # the others borrow from it
    ended = engine(comparison.jobs())
    assert {job.scheme for job in comparison.jobs()} == {"epsl", "acc-sfl", "sfl", "fedavg"}
    ended |= engine(comparison.jobs())
    assert ended.pop("epsl seed 1").reason == "its process was killed (SIGKILL); out of memory?"
    broken = ended.pop("acc-sfl seed 1")
    assert broken.reason == "ZeroDivisionError: division by zero"
    assert "in pretend" in broken.traceback
    assert ended == {
        "asfl seed 1": Ended(True),
        "sfl seed 1": Ended(False, "the loss is not a number"),
        "fedavg seed 1": Ended(True),
    }
    rounds = [event.round for name, event in events if name == "asfl seed 1" and isinstance(event, RoundRecord)]
    assert rounds == [1, 2, 3]
    finished = finished_runs(comparison)
    assert [(run.scheme, run.seed) for run in finished] == [("asfl", 1), ("fedavg", 1)]
    assert finished[0].budgets is not None
    assert {job.scheme for job in comparison.jobs()} == {"epsl", "sfl", "acc-sfl"}


def test_stop_keeps_the_rounds_and_going_on_adds_the_rest(tmp_path: Path) -> None:
    comparison = _plan(tmp_path / "out", "asfl-joint,asfl", rounds=20)
    seen: list[int] = []

    def note(job: Job, event: Event) -> None:
        if isinstance(event, RoundRecord):
            seen.append(event.round)

    ended = train_all(comparison.jobs(), workers=1, on_event=note, should_stop=lambda: len(seen) >= 2, train=pretend)
    assert ended == {"asfl-joint seed 1": Ended(False)}  # nothing new is started
    done = len(read_records(tmp_path / "out" / "asfl-joint-seed1"))
    assert 2 <= done < 20
    assert not (tmp_path / "out" / "asfl-seed1").exists()
    seen.clear()
    ended = train_all(comparison.jobs(), workers=2, on_event=note, train=pretend)
    assert ended == {"asfl-joint seed 1": Ended(True), "asfl seed 1": Ended(True)}
    assert seen.count(done) == 1  # of asfl only
    assert len(finished_runs(comparison)) == 2
    assert comparison.jobs() == []


def test_jobs_share_world_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = _plan(tmp_path / "out", "asfl,asfl-joint", seeds=2)
    jobs = comparison.jobs()
    names = ["asfl-joint seed 1", "asfl seed 1", "asfl-joint seed 2", "asfl seed 2"]
    assert [job.name for job in jobs] == list(comparison.left()) == names
    assert [job.config.scenario.seed for job in jobs] == [1, 1, 2, 2]
    assert not (tmp_path / "out").exists()  # a plan writes nothing
    monkeypatch.setattr("asfl.runs.engines.processes.usual_threads", lambda: 5)
    assert [threads_a_run(runs) for runs in (1, 2, 3, 99)] == [5, 2, 1, 1]
    assert threads_a_run(99, workers=2) == 2


def test_a_comparison_grows_but_stays_in_its_world(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    _plan(folder, "asfl,sfl").remember()
    _plan(folder, "fedavg", seeds=3).remember()
    there = read_comparison(folder)
    assert (there.schemes, there.seeds) == (("asfl", "sfl", "fedavg"), (1, 2, 3))
    assert there.config == _config()
    later = load_config("demo", [f"training.rounds={ROUNDS}", "scenario.seed=9", "output.checkpoint_every=1"]).config
    plan_comparison(later, ["asfl"], [9], folder).remember()
    assert read_comparison(folder).seeds == (1, 2, 3, 9)
    before = (folder / "compare.json").read_bytes()
    with pytest.raises(AsflError, match=r"another world \(training.rounds = 3 there, 2 here\); give another --out"):
        _plan(folder, "asfl", rounds=2)
    (folder / "compare.json").write_text('{"format": 3}')
    with pytest.raises(AsflError, match="doesn't describe a comparison"):
        _plan(folder, "asfl")
    (folder / "compare.json").write_bytes(before.replace(b'"format": 3', b'"format": 7'))
    with pytest.raises(AsflError, match="format 7, but this asfl"):
        _plan(folder, "asfl")


def test_mistakes_on_the_command_line(asfl: Asfl, tmp_path: Path) -> None:
    assert_refused(asfl("compare", "--schemes", "asfl,asf"), "unknown scheme 'asf': did you mean 'asfl'?")
    assert_refused(asfl("compare", "--seeds", 0), "--seeds")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"preset": "dmo"}, "did you mean 'demo'?"),
        ({"out": Path("file")}, "file is a file; give --out the name of a folder"),
        ({"out": Path("full")}, "full isn't empty and isn't a comparison"),
        ({"targets": ["50"]}, "--targets 50: give accuracies between 0 and 1"),
        ({"targets": ["a,b"]}, "--targets a,b"),
        ({"preset": "small-cifar10", "data_dir": Path("full")}, "full"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(AsflError) as caught:
        compare(**arguments)
    assert words in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_command_trains_once(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    call: tuple[Any, ...] = ("compare", "demo", "--out", "out", "--set", "training.rounds=3")
    call += ("--set", "output.track=none")
    result = asfl(*call, "--schemes", "asfl,fedavg")
    assert result.returncode == 0, result.stderr
    runs = {"asfl-seed1", "fedavg-seed1"}
    pictures = {"accuracy-delay", "accuracy-energy", "accuracy-rounds", "cut-queue", "time-to-accuracy"}
    files = {"compare.json", "summary.json", *(f"{name}.png" for name in pictures)}
    assert {path.name for path in out.iterdir()} == runs | files
    for words in ("Accuracy, %", "What the rounds look like", "After 3 rounds ASFL", "picture: out/cut-queue.png"):
        assert words in result.stdout
    assert "[2 of 2 finished]" in result.stderr
    assert "after 3 rounds" in result.stderr
    ours, theirs = (read_records(out / f"{scheme}-seed1") for scheme in ("asfl", "fedavg"))
    assert [one.rb_count for one in ours] == [one.rb_count for one in theirs]  # FedAvg borrows ASFL's blocks
    assert [one.tx_power_w for one in ours] == [one.tx_power_w for one in theirs]

    trained = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    monkeypatch.setattr("asfl.cli.compare.write_figures", lambda *_: [])
    again = asfl(*call, "--schemes", "asfl,fedavg", "--targets", "0.01,0.99", "--json")
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    data = json.loads(again.stdout)
    assert data["targets"] == [0.01, 0.99]
    assert data["schemes"]["asfl"]["targets"][0]["seeds_reached"] == 1
    assert data == json.loads((out / "summary.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*")} == trained


def test_failed_runs_are_named_and_the_rest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", partial(train_all, train=pretend))
    monkeypatch.setattr("asfl.cli.compare.write_figures", lambda *_: [])
    out, three = tmp_path / "out", [f"training.rounds={ROUNDS}"]
    with pytest.raises(typer.Exit) as left:
        compare(schemes=["asfl,epsl,acc-sfl"], overrides=three, out=out)
    assert left.value.exit_code == 2
    shown = capsys.readouterr()
    assert "Accuracy, %" in shown.out
    assert "After 3 rounds ASFL" in shown.out
    assert "error: epsl seed 1 failed: its process was killed" in shown.err
    assert "error: acc-sfl seed 1 failed: ZeroDivisionError" in shown.err
    assert "in pretend" in (out / "acc-sfl-seed1.error.txt").read_text()
    assert json.loads((out / "summary.json").read_text())["failed"].keys() == {"epsl seed 1", "acc-sfl seed 1"}

    monkeypatch.setattr("asfl.runs.engines.processes.train_all", partial(train_here, train=pretend))
    compare(schemes=["asfl", "fedavg"], overrides=three, seeds=2, out=out)
    assert "[4 of 4 finished]" in capsys.readouterr().err
    compare(schemes=["asfl", "fedavg"], overrides=three, seeds=2, out=out, as_json=True)
    schemes = json.loads(capsys.readouterr().out)["schemes"]
    assert {name: len(one["runs"]) for name, one in schemes.items()} == {"asfl": 2, "fedavg": 2}
