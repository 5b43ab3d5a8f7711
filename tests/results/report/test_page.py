"""`asfl report`: one page that needs nothing from elsewhere, whatever the runs are called and however far they are."""

import base64
import itertools
import json
import math
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import leave_run, made_up_round
from run_folders import comparison_folder, run_folder

from asfl.cli.report import report
from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.results.charts.chart import MOST_POINTS, Line
from asfl.results.charts.runs import client_map, map_columns, panels
from asfl.results.curves import RunFolder
from asfl.results.page import MOST_ROUNDS, Report, page
from asfl.results.page.bounds import check_gap, check_queues, why_not
from asfl.results.page.collect import collect, signature
from asfl.results.summary import Excess
from asfl.runs.files import sealed_json
from asfl.runs.manifest import MANIFEST_FILE, read_manifest
from asfl.runs.play import play_all
from asfl.runs.records import RECORDS_FILE, Fault, RoundRecord, read_records
from conftest import Asfl, assert_refused

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


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a comparison of two schemes."""
    return _page(comparison_folder(tmp_path_factory.mktemp("compared") / "both"))


def _data(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def _charts(text: str) -> dict[str, dict[str, Any]]:
    """By place and choice."""
    charts: dict[str, dict[str, Any]] = _data(text)["charts"]
    return charts


def _values(packed: Any) -> Any:
    """A typed array as a list."""
    if isinstance(packed, list):
        return packed
    array = np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])
    return array.reshape([int(part) for part in str(packed.get("shape", len(array))).split(",")]).tolist()


def _curves(text: str, axis: str = "delay") -> list[dict[str, Any]]:
    """The lines of the chart of accuracies, without bands and ends."""
    traces = _charts(text)["chart-accuracy"][axis]["data"]
    return [trace for trace in traces if "hovertemplate" in trace]


def test_a_comparison_has_every_section(both: str) -> None:
    text, found = both, _Parsed(both)
    sections = [attributes["id"] for tag, attributes in found.tags if tag == "section"]
    assert sections == [
        "accuracy", "targets", "tables", "run", "discrepancy", "cuts", "theory", "origins",
    ]  # fmt: skip
    assert len(found.ids) == len(set(found.ids))
    assert "To reach" in text
    assert "ASFL saves" in text
    assert "/home/private" not in text  # where data lay is private
    assert all("scope" in attributes for tag, attributes in found.tags if tag == "th")
    assert all(attributes.get("aria-label") for _, attributes in found.tags if attributes.get("role") == "img")


def test_the_numbers_of_the_curves(both: str) -> None:
    charts = _charts(both)
    (ours,) = (curve for curve in _curves(both, "rounds") if curve["name"] == "asfl")
    # Two seeds with a top of 61 and 62 %; a point is the mean of up to 3 evaluations.
    ends = [100 * np.mean([top / 3, top / 2, top]) for top in (0.61, 0.62)]
    assert (_values(ours["x"])[-1], _values(ours["y"])[-1]) == (3, pytest.approx(np.mean(ends)))
    assert _values(ours["customdata"])[-1] == pytest.approx(ends)
    assert _values(_curves(both)[-1]["x"]) == [2, 4, 6]
    bars = charts["chart-delay"][_data(both)["chosen"]["target"]]
    assert bars["layout"]["yaxis"]["ticktext"] == ["asfl", "fedavg"]  # the fastest on top
    assert bars["layout"]["yaxis"]["range"] == [1.6, -0.6]
    rbs = charts["chart-map"]["asfl seed 1|rbs"]["data"][0]
    assert _values(rbs["z"]) == [[1, 1, 1], [2, 2, 2], [0, 0, 0]]
    assert (rbs["x0"], rbs["dx"], rbs["zmin"], rbs["zmax"]) == (1, 1, 0, 2)


def test_every_choice_has_a_chart(both: str) -> None:
    """What can be pressed in the page, in any combination, is drawn."""
    charts, tags = _charts(both), _Parsed(both).tags
    options = {"run": [str(a["value"]) for tag, a in tags if tag == "option"]}
    group = ""
    for _, attributes in tags:
        group = str(attributes.get("data-choice") or group)
        if "data-value" in attributes:
            options.setdefault(group, []).append(str(attributes["data-value"]))
    places = {str(a["id"]): str(a["data-by"]).split() for _, a in tags if "data-by" in a}
    assert places.keys() == charts.keys()
    for place, by in places.items():
        for chosen in itertools.product(*(options[key] for key in by)):
            assert "|".join(chosen) in charts[place]


def test_nothing_is_fetched_and_nothing_breaks_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / EVIL)
    file = folder / MANIFEST_FILE
    data, records = json.loads(file.read_text()), read_records(folder)
    data["scheme"] = EVIL
    data["config"]["field"]["shaping"] = "</script><script>alert(1)</script>"
    del data["seal"]
    file.write_bytes(sealed_json(data))
    (folder / RECORDS_FILE).unlink()
    leave_run(folder, read_manifest(folder), records, finished=True)
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
    assert f"{EVIL} seed 1" in _charts(text)["chart-cut"]
    names = [trace["name"] for trace in _curves(text)]
    assert names == ["&lt;img src=x onerror=alert(1)&gt;"]  # plotly knows some markup


def test_an_unfinished_run_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    one = run_folder(tmp_path / "one", accuracies=(0.1, 0.2), rounds=9)
    text = _page(one)
    assert "2 of 9 rounds" in text
    assert "No run is finished" in text
    assert [curve["name"] for curve in _curves(text)] == ["asfl seed 1, 2 of 9 rounds"]
    whole = comparison_folder(tmp_path / "both")
    shutil.rmtree(whole / "fedavg-seed2")
    (whole / "asfl-seed2" / "model.safetensors").unlink()
    text = _page(whole)
    assert "1 run of 4 not begun yet" in text
    names = sorted(curve["name"] for curve in _curves(text))
    assert names == ["asfl", "asfl seed 2, 3 of 3 rounds", "fedavg"]
    table = text[text.index("Accuracy, %") :]
    assert re.search(r'<th scope="row">asfl</th>(<td>[^<]*</td>){6}<td>1</td>', table)  # one seed counts


def test_without_evaluation_or_rounds(tmp_path: Path) -> None:
    blind = run_folder(tmp_path / "blind", accuracies=(None, None))
    charts = _charts(_page(blind))
    assert not {"chart-accuracy", "chart-delay"} & charts.keys()
    assert len(charts["chart-discrepancy"][""]["data"]) == 1
    empty = run_folder(tmp_path / "empty", accuracies=(), rounds=5)
    (empty / RECORDS_FILE).unlink()
    text = _page(empty)
    assert "No round has been played yet" in text
    assert [attributes["id"] for tag, attributes in _Parsed(text).tags if tag == "section"] == ["origins"]
    rounds = [made_up_round(1, 0.1), made_up_round(2, 0.2, delay_s=math.inf, energy_j=math.inf)]
    text = _page(run_folder(tmp_path / "dead", records=rounds))
    assert "dead link" in text
    assert _values(_curves(text)[0]["x"]) == [2]


def test_long_and_many_runs_are_thinned(tmp_path: Path) -> None:
    run = collect([run_folder(tmp_path / "long", accuracies=[0.5] * 1000)]).runs[0]
    (cut,) = panels(run, "#000000", (1.0, 1.0))["cut"].series
    assert isinstance(cut, Line)
    assert np.asarray(cut.y).tolist() == [3] * 250  # means of 4 rounds
    assert np.asarray(cut.x)[:2].tolist() == [2.5, 6.5]
    many = map_columns([run] * 50)
    assert 20 <= many <= MOST_POINTS
    assert "means of" in client_map(run, "power", many).title
    whole = comparison_folder(tmp_path / "many", seeds=range(1, 13))
    assert len(_page(whole).encode()) < 1_000_000  # and 5 MB of library


def test_runs_of_different_worlds_are_refused_and_twins_count_once(tmp_path: Path) -> None:
    slow = run_folder(tmp_path / "slow", overrides=["training.learning_rate=0.01"])
    fast = run_folder(tmp_path / "fast", overrides=["training.learning_rate=0.1"])
    other = run_folder(tmp_path / "other", "fedavg", seed=2, overrides=["training.learning_rate=0.1"])
    twin = shutil.copytree(fast, tmp_path / "twin")
    collected = collect([fast, other, twin, fast])
    assert collected.schemes == ["asfl", "fedavg"]
    assert collected.notes == ["twin is the same run as fast and left out."]
    with pytest.raises(AsflError, match=r"other is in another world than .*slow \(training.learning_rate = 0.01 there"):
        collect([slow, other])


def test_schemes_with_settings_of_their_own_share_a_world(tmp_path: Path) -> None:
    own = ["schemes.fedavg.learning_rate=0.03", "schemes.fedavg.local_steps=2"]
    folder = comparison_folder(tmp_path / "tuned", overrides=own)
    for seed in (1, 2):  # as a run leaves them: with what was effective
        for scheme in ("asfl", "fedavg"):
            manifest = read_manifest(folder / f"{scheme}-seed{seed}")
            effective = replace(manifest, config=manifest.config.for_scheme(scheme))
            records = read_records(folder / f"{scheme}-seed{seed}")
            shutil.rmtree(folder / f"{scheme}-seed{seed}")
            leave_run(folder / f"{scheme}-seed{seed}", effective, records, finished=True)
    assert collect([folder]).schemes == ["asfl", "fedavg"]
    text = page(Report.of([folder]), library="")
    assert "fedavg: learning_rate 0.03, local_steps 2" in text
    assert '<tr class="different"><th scope="row">training.learning_rate</th>' in text


def test_a_folder_stands_for_what_is_below_it(tmp_path: Path) -> None:
    comparison_folder(tmp_path / "deep" / "pair")
    run_folder(tmp_path / "alone", "sfl", seed=7, rounds=3)
    before = signature([tmp_path])
    names = {run.folder.name for run in collect([tmp_path]).runs}
    assert names == {"asfl-seed1", "asfl-seed2", "fedavg-seed1", "fedavg-seed2", "alone"}
    (tmp_path / "deep" / "pair" / "asfl-seed1" / RECORDS_FILE).write_text("")
    assert signature([tmp_path]) != before


# ---------------------------------------------------------------------- bounds
@pytest.fixture
def honest(tmp_path: Path) -> Sequence[RunFolder]:
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
        return run_folder(tmp_path / name, scheme, records=records, overrides=["decision.queue_rule=printed"])

    return collect([make("ours", [2.0, 1.0, 4.0, 1.0], 2.0), make("theirs", [1.0, 1.0, 1.0, 1.0], 3.0)]).runs


def test_bounds_hold_and_empty_ones_are_called_empty(honest: list[RunFolder], tmp_path: Path) -> None:
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
    run = collect([run_folder(tmp_path / "one")]).runs[0]  # made-up queues follow nothing
    assert not Excess.of(run).feeds_the_queues
    assert "borrows" in why_not(run)


# ---------------------------------------------------------------------- the command
def test_the_command_writes_page_figures_and_tables(asfl: Asfl, tmp_path: Path) -> None:
    comparison_folder(tmp_path / "both")
    result = asfl("report", "both", "--out", "new/page.html")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "new" / "page.html").stat().st_size > 1_000_000  # the library is inside
    written = {path.name for path in (tmp_path / "new" / "page-figures").iterdir()}
    names = ("accuracy-delay", "accuracy-energy", "accuracy-rounds", "time-to-accuracy", "cut-queue")
    assert written == {f"{name}.{kind}" for name in names for kind in ("pdf", "svg")} | {"tables.tex"}


def test_a_page_goes_into_its_folder_and_over_nothing_but_a_report(asfl: Asfl, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_folder(tmp_path / name)
    for folders, made in ((["one"], "one/report.html"), (["one"], "one/report.html"), (["one", "two"], "report.html")):
        assert asfl("report", *folders, "--no-figures").stdout == f"page: {made}\n"
    for mine in ("two/report.html", "mine.html"):
        (tmp_path / mine).write_text("<title>mine</title>")
        out = ["--out", mine] if mine == "mine.html" else []
        assert_refused(asfl("report", "two", *out), f"{mine} exists and isn't a report of asfl; give --out")
        assert (tmp_path / mine).read_text() == "<title>mine</title>"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"folders": []}, "no folder given"),
        ({"folders": [Path("nowhere")]}, "nowhere is not a run folder: there is no such folder"),
        ({"folders": [Path("above/run")], "out": Path("report.pdf")}, "--out report.pdf"),
        ({"folders": [Path("none")]}, "none is neither a run nor a comparison"),
        ({"folders": [Path("broken")]}, "not the record of a round with its checksum"),
        ({"folders": [Path("begun")]}, "no run has begun yet"),
        ({"folders": [Path("above/run")], "out": Path("above")}, "--out above is a folder"),
        ({"folders": [Path("above/run")], "out": Path("file/page.html")}, "can't write file/page.html"),
        ({"folders": [Path("above/run")], "targets": ["50"]}, "--targets 50"),
        ({"folders": [Path("above/run")]}, "the report needs an optional dependency: pip install 'asfl[report]'"),
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
    if "optional" in words:
        monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(AsflError) as caught:
        report(**arguments)
    assert words in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


# ---------------------------------------------------------------------- runs over a real network
def measured_rounds() -> list[RoundRecord]:
    """The second client's link gets ten times slower, then the client is lost."""
    rounds = []
    for number, (rate, error) in enumerate([(20e6, 0.1), (2e6, 0.4), (2e6, None)], start=1):
        measured: dict[str, list[float | None]] = {
            "uplink_bps": [20e6, rate, 20e6],
            "uplink_bps_error": [0.1, error, 0.1],
        }
        faults: list[Fault] | None = None
        if error is None:
            faults = [{"client": 1, "round": number, "stage": "forward", "reason": "the connection broke"}]
        rounds.append(replace(made_up_round(number, 0.2 * number), measured=measured, faults=faults))
    return rounds


