"""Trackers: told in order, never able to hurt a run; their own readers find every round once, as in rounds.jsonl."""

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from made_up import made_up_round

from asfl.config import Config, load_config
from asfl.config.errors import AsflError, MissingExtraError
from asfl.results.frames import load_runs
from asfl.runs.callbacks import (
    Settings,
    Tracking,
    WeightsAndBiases,
    check_trackers,
    quiet,
    scalars,
    tracker_names,
)
from asfl.runs.manifest import CHECKPOINTS, MODEL_FILE
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import resume, run

ROUNDS = 4
TINY = [
    "scenario.clients=3", "radio.num_rbs=3", "model.width=0.1", "training.batch_size=8", f"training.rounds={ROUNDS}",
    "output.checkpoint_every=1", "output.test_samples=50", "output.evaluate_every=2",
]  # fmt: skip


def tiny(track: str, *overrides: str) -> Config:
    return load_config("demo", [*TINY, f"output.track={track}", *overrides]).config


def play(folder: Path, track: str, rounds: int) -> None:
    """A run that is stopped after some rounds, or goes on for some more."""
    played: list[RoundRecord] = []
    run(tiny(track), "asfl", folder, threads=1, on_round=played.append, should_stop=lambda: len(played) == rounds)


def lose_newest_checkpoint(folder: Path) -> None:
    newest = max((folder / CHECKPOINTS).glob("*.safetensors"))
    newest.unlink()


def stopped_and_resumed(folder: Path, track: str) -> list[RoundRecord]:
    """Stopped after round 3, gone on from round 2, so that the tracker hears of round 3 twice; what was recorded."""
    play(folder, track, rounds=3)
    lose_newest_checkpoint(folder)
    again: list[int] = []
    assert resume(folder, on_round=lambda record: again.append(record.round))
    assert again == [3, 4]
    return read_records(folder)


