"""`asfl report`: one page that needs nothing from elsewhere, whatever the runs are called and however far they are."""

import base64
import json
import math
import re
import shlex
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import comparison_folder, run_folder

from asfl.cli.report import report
from asfl.config import load_config
from asfl.errors import AsflError
from asfl.records import RECORDS_FILE, RoundRecord
from asfl.report.page import Report, page
from asfl.report.page.bounds import Excess, check_gap, check_queues, why_not
from asfl.report.page.charts import MOST_POINTS, map_columns, one_run
from asfl.report.page.collect import FoundRun, collect, signature
from asfl.report.page.origins import nearest_preset, run_command
from asfl.run import MANIFEST_FILE
from conftest import Asfl, assert_refused
from made_up import made_up_round

EVIL = "<img src=x onerror=alert(1)>"


class _Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for key, value in attrs if key == "id" and value]


def _page(*folders: Path) -> str:
    return page(Report.of(folders), library="/* library */")


def _data(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def test_a_comparison_has_every_section(tmp_path: Path) -> None:
    text = _page(comparison_folder(tmp_path / "both"))
    found = _Parsed(text)
    sections = [attributes["id"] for tag, attributes in found.tags if tag == "section"]
    assert sections == [
        "accuracy", "targets", "tables", "run", "discrepancy", "losses", "layers", "theory", "origins",
    ]  # fmt: skip
    assert len(found.ids) == len(set(found.ids))
    assert "To reach" in text
    assert "ASFL saves" in text
    assert "asfl compare demo --schemes asfl,fedavg --seeds 2 --set training.rounds=3" in text
    assert "/somebody/private" not in text  # where data lay is nobody's business
    assert all("scope" in attributes for tag, attributes in found.tags if tag == "th")
    assert all(attributes.get("aria-label") for _, attributes in found.tags if attributes.get("role") == "img")


def test_the_numbers_of_the_curves(tmp_path: Path) -> None:
    data = _data(_page(comparison_folder(tmp_path / "both")))
    ours = data["accuracy"]["series"][0]
    assert (ours["name"], ours["seeds"], ours["open"]) == ("asfl", 2, False)
    # Two seeds with a top of 61 and 62 %; a point is the mean of up to 3 evaluations.
    ends = [100 * np.mean([top / 3, top / 2, top]) for top in (0.61, 0.62)]
    last = {key: values[-1] for key, values in ours["axes"]["rounds"].items()}
    assert last == {"x": 3, "mean": pytest.approx(np.mean(ends), rel=1e-3), "low": pytest.approx(ends[0], rel=1e-3),
                    "high": pytest.approx(ends[1], rel=1e-3)}  # fmt: skip
    assert ours["axes"]["delay"]["x"] == [2, 4, 6]
    assert [row["scheme"] for row in data["bars"][0]["targets"][0]["rows"]] == ["asfl", "fedavg"]
    rbs = data["runs"][0]["maps"]["rbs"]
    cells = np.frombuffer(base64.b64decode(rbs["cells"]), np.uint8).reshape(rbs["rows"], -1)
    assert (rbs["low"] + rbs["step"] * cells).tolist() == [[1, 1, 1], [2, 2, 2], [0, 0, 0]]
    assert data["losses"][0] == {"name": "asfl", "expected": 20, "realised": 0}


def test_nothing_is_fetched_and_nothing_breaks_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / EVIL)
    file = folder / MANIFEST_FILE
    data = json.loads(file.read_text())
    data["scheme"] = EVIL
    data["config"]["output"]["folder"] = "</script><script>alert(1)</script>"
    file.write_text(json.dumps(data))
    text = _page(folder)
    found = _Parsed(text)
    assert not [tag for tag, _ in found.tags if tag in ("img", "link", "iframe", "object", "embed")]
    assert sum(tag == "script" for tag, _ in found.tags) == 3
    for _, attributes in found.tags:
        assert not [key for key in attributes if key.startswith("on") or key == "src"]
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(attributes for tag, attributes in found.tags if attributes.get("http-equiv"))
    assert str(policy["content"]).startswith("default-src 'none'; script-src 'unsafe-inline';")
    assert EVIL not in text
    assert f"{EVIL} seed 1" == _data(text)["runs"][0]["label"]


