"""The page in Chromium: its JavaScript runs. Skipped where there is no Chromium; `make browser` installs one."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import leave_run, made_up_round
from run_folders import comparison_folder, live_page, run_folder, serving
from waiting import wait_until

from asfl.results.page import Report, chart_library, page
from asfl.runs.manifest import read_manifest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and "ASFL_NEEDS_BROWSER" not in os.environ,
    reason="no chromium and chromedriver on this machine (make browser installs them)",
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Without a screen."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    assert CHROMIUM
    assert DRIVER
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
        "--disable-component-update", "--disable-quic", "--window-size=1200,900",
    ):  # fmt: skip
        options.add_argument(argument)
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium's sandbox refuses to run as root
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driven = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driven
    finally:
        driven.quit()


@pytest.fixture
def browser(chromium: Any) -> Any:
    """With a wide window and empty logs."""
    chromium.get("about:blank")
    _resize(chromium, 1200)
    _problems(chromium)
    _requests(chromium)
    return chromium


def _resize(browser: Any, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def _open(browser: Any, tmp_path: Path, *folders: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(Report.of(folders)), "utf-8")
    browser.get(file.as_uri())


def _problems(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def _requests(browser: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def _layout(browser: Any, chart: str) -> dict[str, Any]:
    found: dict[str, Any] = browser.execute_script("return document.getElementById(arguments[0]).layout", chart)
    return found


def _shown(browser: Any, chart: str) -> set[str]:
    """The series with visible traces."""
    script = """
        return document.getElementById(arguments[0])._fullData.filter((one) => one.visible === true)
            .map((one) => one.legendgroup)
    """
    return set(browser.execute_script(script, chart))


def _hide(browser: Any, name: str) -> None:
    """By a click on its name in the legend of accuracies; a second click shortly after would hide the others."""
    script = """
        const found = [...document.querySelectorAll("#chart-accuracy .traces")];
        const box = found.find((one) => one.textContent.startsWith(arguments[0])).querySelector(".legendtoggle");
        for (const kind of ["mousedown", "mouseup"]) box.dispatchEvent(new MouseEvent(kind, {bubbles: true}));
    """
    browser.execute_script(script, name)


def _press(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).focus()", selector)
    browser.switch_to.active_element.send_keys(" ")  # by keyboard, as all readers can


def _pressed(browser: Any, choice: str) -> str:
    script = "return document.querySelector(`[data-choice='${arguments[0]}'] [aria-pressed=true]`).dataset.value"
    return str(browser.execute_script(script, choice))


def test_choices_and_silence(browser: Any, tmp_path: Path) -> None:
    whole = comparison_folder(tmp_path / "<img src=x onerror=alert(1)>", ("asfl", "fedavg", "sfl"))
    long = run_folder(
        tmp_path / "a-run-whose-name-is-longer-than-a-phone-is-wide-if-it-is-not-broken",
        seed=9,
        rounds=3,
    )
    _open(browser, tmp_path, whole, long)
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    undrawn = "return [...document.querySelectorAll('.chart')].filter((one) => !one.data).map((one) => one.id)"
    assert browser.execute_script(undrawn) == []

    assert any(name.startswith("fedavg") for name in _shown(browser, "chart-accuracy"))
    _hide(browser, "fedavg")
    wait_until(lambda: not any(name.startswith("fedavg") for name in _shown(browser, "chart-accuracy")))
    assert any(name.startswith("sfl") for name in _shown(browser, "chart-accuracy"))

    _press(browser, '[data-choice="axis"] [data-value="energy"]')
    assert _layout(browser, "chart-accuracy")["xaxis"]["title"]["text"] == "energy so far, all clients, J"
    assert not any(name.startswith("fedavg") for name in _shown(browser, "chart-accuracy"))  # it stays hidden
    _press(browser, '[data-choice="map"] [data-value="power"]')
    assert "Transmit power" in _layout(browser, "chart-map")["title"]["text"]

    second = "const s = document.querySelector('[data-run]'); s.selectedIndex = 2; "
    browser.execute_script(second + "s.dispatchEvent(new Event('change', {bubbles: true}))")
    shown = "return [...document.querySelectorAll('[data-of-run]')].findIndex((part) => !part.hidden)"
    assert browser.execute_script(shown) == 2

    for width in (390, 1400):
        _resize(browser, width)
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert _problems(browser) == []
    assert {url.partition(":")[0] for url in _requests(browser)} <= {"file", "data", "blob", "chrome", "about"}


def test_a_pointer_over_a_curve_reads_its_number(browser: Any, tmp_path: Path) -> None:
    _open(browser, tmp_path, comparison_folder(tmp_path / "both", ("asfl", "fedavg")))
    _press(browser, '[data-choice="axis"] [data-value="rounds"]')
    where = browser.execute_script("""
        const place = document.getElementById("chart-accuracy");
        place.scrollIntoView({block: "center", behavior: "instant"});
        const {xaxis, yaxis} = place._fullLayout, box = place.getBoundingClientRect();
        const [curve] = place.calcdata.filter((points) => points[0].trace.name === "asfl");
        return [box.x + xaxis._offset + xaxis.c2p(curve[1].x), box.y + yaxis._offset + yaxis.c2p(curve[1].y)];
    """)
    for away in (40, 0):
        move = {"type": "mouseMoved", "x": where[0] + away, "y": where[1] + away}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", move)
    script = """
        const done = arguments[0], read = () => document.querySelector("#chart-accuracy .hoverlayer").textContent;
        const wait = () => (read() ? done(read()) : requestAnimationFrame(wait));
        wait();
    """
    text = browser.execute_async_script(script)
    assert "25.6 % (25.4 – 25.8) after 2 rounds" in text  # of 61 and 62 %: a third, then a half
    assert _problems(browser) == []


def test_a_served_page_takes_over_news(browser: Any, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one", rounds=9)
    with serving(live_page(folder, chart_library())) as port:
        browser.get(f"http://127.0.0.1:{port}/")
        assert browser.execute_script("return document.querySelector('.live').hidden") is False
        _press(browser, '[data-choice="axis"] [data-value="rounds"]')
        leave_run(folder, read_manifest(folder), [made_up_round(4, 0.7)])
        browser.execute_async_script("lookForNews().then(arguments[0])")
        last = "return document.getElementById('chart-accuracy').calcdata[0].at(-1).x"
        assert browser.execute_script(last) == 4  # the axis chosen before, with the round that came
        assert _pressed(browser, "axis") == "rounds"
        assert "4 of 9 rounds" in browser.page_source
        assert [problem for problem in _problems(browser) if "favicon" not in problem] == []
    browser.execute_async_script("lookForNews().then(arguments[0])")
    assert browser.execute_script("return document.querySelector('.live').textContent") == "not reachable"


def test_tables_keep_their_first_column_on_a_phone(browser: Any, tmp_path: Path) -> None:
    _open(browser, tmp_path, comparison_folder(tmp_path / "compared"))
    _resize(browser, 360)
    table = "[...document.querySelectorAll('table')].find((one) => one.tBodies[0].rows.length > 1)"
    left = f"{table}.tBodies[0].rows[0].cells[0].getBoundingClientRect().left"
    before = browser.execute_script(f"return {left}")
    browser.execute_script(f"{table}.closest('.scroll').scrollLeft = 200")
    assert browser.execute_script(f"return {table}.closest('.scroll').scrollLeft") > 0
    assert browser.execute_script(f"return {left}") == before
    assert not _problems(browser)