def test_measured_links_have_a_map_and_a_picture(asfl: Asfl, tmp_path: Path) -> None:
    plain, folder = run_folder(tmp_path / "plain"), run_folder(tmp_path / "field", records=measured_rounds())
    charts = _charts(_page(folder))["chart-map"]
    np.testing.assert_allclose(_values(charts["asfl seed 1|uplink"]["data"][0]["z"]), [[20] * 3, [20, 2, 2], [20] * 3])
    assert "asfl seed 1|uplink" not in _charts(_page(plain))["chart-map"]
    assert 'value="uplink"' not in _page(plain)
    result = asfl("report", folder, "--out", tmp_path / "report.html")
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.rglob("links.*"))


def test_epsilon_is_on_the_page(tmp_path: Path) -> None:
    noisy = ["model.norm=none", "privacy.activation_noise=2", "privacy.update_noise=2"]
    for seed, end in ((1, 7.5), (2, 8.25)):
        spent = [replace(made_up_round(n, 0.5), epsilon=end * n / 3) for n in (1, 2, 3)]
        run_folder(tmp_path / f"noisy{seed}", seed=seed, records=spent, overrides=noisy)
    text = _page(*sorted(tmp_path.iterdir()))
    assert "ε = 7.5 – 8.25 at δ = 1e-05, for one image of one client" in text
    drawn = [_values(figure["data"][0]["y"]) for figure in _charts(text)["chart-epsilon"].values()]
    np.testing.assert_allclose(drawn, [[2.5, 5.0, 7.5], [2.75, 5.5, 8.25]])
    assert "chart-epsilon" not in _charts(_page(run_folder(tmp_path / "open")))
    half = _page(run_folder(tmp_path / "half", overrides=noisy[:2]))
    assert "no guarantee: both activations and updates need noise" in half