def test_an_unfinished_run_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    one = run_folder(tmp_path / "one", accuracies=(0.1, 0.2), rounds=9)
    text = _page(one)
    assert "2 of 9 rounds" in text
    assert "No run is finished" in text
    assert _data(text)["accuracy"]["series"][0]["open"]
    whole = comparison_folder(tmp_path / "both")
    shutil.rmtree(whole / "fedavg-seed2")
    (whole / "asfl-seed2" / "model.safetensors").unlink()
    text = _page(whole)
    assert "1 run of 4 not begun yet" in text
    series = [(one["name"], one["seeds"], one["open"]) for one in _data(text)["accuracy"]["series"]]
    assert series == [("asfl", 1, False), ("asfl", 1, True), ("fedavg", 1, False)]
    table = text[text.index("Accuracy, %") :]
    assert re.search(r'<th scope="row">asfl</th>(<td>[^<]*</td>){3}<td>1</td>', table)  # one seed counts


def test_without_evaluation_or_rounds(tmp_path: Path) -> None:
    blind = run_folder(tmp_path / "blind", accuracies=(None, None))
    data = _data(_page(blind))
    assert data["accuracy"] is None
    assert data["bars"] == []
    assert len(data["discrepancy"]) == 1
    empty = run_folder(tmp_path / "empty", accuracies=(), rounds=5)
    (empty / RECORDS_FILE).unlink()
    text = _page(empty)
    assert "No round has been played yet" in text
    assert [attributes["id"] for tag, attributes in _Parsed(text).tags if tag == "section"] == ["layers", "origins"]


def test_a_dead_link_is_no_obstacle(tmp_path: Path) -> None:
    rounds = [made_up_round(1, 0.1), made_up_round(2, 0.2, delay_s=math.inf, energy_j=math.inf)]
    text = _page(run_folder(tmp_path / "dead", records=rounds))
    assert "dead link" in text
    assert _data(text)["accuracy"]["series"][0]["axes"]["delay"]["x"] == [2]


def test_long_and_many_runs_are_thinned(tmp_path: Path) -> None:
    run = collect([run_folder(tmp_path / "long", accuracies=[0.5] * 1000)]).runs[0]
    data = one_run(run, "long", "asfl", map_columns([run]))
    assert len(data["lines"]["x"]) <= MOST_POINTS
    assert data["lines"]["cut"][0] == 3
    assert data["every"] == 4
    many = map_columns([run] * 50)
    assert 20 <= many <= MOST_POINTS
    whole = comparison_folder(tmp_path / "many", seeds=range(1, 26))
    assert len(_page(whole).encode()) < 2_000_000  # and 5 MB of library


def test_runs_of_different_worlds_stay_apart(tmp_path: Path) -> None:
    slow = run_folder(tmp_path / "slow", overrides=["training.learning_rate=0.01"])
    fast = run_folder(tmp_path / "fast", overrides=["training.learning_rate=0.1"])
    other = run_folder(tmp_path / "other", "fedavg", overrides=["training.learning_rate=0.1"])
    twin = shutil.copytree(fast, tmp_path / "twin")
    made = Report.of([slow, fast, other, twin, fast])
    assert [world.title for world in made.collected.worlds] == ["learning_rate 0.01", "learning_rate 0.1"]
    assert [world.schemes for world in made.collected.worlds] == [["asfl"], ["asfl", "fedavg"]]
    assert made.collected.notes == ["twin is the same run as fast and left out."]
    text = page(made, library="")
    assert "asfl (learning_rate 0.01)" in text
    assert '<tr class="different"><th scope="row">training.learning_rate</th>' in text
    assert [title for title, _ in made.tables()] == ["learning_rate 0.01", "learning_rate 0.1"]
    elsewhere = run_folder(tmp_path / "elsewhere", overrides=["training.batch_size=2", "radio.num_rbs=9"])
    assert [world.title for world in collect([slow, elsewhere]).worlds] == ["slow", "elsewhere"]


