"""`asfl fleet --network`: who gets a namespace of its own, and what other processes are told."""

from pathlib import Path

import pytest

from asfl.cli.fleet import NetworkKind, _for_other_processes, _shaping
from asfl.config import Config, load_config
from asfl.config.errors import AsflError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "slow.toml"
    file.write_text("[[link]]\nclient = 1\nuplink_bps = 1000\n")
    return load_config("demo", ["scenario.clients=2", f"field.shaping={file}"]).config


def make_possible(monkeypatch: pytest.MonkeyPatch, *, delays: bool = True, reason: str | None = None) -> None:
    monkeypatch.setattr("asfl.field.emulate.namespaces.why_not", lambda: reason)
    monkeypatch.setattr("asfl.field.emulate.namespaces.can_delay", lambda: delays)


def with_latency(config: Config) -> Config:
    Path(config.field.shaping).write_text("[[link]]\nlatency_s = 0.01\n")
    return config


def test_a_profile_is_kept_by_the_network_where_that_is_possible(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_possible(monkeypatch)
    in_namespaces, profile = _shaping(config, NetworkKind.AUTO, simulated=False)
    assert in_namespaces
    assert [link.uplink_bps for link in profile] == [1000.0]
    assert _shaping(config, NetworkKind.LOOPBACK, simulated=False)[0] is False
    assert _shaping(config, NetworkKind.AUTO, simulated=True)[0] is False
    assert _shaping(load_config("demo").config, NetworkKind.AUTO, simulated=False) == (False, ())
    assert _shaping(load_config("demo").config, NetworkKind.NAMESPACES, simulated=False) == (True, ())


def test_else_clients_pace_themselves(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    make_possible(monkeypatch, reason="it needs root")
    assert _shaping(config, NetworkKind.AUTO, simulated=False)[0] is False
    make_possible(monkeypatch, delays=False)
    assert _shaping(config, NetworkKind.AUTO, simulated=False)[0] is True
    assert _shaping(with_latency(config), NetworkKind.AUTO, simulated=False)[0] is False


def test_what_cannot_be_is_said(config: Config) -> None:
    with pytest.raises(AsflError, match="--network namespaces: not with --simulation"):
        _shaping(config, NetworkKind.NAMESPACES, simulated=True)
    Path(config.field.shaping).unlink()
    with pytest.raises(AsflError, match=r"field\.shaping: .*: no such file"):
        _shaping(config, NetworkKind.AUTO, simulated=False)


def test_other_processes_find_files_wherever_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    wished = ["field.shaping=slow.toml", "scenario.channel.kind=trace", "scenario.channel.trace_file=a b.csv"]
    given = load_config("demo", wished).config
    told = load_config("demo", [*wished, *_for_other_processes(given, in_namespaces=False)]).config
    assert told.field.shaping == str(tmp_path / "slow.toml")
    assert told.scenario.channel.trace_file == str(tmp_path / "a b.csv")
    told = load_config("demo", [*wished, *_for_other_processes(given, in_namespaces=True)]).config
    assert told.field.shaping == ""  # the network keeps to it
