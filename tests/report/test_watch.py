"""`asfl watch`: a page that follows its runs, for this computer only; and the page in a real browser."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import comparison_folder, run_folder

from asfl.cli.report import watch
from asfl.errors import AsflError
from asfl.records import RECORDS_FILE
from asfl.report.page import Report, page
from asfl.report.page.collect import signature
from asfl.report.page.serve import LivePage, open_server
from made_up import made_up_round


def _live(folder: Path, library: str = "/* library */") -> LivePage:
    return LivePage(lambda: signature([folder]), lambda version: page(Report.of([folder]), version=version), library)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "one", rounds=9)


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    with open_server(_live(folder), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def _get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
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
    with (folder / RECORDS_FILE).open("a") as file:
        file.write(made_up_round(4, 0.7).to_line())
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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_port_in_use_is_told(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(AsflError, match=f"port {number} is in use; give another one with --port"):
            watch([folder], port=number)


def test_ctrl_c_ends_it(folder: Path) -> None:
    command = [sys.executable, "-c", "from asfl.cli import main; main()", "watch", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("the report is at http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "stopped\n", "")


# ---------------------------------------------------------------------- in a browser
@pytest.fixture
def browser() -> Iterator[Any]:
    """Chromium, without a screen; tests that need it are skipped where it isn't installed."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not chromium or not driver:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
        "--disable-component-update", "--disable-quic", "--window-size=1200,900",
    ):  # fmt: skip
        options.add_argument(argument)
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium's sandbox refuses to run as root
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driven = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield driven
    finally:
        driven.quit()


def _problems(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def _requests(browser: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def _traces(browser: Any, chart: str) -> int:
    return int(browser.execute_script(f"return document.getElementById('{chart}').data.length"))


def _press(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).focus()", selector)
    browser.switch_to.active_element.send_keys(" ")  # by keyboard, as everybody can


def test_toggles_theme_and_silence(browser: Any, tmp_path: Path) -> None:
    whole = comparison_folder(tmp_path / "<img src=x onerror=alert(1)>", ("asfl", "fedavg", "sfl"))
    file = tmp_path / "page.html"
    long = run_folder(
        tmp_path / "a-run-whose-name-is-longer-than-a-phone-is-wide-if-nobody-breaks-it",
        overrides=["training.learning_rate=0.1", "training.batch_size=2", "radio.num_rbs=9"],
    )
    file.write_text(page(Report.of([whole, long])), "utf-8")
    browser.get(file.as_uri())
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    drawn = browser.execute_script("return [...document.querySelectorAll('.chart')].filter((c) => c.data).length")
    assert drawn == browser.execute_script("return document.querySelectorAll('.chart').length")

    before = _traces(browser, "chart-accuracy")
    _press(browser, '[data-legend] [data-name^="fedavg"]')
    assert _traces(browser, "chart-accuracy") == before - 3  # band, line, end
    pressed = "return document.querySelector('[data-legend] [data-name^=fedavg]').getAttribute('aria-pressed')"
    assert browser.execute_script(pressed) == "false"
    _press(browser, '[data-choice="axis"] [data-value="energy"]')
    axis = "return document.getElementById('chart-accuracy').layout.xaxis"
    assert browser.execute_script(axis)["title"]["text"] == "joules, all clients"
    _press(browser, '[data-choice="scale"] [data-value="log"]')
    assert browser.execute_script(axis)["type"] == "log"
    browser.execute_script(
        "const s = document.querySelector('[data-run]'); s.value = '2'; s.dispatchEvent(new Event('change'))"
    )
    shown = "return [...document.querySelectorAll('[data-of-run]')].findIndex((part) => !part.hidden)"
    assert browser.execute_script(shown) == 2
    theme = browser.execute_script("return document.documentElement.dataset.theme")
    _press(browser, ".theme")
    assert browser.execute_script("return document.documentElement.dataset.theme") != theme

    for width in (390, 1400):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert _problems(browser) == []
    assert {url.partition(":")[0] for url in _requests(browser)} <= {"file", "data", "blob", "chrome"}


def test_a_served_page_takes_over_news(browser: Any, folder: Path) -> None:
    from asfl.report.page import chart_library

    with open_server(_live(folder, chart_library()), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            browser.get(f"http://127.0.0.1:{server.server_port}/")
            _press(browser, '[data-choice="axis"] [data-value="rounds"]')
            with (folder / RECORDS_FILE).open("a") as file:
                file.write(made_up_round(4, 0.7).to_line())
            browser.execute_async_script("lookForNews().then(arguments[0])")
            last = "return document.getElementById('chart-accuracy').data[0].x.at(-1)"
            assert browser.execute_script(last) == 4  # the axis chosen before, with the round that came
            assert "4 of 9 rounds" in browser.page_source
            assert [problem for problem in _problems(browser) if "favicon" not in problem] == []
        finally:
            server.shutdown()
            thread.join()