def test_rounds_of_a_long_run_have_timelines(tmp_path: Path) -> None:
    """The first, the last and some between; none where costs were measured."""
    config = load_config("demo", ["training.rounds=70", "decision.timing=overlap"]).config
    (played,) = play_all(config, ["sfl-best"], [1], 70)
    overlap, rounds_of = ["decision.timing=overlap"], played.rounds
    text = _page(run_folder(tmp_path / "long", "sfl-best", records=rounds_of, overrides=overlap))
    rounds = _data(text)["rounds"]["sfl-best seed 1"]
    assert (rounds[0], rounds[-1], len(rounds)) == (1, 70, MOST_ROUNDS)
    drawn = _charts(text)["chart-timeline"]
    assert drawn.keys() == {f"sfl-best seed 1|{number}" for number in rounds}
    path = drawn["sfl-best seed 1|70"]["data"][-1]
    np.testing.assert_allclose(max(_values(path["x"])), played.rounds[-1].delay_s, rtol=1e-6)
    measured = run_folder(tmp_path / "field", "sfl-best", records=rounds_of, overrides=["field.costs=measured"])
    assert 'id="round"' in text
    assert 'id="round"' not in _page(measured)


def test_measured_costs_are_not_called_simulated(tmp_path: Path) -> None:
    measured = run_folder(tmp_path / "field", records=measured_rounds(), overrides=["field.costs=measured"])
    text = _page(measured)
    assert "simulated" not in text
    assert "Seconds and joules are measured." in text
    assert _charts(text)["chart-accuracy"]["delay"]["layout"]["xaxis"]["title"]["text"] == "delay so far, s (measured)"
    assert "Seconds and joules are simulated." in _page(run_folder(tmp_path / "plain"))


def test_runs_that_go_on_are_compared_where_all_have_been(tmp_path: Path) -> None:
    """No run is ahead only because it began sooner."""
    first = run_folder(tmp_path / "asfl", "asfl", (0.1, 0.3, 0.6), rounds=9)
    second = run_folder(tmp_path / "fedavg", "fedavg", (0.1,), rounds=9)
    assert {len(run.records) for run in collect([first, second]).counted} == {1}
    assert "after round 1, which all have played" in page(Report.of([first, second]))
