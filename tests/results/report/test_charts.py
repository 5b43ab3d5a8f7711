"""What charts show; SNR and positions against a trace that is written here and read again in plain NumPy."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import made_up_round, made_up_run
from numpy.typing import NDArray
from run_folders import run_folder

from asfl.config import load_config
from asfl.costs.world import World
from asfl.results.charts.chart import Axis, Bars, Chart, Heat, Level, Line, Look, Note, Panel, Points
from asfl.results.charts.files import draw
from asfl.results.charts.one_run import block_shares, blocks, client_map, maps_of, walk
from asfl.results.charts.plotly import dark_twins, figure
from asfl.results.charts.world import MOMENTS, gains, snr_history
from asfl.results.curves import Run, read_run
from conftest import Asfl

Floats = NDArray[np.float64]
USERS, BLOCKS, MOMENTS_S, PERIOD_S = 3, 4, 50, 0.5
RADIO = load_config("demo").config.radio


def gains_db() -> Floats:
    """[users, time, blocks]"""
    return np.random.default_rng(1).uniform(-110, -90, (USERS, MOMENTS_S, BLOCKS))


def ways_m() -> Floats:
    """[users, time, 2]"""
    return np.random.default_rng(2).uniform(-80, 80, (USERS, MOMENTS_S, 2))


def snr_db(gain_db: Floats) -> Floats:
    """Of one block at full power: P^max g / (B N₀)."""
    noise_w = RADIO.rb_bandwidth_hz * RADIO.noise_psd_w_per_hz
    return np.asarray(gain_db + 10 * math.log10(RADIO.max_tx_power_w / noise_w))


def mean_db(gain_db: Floats) -> Floats:
    """Of all blocks."""
    return np.asarray(10 * np.log10((10 ** (gain_db / 10)).mean(axis=-1)))


def settings(file: Path, positions: bool = True) -> list[str]:
    around = {
        "position_m": ways_m(), "server_m": np.array([0.0, 0.0, 10.0]),
        "map_height_m": np.zeros((8, 8)), "map_extent_m": np.array([-80.0, 80.0, -80.0, 80.0]),
    } if positions else {}  # fmt: skip
    centres = (np.arange(BLOCKS) - (BLOCKS - 1) / 2) * RADIO.rb_bandwidth_hz
    np.savez(file, gain_db=gains_db(), dt_s=np.array(PERIOD_S), block_hz=centres, **around)  # type: ignore[arg-type]
    channel = {"kind": "trace", "trace_file": str(file), "trace_samples_per_round": "clock", "blocks": "selective"}
    return [
        f"scenario.clients={USERS}", f"radio.num_rbs={BLOCKS}",
        *(f"scenario.channel.{name}={value}" for name, value in channel.items()),
    ]  # fmt: skip


def run_on(overrides: list[str], rounds: int = 5) -> Run:
    """A round takes 2 s, so the next begins 4 samples later."""
    return replace(made_up_run("asfl", [0.5] * rounds), config=load_config("demo", overrides).config)


def test_every_round_has_the_snr_of_the_trace_when_it_begins(tmp_path: Path) -> None:
    heard = snr_history(run_on(settings(tmp_path / "walk.npz")))
    assert heard is not None
    begins = np.arange(5) * 4
    np.testing.assert_allclose(heard.snr_db, snr_db(mean_db(gains_db()))[:, begins].T)
    assert heard.position_m is not None
    assert (heard.position_m == ways_m()[:, begins].transpose(1, 0, 2)).all()
    assert heard.surroundings is not None


@pytest.mark.parametrize(
    "why",
    ["scenario.channel.kind=rayleigh", "scenario.channel.trace_samples_per_round=1", "field.costs=measured", "gone",
     "new"],
)  # fmt: skip
def test_there_is_no_snr_history_without_gains_by_the_clock(why: str, tmp_path: Path) -> None:
    overrides = settings(tmp_path / "walk.npz")
    run = run_on([*overrides, why] if "=" in why else overrides, 0 if why == "new" else 3)
    if why == "gone":
        (tmp_path / "walk.npz").unlink()
    assert snr_history(run) is None


def test_the_walk_shows_where_clients_were_and_the_cut(tmp_path: Path) -> None:
    run = run_on(settings(tmp_path / "walk.npz"))
    chart = walk(run)
    assert chart is not None
    where, cut = chart.panels
    dots = next(one for one in where.series if isinstance(one, Points) and one.values is not None)
    begins = np.arange(5) * 4
    assert np.asarray(dots.x).tolist() == ways_m()[:, begins, 0].ravel().tolist()
    np.testing.assert_allclose(np.asarray(dots.values), snr_db(mean_db(gains_db()))[:, begins].ravel())
    assert np.asarray(cut.series[0].y).tolist() == [3] * 5  # type: ignore[union-attr]
    assert walk(run_on(settings(tmp_path / "walk.npz", positions=False))) is None


def test_gains_over_time_and_blocks(tmp_path: Path) -> None:
    world = World.of(load_config("demo", settings(tmp_path / "walk.npz")).config)
    time, of_blocks = gains(world)
    seconds = (np.arange(MOMENTS) / PERIOD_S).astype(int) % MOMENTS_S
    np.testing.assert_allclose(_heat(time), snr_db(mean_db(gains_db()))[:, seconds])
    np.testing.assert_allclose(_heat(of_blocks), snr_db(gains_db()[:, 0]))
    assert (time.x.label, of_blocks.x.label) == ("s", "block")


def _heat(panel: Panel) -> NDArray[np.float64]:
    (heat,) = panel.series
    assert isinstance(heat, Heat)
    return np.asarray(heat.values, dtype=np.float64)


def test_the_report_has_the_map_and_the_walk(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.cli.report.write_figures", lambda *_: [])  # all the others
    run_folder(tmp_path / "run", overrides=settings(tmp_path / "walk.npz"))
    found = read_run(tmp_path / "run")
    assert "snr" in maps_of(found)
    expected = snr_db(mean_db(gains_db()))[:, np.arange(3) * 4]
    np.testing.assert_allclose(_heat(client_map(found, "snr", columns=100)), expected)
    made = asfl("report", "run")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "run" / "report-figures" / "walk.pdf").read_bytes().startswith(b"%PDF")


# ---------------------------------------------------------------------- what draws charts
EVERYTHING = Panel(
    "All <b>kinds</b>",
    [
        Heat(values=[[1.0, math.nan], [3.0, 4.0]], label="J", low=0, high=4),
        Line(x=[1, 2, 3], y=[1.0, 4.0, 2.0], name="a line", group="mine", low=[0, 3, 1], high=[2, 5, 3], step=True),
        Points(x=[1, 2], y=[2, 3], look=[Look("#111111")] * 2, x_ends=([0, 1], [2, 3]), hover=["a", "b"]),
        Points(x=[1], y=[2], values=[0.5], value_label="dB", value_range=(0, 1)),
        Bars(places=[0, 1], lengths=[2, 1], base=[1, 0], look=Look("#1f2f6b"), horizontal=True),
        Level(2.5, "budget"),
        Note("not reached", None, 1, italic=True),
    ],
    Axis("delay, s", low=0, high=4),
    Axis(ticks={0: "one", 1: "other"}, reversed=True),
    choice="x",
)  # fmt: skip


def test_a_page_shows_every_kind_of_series() -> None:
    made = figure(EVERYTHING)
    band, heat, line, points, coloured, bars = made["data"]
    assert (band["fill"], heat["type"], line["line"]["shape"]) == ("toself", "heatmap", "hvh")
    assert bars["orientation"] == "h"
    assert line["name"] == "a line"
    assert (heat["x0"], heat["dx"], heat["zmax"]) == (0, 1, 4)
    assert points["hovertext"] == ["a", "b"]
    assert points["error_x"].keys() >= {"array", "arrayminus"}
    assert coloured["marker"]["colorbar"]["title"]["text"] == "dB"
    layout = made["layout"]
    assert layout["title"]["text"] == "<b>All &lt;b&gt;kinds&lt;/b&gt;</b>"
    assert (layout["xaxis"]["range"], layout["yaxis"]["autorange"]) == ([0, 4], "reversed")
    assert (layout["shapes"][0]["y0"], layout["annotations"][0]["text"]) == (2.5, "<i>not reached</i>")
    assert (made["scale"], made["when"].keys()) == ("linear", {"log", "linear"})
    twins = dark_twins({"": made})
    assert twins["#1f2f6b"] != "#1f2f6b"


def test_a_file_shows_every_kind_of_series() -> None:
    drawn = draw(Chart([[EVERYTHING], [EVERYTHING, EVERYTHING]], title="three", legend="bottom"))
    axes = [one for one in drawn.axes if one.get_title(loc="left")]
    assert len(axes) == 3
    assert [len(axes[0].images), len(axes[0].patches), len(axes[0].texts)] == [1, 2, 1]
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a line", "budget"]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1500.0, 45_000.0, {"2,000", "6,000", "10,000", "40,000"}),  # some between powers of ten, where these are few
        (0.5, 60_000.0, {"1", "10", "1,000", "10,000"}),
    ],
)
def test_a_logarithmic_axis_has_plain_numbers(low: float, high: float, labels: set[str]) -> None:
    axes = draw(Chart([[Panel("", [Line(x=[low, high], y=[1, 2])], Axis(scale="log", low=low, high=high))]])).axes[0]
    shown = {text.get_text() for which in ("major", "minor") for text in axes.get_xticklabels(which=which)}
    assert labels <= shown
    assert not any("$" in text or "e" in text for text in shown)


def test_shares_of_blocks() -> None:
    counts = [[1, 2, 0], [1, 0, 0], [0, 2, 1], [1, 2, 0]]
    records = [replace(made_up_round(n), rb_count=[*map(float, row)]) for n, row in enumerate(counts, start=1)]
    shares = block_shares(records)
    assert {word: share.tolist() for word, share in shares.items()} == {
        "none": [0.25, 0.25, 0.75],
        "1": [0.75, 0.0, 0.25],
        "2": [0.0, 0.75, 0.0],
    }
    bars: Any = blocks(Run("asfl", 1, records)).panels[0].series
    assert [bar.name for bar in bars] == ["none", "1", "2"]
    assert (bars[-1].base + bars[-1].lengths).tolist() == [100, 100, 100]