class Diary:
    """Writes down what it is told, which is on the disk by then; fails where it is told to."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self.settings: Settings = {}
        self.fails_at = fails_at

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        self.folder, self.settings = folder, settings
        self._note("begin" + "".join(f" {record.round}" for record in before))

    def round(self, record: RoundRecord) -> None:
        assert read_records(self.folder)[-1] == record
        self._note(f"round {record.round}")

    def end(self, finished: bool) -> None:
        self._note("finished" if finished else "stopped")

    def _note(self, what: str) -> None:
        self.told.append(what)
        if self.fails_at and what.startswith(self.fails_at):
            raise OSError("No space left on device\nand more")


# ---------------------------------------------------------------------- what trackers are told
def test_own_trackers_hear_of_everything_in_order(tmp_path: Path) -> None:
    first, second = Diary(), Diary()
    folder = tmp_path / "run"
    played: list[RoundRecord] = []
    assert not run(
        tiny("none"), "asfl", folder, threads=1,
        on_round=played.append, should_stop=lambda: len(played) == 3, trackers=[first],
    )  # fmt: skip
    assert first.told == ["begin", "round 1", "round 2", "round 3", "stopped"]
    lose_newest_checkpoint(folder)
    assert resume(folder, trackers=[second])
    assert second.told == ["begin 1 2", "round 3", "round 4", "finished"]
    assert second.settings["scheme"] == "asfl"
    assert second.settings["seed"] == 1
    assert second.settings["training.rounds"] == ROUNDS


@pytest.mark.parametrize("fails_at", ["begin", "round 2", "finished"])
def test_a_tracker_that_fails_costs_nothing(fails_at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing, healthy = Diary(fails_at), Diary()
    assert run(tiny("none"), "asfl", tmp_path / "tracked", threads=1, trackers=[failing, healthy])
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "Diary is switched off until the run is resumed (OSError: No space left on device)" in warnings[0]
    assert [note for note in failing.told if note == fails_at] == [fails_at]
    assert failing.told[-1] == "stopped"  # it may have something to close
    assert healthy.told == ["begin", *(f"round {k}" for k in range(1, ROUNDS + 1)), "finished"]
    diary = Diary()

    def fail(record: RoundRecord) -> None:
        if record.round == ROUNDS:
            raise RuntimeError("not the tracker's fault")

    with pytest.raises(RuntimeError, match="not the tracker's fault"):
        run(tiny("none"), "asfl", tmp_path / "alone", threads=1, on_round=fail, trackers=[diary])
    assert (diary.told[0], diary.told[-1]) == ("begin", "stopped")
    assert resume(tmp_path / "alone")
    for name in (RECORDS_FILE, MODEL_FILE):
        assert (tmp_path / "tracked" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


# ---------------------------------------------------------------------- a round as numbers
def test_numbers_are_those_of_the_table(tmp_path: Path) -> None:
    """Behind the slash stands a column of `load_runs`, with the same value."""
    run(tiny("none"), "acc-sfl", tmp_path / "run", threads=1)
    table = load_runs(tmp_path / "run")
    for record, (_, row) in zip(read_records(tmp_path / "run"), table.iterrows(), strict=True):
        named = {name.rpartition("/")[2]: value for name, value in scalars(record).items()}
        assert len(named) == len(scalars(record))
        queue = named.pop("participation_queue")
        assert queue == pytest.approx(sum(record.participation_queue) / 3)
        assert named == {name: pytest.approx(row[name]) for name in named}
        assert {"accuracy", "test_loss"} <= named.keys() or record.accuracy is None
        assert {"delay_s", "total_energy_j", "cut", "discrepancy", "arrived", "delay_queue"} <= named.keys()


def test_what_is_no_number_is_left_out() -> None:
    record = made_up_round(1, None, cut=None)
    dead = replace(record, delay_s=math.inf, total_delay_s=math.inf, energy_j=[math.inf] * len(record.energy_j))
    missing = scalars(record).keys() - scalars(dead).keys()
    assert missing == {"cost/delay_s", "cost/total_delay_s", "cost/energy_j"}
    assert not {"learning/accuracy", "decision/cut"} & scalars(record).keys()
    assert all(map(math.isfinite, scalars(dead).values()))


# ---------------------------------------------------------------------- choosing
@pytest.mark.parametrize(
    ("written", "names"),
    [
        ('["wandb", "mlflow"]', ["wandb", "mlflow"]),
        (" mlflow , wandb,mlflow", ["mlflow", "wandb"]),
        ("none", []),
        ("[]", []),
        ("auto", ["tensorboard"]),
        ("tensorbord", "output.track: unknown tracker 'tensorbord': did you mean 'tensorboard'?"),
        ("wandb,x", "unknown tracker 'x': valid: auto, mlflow, none, tensorboard, wandb"),
        ("auto,wandb", "'auto' must stand alone"),
        ("3", 'output.track = 3 must be one of "auto", "none", "tensorboard"'),
    ],
)
def test_trackers_are_named_in_the_configuration(written: str, names: list[str] | str) -> None:
    if isinstance(names, list):
        assert tracker_names(load_config("demo", [f"output.track={written}"]).config.output.track) == names
        return
    with pytest.raises(AsflError) as caught:
        load_config("demo", [f"output.track={written}"])
    assert names in str(caught.value)


def test_a_named_tracker_must_work_and_auto_never_complains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(AsflError, match=r'output.track = "mlflow": MLflow needs .* MLFLOW_TRACKING_URI'):
        run(tiny("mlflow"), "asfl", tmp_path / "run")
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it weren't there
    with pytest.raises(MissingExtraError, match=r"output\.track = \"tensorboard\" needs .*'asfl\[trackers\]'"):
        run(tiny("tensorboard"), "asfl", tmp_path / "run")
    assert not any(tmp_path.iterdir())
    assert tracker_names("auto") == []


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves ./wandb behind, which Python takes for a package if the real one isn't installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (tmp_path / "wandb").mkdir()
    with pytest.raises(MissingExtraError):
        check_trackers("wandb")


def test_nothing_is_imported_unasked() -> None:
    code = (
        "import sys, asfl.runs.run, asfl.runs.callbacks, asfl.cli.run, asfl.cli.compare\n"
        "asfl.runs.callbacks.trackers_for('tensorboard,wandb,mlflow')\n"
        "print([name for name in ('tensorboard', 'wandb', 'mlflow', 'torch', 'google') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# ---------------------------------------------------------------------- TensorBoard
def shown(reader: Any) -> dict[str, list[Any]]:
    reader.Reload()
    return {name: reader.Scalars(name) for name in reader.Tags()["scalars"]}


def board(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard"))


def assert_same(events: dict[str, list[Any]], records: list[RoundRecord]) -> None:
    """The same names, each with the same rounds and values; TensorBoard keeps single precision."""
    expected: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in scalars(record).items():
            expected.setdefault(name, []).append((record.round, float(np.float32(value))))
    assert {name: [(event.step, event.value) for event in found] for name, found in events.items()} == expected


def test_tensorboard_shows_every_round_once_and_one_that_is_open_follows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    play(folder, "tensorboard", rounds=3)
    reader = board(folder)
    assert_same(shown(reader), read_records(folder))
    lose_newest_checkpoint(folder)
    resume(folder)
    assert_same(shown(reader), read_records(folder))
    assert_same(shown(board(folder)), read_records(folder))


# ---------------------------------------------------------------------- MLflow
@pytest.fixture(autouse=True)
def _usual_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.getbasetemp() / 'mlflow.db'}")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path_factory.getbasetemp() / "wandb-home"))


def test_mlflow_has_every_round_once_after_a_resume_that_replays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rounds that it missed, too; and a stopped run says so."""
    with quiet():
        from mlflow import MlflowClient

        client = MlflowClient()
    folder = tmp_path / "run"
    play(folder, "none", rounds=1)
    play(folder, "mlflow", rounds=2)
    run_id = (folder / "mlflow-run-id").read_text()
    assert client.get_run(run_id).info.status == "KILLED"
    lose_newest_checkpoint(folder)
    assert resume(folder)
    assert capfd.readouterr() == ("", "")
    shown, expected = client.get_run(run_id), dict[str, list[tuple[int, float]]]()
    for record in read_records(folder):
        for name, value in scalars(record).items():
            expected.setdefault(name, []).append((record.round, value))
    histories = {name: client.get_metric_history(run_id, name) for name in shown.data.metrics}
    assert {name: [(one.step, one.value) for one in history] for name, history in histories.items()} == expected
    assert (shown.info.status, shown.info.run_name) == ("FINISHED", f"{tmp_path.name}/run")
    assert client.get_experiment(shown.info.experiment_id).name == "asfl"
    params = shown.data.params
    assert (params["scheme"], params["seed"], params["training.rounds"]) == ("asfl", "1", str(ROUNDS))


