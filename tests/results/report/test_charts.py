"""What charts show; SNR and positions against a trace that is written here and read again in plain NumPy."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from asfl.config import load_config
from asfl.costs.timeline import Shape, Timeline
from asfl.costs.world import World
from asfl.results.charts.chart import Axis, Bars, Chart, Heat, Level, Line, Look, Note, Panel, Points
from asfl.results.charts.files import draw
from asfl.results.charts.plotly import figure
from asfl.results.charts.timeline import timeline_chart, timeline_panel
from asfl.results.charts.world import MOMENTS, gains

Floats = NDArray[np.float64]
USERS, BLOCKS, MOMENTS_S, PERIOD_S = 3, 4, 50, 0.5
RADIO = load_config("demo").config.radio


def gains_db() -> Floats:
    """[users, time, blocks]"""
    return np.random.default_rng(1).uniform(-110, -90, (USERS, MOMENTS_S, BLOCKS))


def snr_db(gain_db: Floats) -> Floats:
    """Of one block at full power: P^max g / (B N₀)."""
    noise_w = RADIO.rb_bandwidth_hz * RADIO.noise_psd_w_per_hz
    return np.asarray(gain_db + 10 * math.log10(RADIO.max_tx_power_w / noise_w))


def mean_db(gain_db: Floats) -> Floats:
    """Of all blocks."""
    return np.asarray(10 * np.log10((10 ** (gain_db / 10)).mean(axis=-1)))


def settings(file: Path) -> list[str]:
    centres = (np.arange(BLOCKS) - (BLOCKS - 1) / 2) * RADIO.rb_bandwidth_hz
    np.savez(file, gain_db=gains_db(), dt_s=np.array(PERIOD_S), block_hz=centres)
    channel = {"kind": "trace", "trace_file": str(file), "trace_samples_per_round": "clock", "blocks": "selective"}
    return [
        f"scenario.clients={USERS}", f"radio.num_rbs={BLOCKS}",
        *(f"scenario.channel.{name}={value}" for name, value in channel.items()),
    ]  # fmt: skip


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


# ---------------------------------------------------------------------- what draws charts
EVERYTHING = Panel(
    "All <b>kinds</b>",
    [
        Heat(values=[[1.0, math.nan], [3.0, 4.0]], label="J", low=0, high=4, extent=(-0.5, 1.5, -0.5, 1.5)),
        Line(x=[1, 2, 3], y=[1.0, 4.0, 2.0], name="a line", group="mine", low=[0, 3, 1], high=[2, 5, 3], step=True),
        Points(x=[1, 2], y=[2, 3], look=[Look("#111111")] * 2, x_ends=([0, 1], [2, 3])),
        Bars(places=[0, 1], lengths=[2, 1], look=Look("#1f2f6b"), horizontal=True),
        Level(2.5, "budget"),
        Note("not reached", None, 1),
    ],
    Axis("delay, s", low=0, high=4),
    Axis(ticks={0: "one", 1: "other"}, low=-1, high=2, reversed=True),
)  # fmt: skip


def test_a_page_shows_every_kind_of_series() -> None:
    made = figure(EVERYTHING)
    band, heat, line, points, bars = made["data"]
    assert (band["fill"], heat["type"], line["line"]["shape"]) == ("toself", "heatmap", "hvh")
    assert bars["orientation"] == "h"
    assert line["name"] == "a line"
    assert (heat["x0"], heat["dx"], heat["zmax"]) == (0, 1, 4)
    assert points["error_x"].keys() >= {"array", "arrayminus"}
    assert (band["legendgroup"], line["legendgroup"]) == ("mine", "mine")
    layout = made["layout"]
    assert layout["title"]["text"] == "<b>All &lt;b&gt;kinds&lt;/b&gt;</b>"
    assert (layout["xaxis"]["range"], layout["yaxis"]["range"]) == ([0, 4], [2, -1])
    assert (layout["shapes"][0]["y0"], layout["annotations"][0]["text"]) == (2.5, "not reached")


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


def test_a_timeline_has_a_bar_for_every_step() -> None:
    """In both renderers; client 1 sits out, and the packet of client 2 is lost."""
    parts = np.arange(1.0, 31.0).reshape(10, 3)
    parts[:, 1] = parts[5:, 2] = 0.0
    timeline, barriers = Timeline.of(Shape(3, slices=4), parts), Timeline.of(Shape(3, stages=True), parts)
    axes, above = draw(timeline_chart(barriers, timeline, "")).axes[1], timeline_panel(timeline)
    bars = [bar for bar in above.series if isinstance(bar, Bars) and bar.base is not None]
    assert sum(len(np.atleast_1d(bar.places)) for bar in bars) == (timeline.seconds > 0).sum()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["server", "client 0", "client 2"]
    assert "lost" in {text.get_text() for text in axes.texts}
    traces = figure(above)["data"]
    named = [getattr(series, "name", "") for series in above.series]
    assert [trace["name"] for trace in traces if trace.get("showlegend")] == [name for name in named if name]
    assert sum("base" in trace for trace in traces) == len(bars)
