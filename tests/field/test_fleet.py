"""`asfl fleet` as a person calls it: a server, and a process for each client; nothing of them is left afterwards."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_runs import agreement_of, assert_same_run, tiny
from waiting import LONG_S, wait_until

from asfl.cli.serve import fleet
from asfl.config import Resolved, by_name
from asfl.config.errors import AsflError
from asfl.config.show import as_toml
from asfl.field import serve
from asfl.field.certificates import Authority
from asfl.field.serve import LocalDevices, Waiting
from asfl.field.stream import StreamServer
from asfl.runs.folder import is_finished
from asfl.runs.manifest import read_manifest
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import run

Start = Callable[[], "subprocess.Popen[str]"]
TINY = tiny("scenario.clients=2", "radio.num_rbs=2", "model.width=1", rounds=16)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for everything, temporary files too."""
    with tempfile.TemporaryDirectory(prefix="asfl-test-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "tmp").mkdir()
        (Path(folder) / "tiny.toml").write_text(as_toml(Resolved(TINY, dict.fromkeys(by_name(TINY.model_dump()), ""))))
        yield Path(folder)


@pytest.fixture
def start(place: Path) -> Iterator[Start]:
    started = []

    def start_fleet() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", "from asfl.cli import main; main()", "fleet", "tiny.toml", "--clients", "2"]
        environment = {**os.environ, "TMPDIR": str(place / "tmp"), "HOME": str(place)}
        started.append(
            subprocess.Popen(
                [*command, "--out", "run"], cwd=place, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        return started[-1]

    yield start_fleet
    for command in started:
        command.kill()  # only if the test failed


def rounds_in(folder: Path) -> list[RoundRecord]:
    return read_records(folder) if (folder / RECORDS_FILE).exists() else []


def play(command: "subprocess.Popen[str]", folder: Path, rounds: int) -> list[psutil.Process]:
    """Until there are so many rounds; the processes of the clients."""
    wait_until(lambda: len(rounds_in(folder)) >= rounds or command.poll() is not None, "rounds are played")
    clients = psutil.Process(command.pid).children(recursive=True)
    assert len(clients) == 2
    return clients


def assert_nothing_left(place: Path, clients: Sequence[psutil.Process], *expected: str) -> None:
    """No process, no temporary file, no key."""
    assert psutil.wait_procs(clients, LONG_S)[1] == []
    assert sorted(file.name for file in place.iterdir()) == sorted(["tmp", "tiny.toml", *expected])
    assert [file for file in (place / "tmp").iterdir() if "torchinductor" not in file.name] == []  # PyTorch leaves that


def test_killed_or_stopped_and_gone_on_with_it_is_the_run_of_a_single_process(
    place: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """All clients end with the command, however it ends; then the same command gives what `asfl run` gives."""
    folder = place / "run"
    first = start()
    clients = play(first, folder, 2)
    first.kill()
    first.communicate(timeout=LONG_S)
    assert_nothing_left(place, clients, "run", "run-devices")
    done = len(rounds_in(folder))
    key = (place / "run-devices" / "server" / "authority.key").read_bytes()

    second = start()
    clients = play(second, folder, done + 1)
    assert (place / "run-devices" / "server" / "authority.key").read_bytes() == key  # with the same certificates
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=LONG_S)
    assert second.returncode == 130, err
    assert f"stopped after round {len(rounds_in(folder))}; the same command goes on" in out
    assert_nothing_left(place, clients, "run", "run-devices")
    assert not is_finished(folder)

    fleet(str(place / "tiny.toml"), clients=2, out=folder, as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["rounds"] == 16
    assert "round 16 of 16" in err
    assert_nothing_left(place, [], "run")

    here = place / "here"
    assert run(TINY, "asfl", here, threads=read_manifest(folder).threads)
    records = rounds_in(folder)
    assert all(record.faults is None for record in records)
    assert len({record.cut for record in records if isinstance(record.cut, int)}) > 1
    assert any(0 < record.arrived_count < record.scheduled_count for record in records)
    assert_same_run(folder, here)


def test_a_client_that_is_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the same device; what it had learnt is gone (what becomes of its round: `test_faults`)."""
    monkeypatch.setattr(serve, "_RESTART_AFTER_S", 0.1)
    agreement = agreement_of(tiny("scenario.clients=1", "radio.num_rbs=1"), "asfl")
    with LocalDevices(tmp_path / "devices", 1) as devices:
        authority = Authority.of(devices.server_home)
        with StreamServer("127.0.0.1:0", agreement, authority) as server:
            devices.begin(Waiting(authority, "", server.address, []))
            assert server.wait_for_clients(LONG_S)
            devices._processes[0].kill()
            wait_until(lambda: server.links[0].generation == 2, "another process is here")
    assert devices._processes[0].returncode is not None


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