# ---------------------------------------------------------------------- Weights & Biases
def offline_records(folder: Path) -> Iterator[Any]:
    """What `wandb sync` would upload. The file is a LevelDB log (blocks of 32 KiB) behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    content, start, data = file.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while start + 7 <= len(content):
        left = 32768 - start % 32768
        if left < 7:
            start += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, start)
        data += content[start + 7 : start + 7 + length]
        start += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(data)
            data = b""


def rounds_in(folder: Path) -> list[tuple[int, dict[str, float]]]:
    history = [record.history for record in offline_records(folder) if record.HasField("history")]
    return [
        (
            round_.step.num,
            {
                item.nested_key[0]: json.loads(item.value_json)
                for item in round_.item
                if not item.nested_key[0].startswith("_")
            },
        )
        for round_ in history
    ]


def services() -> list[str]:
    """Command lines of W&B's processes that we started."""
    return [command for one in psutil.Process().children() if "wandb" in (command := " ".join(one.cmdline()))]


def test_wandb_has_every_round_once_after_a_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records = stopped_and_resumed(tmp_path / "run", "wandb")
    assert rounds_in(tmp_path / "run") == [(record.round, scalars(record)) for record in records]
    (run,) = [record.run for record in offline_records(tmp_path / "run") if record.HasField("run")]
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (settings["scheme"], settings["seed"], settings["training.rounds"]) == ("asfl", 1, ROUNDS)
    assert run.run_id == (tmp_path / "run" / "wandb-run-id").read_text()
    assert capfd.readouterr() == ("", "")


def test_without_a_word_from_the_user_nothing_leaves_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    tracker = WeightsAndBiases()
    tracker.begin(tmp_path, {}, [])
    assert tracker._run.settings.mode == "offline"
    assert all("--no-observability" in service for service in services())  # no reports about crashes
    tracker.end(True)
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


class Online:
    """A run of which the server already has the rounds up to `step` − 1."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.logged: list[int] = []

    def log(self, numbers: dict[str, float], step: int, commit: bool) -> None:
        self.logged.append(step)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.mark.parametrize(("step", "logged"), [(0, [1, 2, 3, 4]), (3, [3, 4]), (5, [])])
def test_online_only_what_the_server_lacks_is_sent(
    step: int, logged: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    online = Online(step)
    asked: dict[str, Any] = {}

    def init(**arguments: Any) -> Online:
        asked.update(arguments)
        return online

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_MODE", "online")
    tracker = WeightsAndBiases()
    tracker.begin(tmp_path, {"seed": 1}, [made_up_round(1), made_up_round(2)])
    for number in (3, 4):
        tracker.round(made_up_round(number))
    tracker.end(False)
    assert online.logged == logged
    assert (asked["mode"], asked["resume"], asked["id"]) == ("online", "allow", (tmp_path / "wandb-run-id").read_text())
    assert online.exit_code == 1


def test_not_logged_in_is_said_without_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    tracking = Tracking([WeightsAndBiases()])
    tracking.begin(tmp_path, {}, [])
    tracking.round(made_up_round(1))
    tracking.end(True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: WeightsAndBiases is switched off")
    assert "wandb login" in line