def test_a_sweep_is_the_comparisons_in_it(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    comparison_folder(sweep / "training.batch_size=1", overrides=["training.batch_size=1"])
    comparison_folder(sweep / "training.batch_size=2", overrides=["training.batch_size=2"])
    (sweep / "sweep.json").write_text("{}")
    before = signature([sweep])
    assert [world.title for world in collect([sweep]).worlds] == ["batch_size 1", "batch_size 2"]
    (sweep / "training.batch_size=2" / "asfl-seed1" / RECORDS_FILE).write_text("")
    assert signature([sweep]) != before


def test_what_recipes_made_is_their_worlds(tmp_path: Path) -> None:
    comparison_folder(tmp_path / "worlds" / "demo")
    comparison_folder(tmp_path / "worlds" / "demo,num_rbs=4", overrides=["radio.num_rbs=4"])
    assert [world.title for world in collect([tmp_path]).worlds] == ["num_rbs 8", "num_rbs 4"]


# ---------------------------------------------------------------------- bounds
@pytest.fixture
def honest(tmp_path: Path) -> list[FoundRun]:
    """A run whose queues follow its costs by the printed rule, and another one to compare with."""

    def make(name: str, delays: list[float], discrepancy: float) -> Path:
        records, queue, energy_queue = [], 0.0, np.zeros(3)
        for number, delay in enumerate(delays, start=1):
            record = made_up_round(number, 0.5, delay_s=delay)
            queue = max(0.5 * queue + 0.5 * (delay / 1.6 - 1), 0.0)
            energy_queue = np.maximum(0.5 * energy_queue + 0.5 * (np.array(record.energy_j) - 1), 0.0)
            values = {"delay_queue": queue, "energy_queue": energy_queue.tolist(), "discrepancy": discrepancy}
            records.append(type(record)(**{**vars(record), **values}))
        scheme = "asfl" if name == "ours" else "epsl"
        return run_folder(tmp_path / name, scheme, records=records)

    return collect([make("ours", [2.0, 1.0, 4.0, 1.0], 2.0), make("theirs", [1.0, 1.0, 1.0, 1.0], 3.0)]).runs


def test_bounds_hold_and_empty_ones_are_called_empty(honest: list[FoundRun]) -> None:
    ours, theirs = honest
    assert why_not(ours) == ""
    checks = {(check.what, check.source): check for check in check_queues(ours)}
    excess = np.array([2.0, 1.0, 4.0, 1.0]) / 1.6 - 1
    queue = checks["largest delay queue", "Lemma 4"]
    assert queue.measured == pytest.approx(max(record.delay_queue for record in ours.records))
    assert queue.bound == pytest.approx((1 - 0.5**4) * excess.max())
    printed = checks["delay: mean over budget", "Theorem 2, (42)"]
    assert printed.measured == pytest.approx(excess.mean())
    assert printed.bound == pytest.approx((1 + 1 / (0.5 * 4)) * np.abs(excess).max())
    assert "says nothing" in printed.verdict
    recorded = checks["delay: mean over budget", "from the queues, (44)"]
    assert printed.measured <= recorded.bound < printed.bound
    assert all(check.verdict.startswith("holds") for check in checks.values())
    (gap,) = check_gap(ours, [theirs])
    assert gap.measured == pytest.approx(-1.0)
    assert gap.bound >= gap.measured


def test_borrowed_queues_are_not_judged(tmp_path: Path) -> None:
    run = collect([run_folder(tmp_path / "one")]).runs[0]  # made-up queues follow nothing
    assert not Excess.of(run).feeds_the_queues
    assert "borrows" in why_not(run)


# ---------------------------------------------------------------------- commands
def test_commands_make_the_same_run(tmp_path: Path) -> None:
    overrides = ['data.name="cifar10"', "model.norm=group", "decision.delay_budget_s=3.5", "data.augment=false"]
    run = collect([run_folder(tmp_path / "one", overrides=overrides, seed=7)]).runs[0]
    words = shlex.split(run_command(run))
    assert words[:2] == ["asfl", "run"]
    assert words[3:5] == ["--scheme", "asfl"]
    assert load_config(words[2], [word for word in words[5:] if word != "--set"]).config == run.manifest.config
    assert nearest_preset(load_config("paper-cifar10").config) == ("paper-cifar10", {})


# ---------------------------------------------------------------------- the command
def test_the_command_writes_page_figures_and_tables(asfl: Asfl, tmp_path: Path) -> None:
    comparison_folder(tmp_path / "both")
    result = asfl("report", "both", "--out", "new/page.html")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "new" / "page.html").stat().st_size > 1_000_000  # the library is inside
    written = {path.name for path in (tmp_path / "new" / "page-figures").iterdir()}
    names = ("accuracy-delay", "accuracy-energy", "accuracy-rounds", "time-to-accuracy", "cut-queue")
    assert written == {f"{name}.{kind}" for name in names for kind in ("pdf", "svg")} | {"tables.tex"}


