"""`asfl report --watch`: a page that follows its runs, for this computer only."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up import leave_run, made_up_round
from run_folders import live_page, run_folder, serving
from waiting import LONG_S

from asfl.cli.report import report
from asfl.config.errors import AsflError
from asfl.runs.http_server import HttpServer
from asfl.runs.manifest import read_manifest
from asfl.runs.records import RECORDS_FILE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "one", rounds=9)


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    with serving(live_page(folder, "/* library */")) as number:
        yield number


def _get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_S)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def _version(port: int) -> str:
    return str(json.loads(_get(port, "/version")[1])["version"])


def test_a_new_round_makes_a_new_page(folder: Path, port: int) -> None:
    status, text = _get(port, "/")
    assert status == 200
    assert "3 of 9 rounds" in text
    version = _version(port)
    assert f'data-version="{version}"' in text
    assert _get(port, "/")[1] == text
    leave_run(folder, read_manifest(folder), [made_up_round(4, 0.7)])
    assert _version(port) != version
    assert "4 of 9 rounds" in _get(port, "/")[1]
    (folder / RECORDS_FILE).write_text("{}\n")  # what can't be read leaves the page before it
    assert "4 of 9 rounds" in _get(port, "/")[1]


def test_only_the_report_is_served_and_only_here(folder: Path, port: int) -> None:
    assert _get(port, "/plotly.js") == (200, "/* library */")
    for path in ("/manifest.json", "/rounds.jsonl", "/../one/manifest.json", "/etc/passwd", "//etc/passwd", "/one"):
        assert _get(port, path)[0] == 404
    assert _get(port, "/", host="evil.example")[0] == 403
    assert _get(port, "/version", host=f"evil.example:{port}")[0] == 403
    assert _get(port, "/version", host=f"localhost:{port}")[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_S)
    connection.request("POST", "/")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_port_in_use_is_told(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(AsflError, match=f"port {number} is in use; give another one with --port"):
            report([folder], watch=True, port=number)


def test_ctrl_c_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(HttpServer, "serve_forever", lambda _: os.kill(os.getpid(), signal.SIGINT))
    report([folder], watch=True, port=0)
    shown, stopped = capsys.readouterr().out.splitlines()
    assert shown.startswith("the report is at http://127.0.0.1:")
    assert stopped == "stopped"
