"""Flower's processes in a network of their own, and what happens when one of them ends."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import LONG_S, wait_until

from asfl.cli.fleet import NetworkKind, _private_network
from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.field.flower import federation as federations
from asfl.field.flower.federation import Federation
from asfl.field.flower.processes import listens, private_network, start

CONFIG = load_config("demo", ["output.track=none"]).config
LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    socket.create_connection(server.getsockname()).close()
    print("here", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder() -> Iterator[int]:
    with private_network() as (process, reason):
        if not process:
            pytest.skip(reason)
        yield process


def test_nobody_else_reaches_what_listens_in_it(holder: int, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-c", LISTEN, str(port)]
    assert not listens("127.0.0.1", port, holder)
    inside = start(command, {}, tmp_path / "log", talk=True, network=holder)
    try:
        assert inside.stdout is not None
        assert inside.stdout.readline() == "here\n", (tmp_path / "log").read_text()
        assert listens("127.0.0.1", port, holder)
        assert not listens("127.0.0.1", port)
        second = start(command, {}, tmp_path / "log", talk=True)  # the port is free here
        assert second.stdout is not None
        assert second.stdout.readline() == "here\n"
        assert listens("127.0.0.1", port)
    finally:
        for child in (inside, second):
            child.kill()
            child.communicate(timeout=LONG_S)


def test_without_one_there_is_a_warning_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _private_network(CONFIG, NetworkKind.LOOPBACK, in_namespaces=False) as process:
        assert process == 0
    assert "every user of this machine can start code as you" in capsys.readouterr().err
    monkeypatch.setattr("asfl.field.flower.processes._PRIVATE_NETWORK", Path("/nowhere.py"))
    with _private_network(CONFIG, NetworkKind.AUTO, in_namespaces=False) as process:
        assert process == 0
    assert "nowhere" in capsys.readouterr().err
    with pytest.raises(AsflError, match="--network private: "), _private_network(CONFIG, NetworkKind.PRIVATE, False):
        pass


def test_trackers_elsewhere_are_reached(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    tracked = load_config("demo", ["output.track=mlflow"]).config
    with _private_network(tracked, NetworkKind.AUTO, in_namespaces=False) as process:
        assert process == 0
    assert "a tracker needs this machine's network" in capsys.readouterr().err


# ---------------------------------------------------------------------- a process ends
@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    monkeypatch.setattr(federations, "_RESTART_AFTER_S", 0.01)
    made = Federation(tmp_path, tmp_path / "logs", 2, lambda: False, simulated=False, network=None, private=0)
    for name in ("superlink", "supernode-0", "supernode-1"):
        made._start(name, sys.executable, "-c", "import time; time.sleep(10_000)")
    yield made
    for child in made._children.values():
        child.kill()
        child.wait()


def end(child: "subprocess.Popen[str]") -> None:
    child.kill()
    child.wait()


def test_a_supernode_that_ends_is_started_again(started: Federation) -> None:
    started.check()
    before = started._children["supernode-1"]
    end(before)
    started.check()

    def again() -> bool:
        started.check()
        return started._children["supernode-1"] is not before

    wait_until(again, "there is another")
    assert started._children["supernode-1"].poll() is None


def test_all_supernodes_or_the_superlink_end_the_fleet(started: Federation) -> None:
    end(started._children["supernode-0"])
    end(started._children["supernode-1"])
    with pytest.raises(AsflError, match="supernode-0 ended"):
        started.check()
    started._start_again("supernode-0")
    started._start_again("supernode-1")
    end(started._children["superlink"])
    with pytest.raises(AsflError, match="superlink ended with exit code -9"):
        started.check()