def test_mistakes(asfl: Asfl, tmp_path: Path) -> None:
    assert_refused(asfl("report"), "DIR")
    assert_refused(asfl("report", "nowhere"), "nowhere is not a run folder: there is no such folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"folders": []}, "no folder given"),
        ({"folders": [Path("none")]}, "none is neither a run nor a comparison"),
        ({"folders": [Path("above")]}, "give their folders"),
        ({"folders": [Path("broken")]}, "not the record of a round"),
        ({"folders": [Path("begun")]}, "no run has begun yet"),
        ({"folders": [Path("above/run")], "out": Path("above")}, "--out above is a folder"),
        ({"folders": [Path("above/run")], "out": Path("file/page.html")}, "can't write file/page.html"),
        ({"folders": [Path("above/run")], "targets": "50"}, "--targets 50"),
    ],
)
def test_mistakes_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "above" / "run")
    (run_folder(tmp_path / "broken") / RECORDS_FILE).write_text("{}\n")
    (tmp_path / "none").mkdir()
    comparison_folder(tmp_path / "begun", seeds=())
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(AsflError) as caught:
        report(**arguments)
    assert words in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(AsflError, match=r"the report needs an optional dependency: pip install 'asfl\[report\]'"):
        report([run_folder(tmp_path / "one")], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


# ---------------------------------------------------------------------- runs over a real network
def measured_rounds() -> list[RoundRecord]:
    """The second client's link gets ten times slower, then the client is lost."""
    rounds = []
    for number, (rate, error) in enumerate([(20e6, 0.1), (2e6, 0.4), (2e6, None)], start=1):
        measured: dict[str, list[float | None]] = {
            "uplink_bps": [20e6, rate, 20e6],
            "uplink_bps_error": [0.1, error, 0.1],
        }
        faults: list[dict[str, str | int]] | None = None
        if error is None:
            faults = [{"client": 1, "round": number, "stage": "forward", "reason": "the connection broke"}]
        rounds.append(replace(made_up_round(number, 0.2 * number), measured=measured, faults=faults))
    return rounds


def test_measured_links_have_a_map_and_a_picture(asfl: Asfl, tmp_path: Path) -> None:
    plain, folder = run_folder(tmp_path / "plain"), run_folder(tmp_path / "field", records=measured_rounds())
    data = _data(_page(folder))
    uplink = data["runs"][0]["maps"]["uplink"]
    cells = np.frombuffer(base64.b64decode(uplink["cells"]), np.uint8).reshape(uplink["rows"], -1)
    np.testing.assert_allclose(uplink["low"] + cells * uplink["step"], [[20] * 3, [20, 2, 2], [20] * 3])
    assert "uplink" not in _data(_page(plain))["runs"][0]["maps"]
    assert 'value="uplink"' not in _page(plain)
    result = asfl("report", folder, "--out", tmp_path / "report.html")
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.rglob("links.*"))
