"""`asfl fleet` as a person calls it: real SuperLink, SuperNodes and apps; nothing of them is left afterwards."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_runs import CLIENTS, EVERYBODY_ARRIVES, assert_same_run, tiny
from waiting import LONG_S, wait_until

from asfl.cli.fleet import fleet
from asfl.config import Config, Resolved, by_name
from asfl.config.errors import AsflError
from asfl.config.show import as_toml
from asfl.field.flower.federation import Federation, federation
from asfl.runs.folder import is_finished
from asfl.runs.manifest import read_manifest
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import run

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for everything, temporary files too; with a short name, as Ray needs it."""
    with tempfile.TemporaryDirectory(prefix="asfl-test-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "tmp").mkdir()
        yield Path(folder)
        for process in processes_in(Path(folder)):  # only if the test failed
            process.kill()


@pytest.fixture
def start(place: Path) -> Start:
    def start_fleet(*arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", "from asfl.cli import main; main()", "fleet", *arguments]
        environment = {**os.environ, "TMPDIR": str(place / "tmp"), "HOME": str(place)}
        return subprocess.Popen(
            command, cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    return start_fleet


def processes_in(place: Path, name: str = "") -> list[psutil.Process]:
    """Whoever has its temporary files there, and was called by this name."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(str(place)) and name in " ".join(process.cmdline()):
                found.append(process)
    return found


def rounds_in(folder: Path) -> list[RoundRecord]:
    return read_records(folder) if (folder / RECORDS_FILE).exists() else []


def assert_nothing_left(place: Path, *expected: str) -> None:
    """No process, no temporary file, no log; nothing in Flower's usual folder."""
    assert processes_in(place) == []
    assert sorted(file.name for file in place.iterdir()) == sorted(["tmp", *expected])
    assert list((place / "tmp").iterdir()) == []


def write_tiny(file: Path, config: Config) -> None:
    file.write_text(as_toml(Resolved(config, dict.fromkeys(by_name(config.model_dump()), ""))))


def play_two_rounds(command: "subprocess.Popen[str]", folder: Path) -> None:
    wait_until(lambda: len(rounds_in(folder)) > 1 or command.poll() is not None, "rounds are played", LONG_S)


def test_killed_and_gone_on_with_it_is_the_run_of_a_single_process(place: Path, start: Start) -> None:
    """Everybody ends with the command, even if it can't say so; then the same command gives what `asfl run` gives."""
    rounds, folder, config = 40, place / "run", tiny("scenario.clients=2", "radio.num_rbs=2", rounds=40)
    write_tiny(place / "tiny.toml", config)
    command = ["tiny.toml", "--clients", "2", "--out", "run"]
    first = start(*command)
    play_two_rounds(first, folder)
    # Errors are looked for in this log. Flower sends it on every half a second, so what was said last dies with it.
    log = place / "run-fleet-logs" / "run.log"
    wait_until(lambda: "asfl: round 1: " in log.read_text(), "the log of the ServerApp arrives", LONG_S)
    first.kill()
    first.communicate(timeout=LONG_S)
    wait_until(lambda: not processes_in(place), "everybody has gone", LONG_S)
    assert "asfl: round 1: " in log.read_text()  # it stays
    done = len(rounds_in(folder))
    assert not is_finished(folder)

    second = start(*command, "--json")
    out, err = second.communicate(timeout=LONG_S)
    assert second.returncode == 0, err
    assert json.loads(out)["rounds"] == rounds
    assert f"round {rounds}/{rounds}" in err
    assert done < 10 or f"round {done - 9}/{rounds}" not in err  # checkpoints are ten rounds apart
    assert "INFO" not in err  # what Flower says isn't shown
    assert processes_in(place) == []
    assert not log.parent.exists()

    here = place / "here"
    assert run(config, "asfl", here, threads=read_manifest(folder).threads)
    records = rounds_in(folder)
    assert all(record.faults is None for record in records)
    assert len({record.cut for record in records if isinstance(record.cut, int)}) > 1
    assert any(0 < record.arrived_count < record.scheduled_count for record in records)
    assert_same_run(folder, here)


def test_a_clientapp_and_its_supernode_are_killed_and_then_the_command_is_stopped(place: Path, start: Start) -> None:
    """The rounds go on without the client, and another SuperNode is started; in the end nothing is left."""
    folder = place / "run"
    write_tiny(place / "tiny.toml", tiny(*EVERYBODY_ARRIVES, rounds=100_000))
    command = start("tiny.toml", "--clients", "2", "--out", "run")
    play_two_rounds(command, folder)
    apps = processes_in(place, "flwr-clientapp")
    assert len(apps) == 2
    words = apps[0].cmdline()
    port = words[words.index("--runtime-api-address") + 1].partition(":")[2]
    apps[0].kill()
    wait_until(lambda: rounds_in(folder)[-1].faults is not None, "it is noticed", LONG_S)
    (before,) = processes_in(place, f"--port {port} ")
    before.kill()
    wait_until(lambda: set(processes_in(place, f"--port {port} ")) - {before} != set(), "there is another", LONG_S)
    then = len(rounds_in(folder))
    wait_until(lambda: len(rounds_in(folder)) > then + 2 or command.poll() is not None, "rounds go on", LONG_S)
    (fault,) = rounds_in(folder)[-1].faults or []
    assert (fault["stage"], fault["reason"]) == ("begin", "not connected")
    assert rounds_in(folder)[-1].arrived_count == 1

    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=LONG_S)
    assert command.returncode == 130, err
    assert f"stopped after round {len(rounds_in(folder))}; the same command goes on" in out
    assert "it is started again" in err
    assert_nothing_left(place, "tiny.toml", "run")


class FailingFederation:
    """One whose run is over at once, with an error that only the ServerApp noticed."""

    running = False

    def __init__(self, logs: Path) -> None:
        self._logs = logs

    def begin(self, *what: object) -> None:
        (self._logs / "run.log").write_text("INFO : hello\nasfl: error: the first\nasfl: error: the disk is full\n")

    error = Federation.error


def test_an_error_of_the_run_is_one_line_and_the_logs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def failing(logs: Path, *what: object, **more: object) -> Iterator[FailingFederation]:
        logs.mkdir()
        yield FailingFederation(logs)

    monkeypatch.setattr("asfl.field.flower.federation.federation", failing)
    folder = tmp_path / "run"
    with pytest.raises(AsflError) as caught:
        fleet("demo", clients=1, out=folder)
    assert str(caught.value) == f"the disk is full (logs: {tmp_path / 'run-fleet-logs'})"


def test_logs_are_kept_after_an_error_only(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with federation(logs, 1, lambda: False):
        assert logs.exists()
    assert not logs.exists()
    with pytest.raises(AsflError), federation(logs, 1, lambda: False):
        raise AsflError("something")
    assert logs.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overrides": ["training.round=5"]}, "did you mean 'rounds'?"),
        ({"scheme": "sfll"}, "did you mean 'sfl'?"),
        ({"preset": "dmo"}, "did you mean 'demo'?"),
        ({"overrides": ["training.batch_size=2000"]}, "training.batch_size = 2000"),
        ({"out": Path("taken")}, "exists and is not a run folder"),
    ],
)
def test_mistakes_end_before_anything_is_started(
    options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(AsflError) as caught:
        fleet(**options)
    assert words in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


@pytest.mark.study
def test_in_the_simulation_of_flower(place: Path, start: Start) -> None:
    rounds, folder = 10, place / "run"
    write_tiny(place / "tiny.toml", tiny(rounds=rounds))
    command = start("tiny.toml", "--clients", str(CLIENTS), "--out", "run", "--simulation")
    _, err = command.communicate(timeout=LONG_S)
    assert command.returncode == 0, err
    assert_nothing_left(place, "tiny.toml", "run")
    here = place / "here"
    assert run(tiny(rounds=rounds), "asfl", here, threads=read_manifest(folder).threads)
    assert_same_run(folder, here)
