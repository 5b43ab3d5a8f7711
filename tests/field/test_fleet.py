"""`asfl fleet` as a person calls it: a server, and a process for each client; nothing of them is left afterwards."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_runs import EVERYBODY_ARRIVES, assert_same_run, tiny
from waiting import LONG_S, wait_until

from asfl.cli.serve import fleet
from asfl.config import Config, Resolved, by_name
from asfl.config.errors import AsflError
from asfl.config.show import as_toml
from asfl.field.certificates import Authority
from asfl.field.local_devices import LocalDevices
from asfl.field.serve import Waiting
from asfl.runs.folder import is_finished
from asfl.runs.manifest import read_manifest
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import run

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for everything, temporary files too."""
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
    """Those that have their temporary files there, and this word among their arguments."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(str(place)) and name in " ".join(process.cmdline()):
                found.append(process)
    return found


def rounds_in(folder: Path) -> list[RoundRecord]:
    return read_records(folder) if (folder / RECORDS_FILE).exists() else []


def assert_nothing_left(place: Path, *expected: str) -> None:
    """No process, no temporary file, no key."""
    assert processes_in(place) == []
    assert sorted(file.name for file in place.iterdir()) == sorted(["tmp", *expected])
    assert [file for file in (place / "tmp").iterdir() if "torchinductor" not in file.name] == []  # PyTorch leaves that


def write_tiny(file: Path, config: Config) -> None:
    file.write_text(as_toml(Resolved(config, dict.fromkeys(by_name(config.model_dump()), ""))))


def play_two_rounds(command: "subprocess.Popen[str]", folder: Path) -> None:
    wait_until(lambda: len(rounds_in(folder)) > 1 or command.poll() is not None, "rounds are played", LONG_S)


def test_killed_and_gone_on_with_it_is_the_run_of_a_single_process(place: Path, start: Start) -> None:
    """All clients end with the command, however it ends; then the same command gives what `asfl run` gives."""
    rounds, folder = 16, place / "run"
    config = tiny("scenario.clients=2", "radio.num_rbs=2", "model.width=1", rounds=rounds)
    write_tiny(place / "tiny.toml", config)
    command = ["tiny.toml", "--clients", "2", "--out", "run"]
    first = start(*command)
    play_two_rounds(first, folder)
    first.kill()
    first.communicate(timeout=LONG_S)
    wait_until(lambda: not processes_in(place), "all have gone", LONG_S)
    done = len(rounds_in(folder))
    assert not is_finished(folder)
    key = (place / "run-devices" / "server" / "authority.key").read_bytes()

    second = start(*command, "--json")
    wait_until(lambda: len(rounds_in(folder)) > done or second.poll() is not None, "it goes on", LONG_S)
    assert (place / "run-devices" / "server" / "authority.key").read_bytes() == key  # with the same certificates
    out, err = second.communicate(timeout=LONG_S)
    assert second.returncode == 0, err
    assert json.loads(out)["rounds"] == rounds
    assert f"round {rounds} of {rounds}" in err
    assert done < 10 or f"round {done - 9} of {rounds}" not in err  # checkpoints are ten rounds apart
    assert_nothing_left(place, "tiny.toml", "run")

    here = place / "here"
    assert run(config, "asfl", here, threads=read_manifest(folder).threads)
    records = rounds_in(folder)
    assert all(record.faults is None for record in records)
    assert len({record.cut for record in records if isinstance(record.cut, int)}) > 1
    assert any(0 < record.arrived_count < record.scheduled_count for record in records)
    assert_same_run(folder, here)


def test_a_client_is_killed_and_comes_back_and_then_the_command_is_stopped(place: Path, start: Start) -> None:
    folder = place / "run"
    write_tiny(place / "tiny.toml", tiny(*EVERYBODY_ARRIVES, "model.width=1", rounds=100_000))
    command = start("tiny.toml", "--clients", "2", "--out", "run")
    play_two_rounds(command, folder)
    clients = processes_in(place, "join")
    assert len(clients) == 2
    clients[0].kill()
    wait_until(lambda: any(record.faults for record in rounds_in(folder)), "it is noticed", LONG_S)
    wait_until(lambda: rounds_in(folder)[-1].arrived_count == 2 or command.poll() is not None, "it is back", LONG_S)

    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=LONG_S)
    assert command.returncode == 130, err
    assert f"stopped after round {len(rounds_in(folder))}; the same command goes on" in out
    assert_nothing_left(place, "tiny.toml", "run", "run-devices")


def test_a_client_that_cannot_take_part_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    def refused() -> bool:
        try:
            devices.check()
        except AsflError as error:
            return "client 0 can't take part: address 'nowhere': write it as host:port" in str(error)
        return False

    with LocalDevices(tmp_path / "devices", 1) as devices:
        devices.begin(Waiting(Authority.of(devices.server_home), "", "nowhere", []))
        wait_until(refused, "it is said why", LONG_S)


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
