"""A network inside this machine; only where one can be made."""

import json
import secrets
import socket
import subprocess
import sys

import pytest

from asfl.config.errors import AsflError
from asfl.field.emulate import namespaces as module
from asfl.field.emulate.namespaces import namespaces, why_not
from asfl.field.emulate.shaping import ShapedLink

_REASON = why_not()
possible = pytest.mark.skipif(_REASON is not None, reason=f"no network of namespaces: {_REASON}")
_CALL = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 60).sendall(b'here')"


@pytest.fixture
def tag(monkeypatch: pytest.MonkeyPatch) -> str:
    """In the names of everything that is made; other tests may run at the same time."""
    own = secrets.token_hex(3)
    monkeypatch.setattr("asfl.field.emulate.namespaces.secrets.token_hex", lambda size: own)
    return own


def left_behind(tag: str) -> list[str]:
    listed = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout)
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    return [name for name in [*(entry["ifname"] for entry in listed), *spaces] if tag in name]


def rates(network: module.Namespaces, client: int) -> str:
    shown = [*network.inside(client), "tc", "qdisc", "show", "dev", "eth0"]
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout


@possible
def test_clients_reach_the_server_over_links_that_change(tag: str) -> None:
    profile = (ShapedLink(uplink_bps=8e6), ShapedLink(client=1, from_round=3, uplink_bps=1e6))
    with namespaces(2, profile) as network:
        with socket.create_server((network.server, 0)) as door:
            call = [*network.inside(1), sys.executable, "-c", _CALL, network.server, str(door.getsockname()[1])]
            subprocess.run(call, check=True)
            connection, (peer, _) = door.accept()
            with connection:
                assert connection.recv(4) == b"here"
            assert peer != network.server
        assert "rate 8Mbit" in rates(network, 1)
        network.round_begins(3)
        assert "rate 1Mbit" in rates(network, 1)
        assert "rate 8Mbit" in rates(network, 0)
        sleeper = subprocess.Popen([*network.inside(0), "sleep", "6000"])
    assert sleeper.wait(600) != 0  # whoever is left in a namespace ends with it
    assert left_behind(tag) == []


@possible
def test_nothing_is_left_when_it_fails_on_the_way(tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._call

    def fails_late(*command: str) -> None:
        if "10." in str(command) and ".3/24" in str(command):
            raise AsflError("no more addresses")
        real(*command)

    monkeypatch.setattr(module, "_call", fails_late)
    with pytest.raises(AsflError, match="no more addresses"), namespaces(3):
        pass
    assert left_behind(tag) == []


def test_where_it_cannot_be_made_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.field.emulate.namespaces.shutil.which", lambda tool: None)
    with pytest.raises(AsflError, match="can't be made: there is no ip and no tc here"), namespaces(2):
        pass
