"""What the server hears, and the pictures of it, against a trace that is written here and read again in plain NumPy."""

import math
from base64 import b64decode
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_up import made_up_run
from numpy.typing import NDArray
from PIL import Image
from run_folders import run_folder

from asfl.config import load_config
from asfl.costs.world import World
from asfl.results.curves import Run
from asfl.results.figures import walk
from asfl.results.figures.figure import drawing
from asfl.results.figures.gains import MOMENTS, draw_gains
from asfl.results.folders import read_run
from asfl.results.heard import heard_in
from asfl.results.page.inside import client_map, maps_of
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


def test_every_round_hears_what_the_trace_has_when_it_begins(tmp_path: Path) -> None:
    heard = heard_in(run_on(settings(tmp_path / "walk.npz")))
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
def test_nothing_is_heard_where_nobody_knows(why: str, tmp_path: Path) -> None:
    overrides = settings(tmp_path / "walk.npz")
    run = run_on([*overrides, why] if "=" in why else overrides, 0 if why == "new" else 3)
    if why == "gone":
        (tmp_path / "walk.npz").unlink()
    assert heard_in(run) is None


def test_the_walk_is_an_animation_of_so_many_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_on(settings(tmp_path / "walk.npz"))
    heard = heard_in(run)
    assert heard is not None
    monkeypatch.setattr(walk, "MOST_FRAMES", 3)
    walk.write_walk(run, heard, tmp_path / "walk.gif")
    pictures = []
    with Image.open(tmp_path / "walk.gif") as animation:
        assert (animation.format, animation.n_frames) == ("GIF", 3)  # type: ignore[attr-defined]
        for frame in range(3):
            animation.seek(frame)
            pictures.append(np.asarray(animation.convert("RGB")))
    assert all((one != other).any() for one, other in pairwise(pictures))


def test_without_positions_there_is_no_walk(tmp_path: Path) -> None:
    run = run_on(settings(tmp_path / "walk.npz", positions=False))
    heard = heard_in(run)
    assert heard is not None
    assert heard.position_m is None
    walk.write_walk(run, heard, tmp_path / "walk.gif")
    assert not (tmp_path / "walk.gif").exists()


def test_gains_over_time_and_blocks(tmp_path: Path) -> None:
    world = World.of(load_config("demo", settings(tmp_path / "walk.npz")).config)
    with drawing(8, 4) as figure:
        time, blocks = figure.subplots(1, 2)
        draw_gains(time, blocks, world)
    seconds = (np.arange(MOMENTS) / PERIOD_S).astype(int) % MOMENTS_S
    np.testing.assert_allclose(time.images[0].get_array(), snr_db(mean_db(gains_db()))[:, seconds])
    np.testing.assert_allclose(blocks.images[0].get_array(), snr_db(gains_db()[:, 0]))
    assert (time.get_xlabel(), blocks.get_xlabel()) == ("s", "block")


def test_the_report_has_the_map_and_the_walk(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.cli.report.write_figures", lambda *_: [])  # all the others
    run_folder(tmp_path / "run", overrides=settings(tmp_path / "walk.npz"))
    found = read_run(tmp_path / "run")
    assert "snr" in maps_of(found)
    (heat,) = client_map(found, "snr", columns=100)["data"]
    expected = snr_db(mean_db(gains_db()))[:, np.arange(3) * 4]
    shown = np.frombuffer(b64decode(heat["z"]["bdata"]), heat["z"]["dtype"]).reshape(expected.shape)
    np.testing.assert_allclose(shown, expected, rtol=1e-6)
    made = asfl("report", "run")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "run" / "report-figures" / "walk.gif").read_bytes().startswith(b"GIF")
