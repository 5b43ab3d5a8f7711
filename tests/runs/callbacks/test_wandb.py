"""Weights & Biases, offline: its file holds every round once, and its service process is gone afterwards."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up_round
from tracked_runs import ROUNDS, play, stopped_and_resumed

from asfl.runs.callbacks import Tracking, scalars
from asfl.runs.callbacks.wandb import ID_FILE, WeightsAndBiases
from asfl.runs.records import RoundRecord, read_records


@pytest.fixture(autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path_factory.mktemp("wandb-home")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(elsewhere))


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


def expected(records: list[RoundRecord]) -> list[tuple[int, dict[str, float]]]:
    return [(record.round, scalars(record)) for record in records]


def services() -> list[str]:
    """Command lines of W&B's processes that we started; only Linux tells."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
        if parent == os.getpid() and "wandb" in command:
            found.append(command)
    return found


def test_every_round_once_after_a_resume_that_replays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records = stopped_and_resumed(tmp_path / "run", "wandb")
    assert rounds_in(tmp_path / "run") == expected(records)
    (run,) = [record.run for record in offline_records(tmp_path / "run") if record.HasField("run")]
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (settings["scheme"], settings["seed"], settings["training.rounds"]) == ("asfl", 1, ROUNDS)
    assert run.run_id == (tmp_path / "run" / ID_FILE).read_text()
    assert services() == []
    assert capfd.readouterr() == ("", "")


def test_the_id_stays(tmp_path: Path) -> None:
    play(tmp_path / "run", "wandb", rounds=1)
    before = (tmp_path / "run" / ID_FILE).read_text()
    play(tmp_path / "run", "wandb", rounds=1)
    assert (tmp_path / "run" / ID_FILE).read_text() == before
    assert rounds_in(tmp_path / "run") == expected(read_records(tmp_path / "run"))


def test_without_a_word_from_the_user_nothing_leaves_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    tracker = WeightsAndBiases()
    tracker.begin(tmp_path, {}, [])
    assert tracker._run.settings.mode == "offline"
    if Path("/proc/self").exists():
        (service,) = services()
        assert "--no-observability" in service  # no reports about crashes
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
    assert (asked["mode"], asked["resume"], asked["id"]) == ("online", "allow", (tmp_path / ID_FILE).read_text())
    assert online.exit_code == 1


def test_not_logged_in_is_said_and_nobody_is_asked(
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
    assert services() == []


def test_a_run_of_the_callers_own_is_left_alone(tmp_path: Path) -> None:
    import wandb

    theirs = wandb.init(dir=tmp_path, settings=wandb.Settings(silent=True, console="off", x_disable_stats=True))
    try:
        tracker = WeightsAndBiases()
        (tmp_path / "run").mkdir()
        tracker.begin(tmp_path / "run", {}, [])
        tracker.round(made_up_round(1))
        tracker.end(True)
        assert wandb.run is theirs
        theirs.log({"x": 1})
    finally:
        theirs.finish()
        wandb.teardown()
    assert rounds_in(tmp_path / "run") == expected([made_up_round(1)])
