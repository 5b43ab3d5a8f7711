"""Walks through a made-up city, without a ray; with rays behind the mark `city` (`make city`)."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from asfl.config import ChannelSettings, Radio, Scenario
from asfl.config.errors import AsflError
from asfl.radio import city as rays
from asfl.radio.channel import ClockedChannel, make_channel
from asfl.radio.city import CityMap, Walk, trace_city, walk
from asfl.radio.traces import read_trace
from asfl.results.charts.world import trace_chart

Floats = NDArray[np.float64]
ASKED = Walk("blocks", 4, 60.0, 1.0, 1.4, 100.0, 3.5e9, 3, 1e6, seed=1)


class Blocks(rays.Tracer):
    """Square houses of 20 m with streets of 20 m between them, and one closed yard; gains fall with the distance."""

    def __init__(self) -> None:
        pass  # no scene

    def middle_m(self) -> Floats:
        return np.zeros(2)

    def city_map(self, middle_m: Floats, radius_m: float, cell_m: float) -> CityMap:
        axis = np.arange(int(2 * radius_m / cell_m)) * cell_m - radius_m
        house = (axis % 40) < 20
        height = 24.0 * np.logical_and.outer(house, house)
        height[:12, :12] = 9.0
        height[4:8, 4:8] = 0.0  # the yard
        return CityMap(height, -radius_m, -radius_m, cell_m)

    def gains(self, server_m: Floats, clients_m: Floats, block_hz: Floats) -> Floats:
        distance = np.hypot(*(clients_m - server_m[:2]).T)
        return np.asarray((1e-3 / (10 + distance) ** 4)[:, None] * (1 + 1e-7 * block_hz))


def test_people_stay_in_the_streets_and_keep_their_pace() -> None:
    city = Blocks().city_map(np.zeros(2), 100.0, 2.0)
    streets = city.streets()
    assert not streets[4:8, 4:8].any()
    start = city.centre_of(np.argwhere(streets)[::200])
    ways = walk(city, start, 200, 1.4, seed=3)
    assert streets[city.cell_of(ways)].all()
    steps = np.hypot(*np.moveaxis(np.diff(ways, axis=1), 2, 0))
    assert (np.isclose(steps, 1.4) | np.isclose(steps, 0.0)).all()
    assert steps.mean() > 1.3
    assert (walk(city, start, 200, 1.4, seed=3) == ways).all()
    assert (walk(city, start, 200, 1.4, seed=4) != ways).any()


def test_a_trace_can_be_played_by_the_clock_and_drawn(tmp_path: Path) -> None:
    trace_city(ASKED, Blocks(), file := tmp_path / "walk.npz")
    assert [each.name for each in tmp_path.iterdir()] == ["walk.npz"]
    trace = read_trace(file)
    assert trace.quantity == "gain_db"
    assert trace.by_block is not None
    assert trace.by_block[0].shape == (60, 3)
    options = ChannelSettings(kind="trace", trace_file=str(file), trace_samples_per_round="clock")
    channel = make_channel(Scenario(clients=4, channel=options), Radio())
    assert isinstance(channel, ClockedChannel)
    wanted = [10 ** (values[7] / 10) for values in trace.values]
    assert channel.at_time(7.9).channel_gain == pytest.approx(wanted)
    assert len(trace_chart(trace).panels) == 2


def test_a_city_without_reception_is_said(tmp_path: Path) -> None:
    class Silent(Blocks):
        def gains(self, server_m: Floats, clients_m: Floats, block_hz: Floats) -> Floats:
            return np.full((len(clients_m), len(block_hz)), 1e-20)

    with pytest.raises(AsflError, match="only 0 of 4 clients found a place within 100 m"):
        trace_city(ASKED, Silent(), tmp_path / "walk.npz")


def test_without_llvm_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRJIT_LIBLLVM_PATH", raising=False)
    monkeypatch.setattr(rays, "OLDEST_LLVM", 1000)
    with pytest.raises(AsflError, match=r"needs LLVM 1000 or newer, .*install libllvm19"):
        rays.choose_llvm()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"gain_db": np.zeros(3)}, r"gain_db is float64 \[3\]"),
        ({"gain_db": np.full((2, 3), np.nan)}, "missing somewhere"),
        ({"gain_db": np.zeros((2, 3, 4)), "block_hz": np.zeros(3)}, "has 4 blocks; block_hz must give"),
        ({"gain_db": np.zeros((2, 3)), "dt_s": -1.0}, "give one positive number of seconds"),
    ],
)
def test_damaged_walks_are_refused(arrays: dict[str, NDArray[np.float64]], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "walk.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(AsflError, match=words):
        read_trace(tmp_path / "walk.npz")


@pytest.mark.city
@pytest.mark.filterwarnings("default")
def test_rays_in_a_street_canyon(tmp_path: Path) -> None:
    """Free space, checked by Friis: a client in the open, in sight of the server, hears about what it should."""
    tracer = rays.Tracer("simple_street_canyon", 3.5e9)
    asked = Walk("simple_street_canyon", 2, 4.0, 1.0, 1.4, 60.0, 3.5e9, 4, 1e6, seed=1)
    trace_city(asked, tracer, out := tmp_path / "canyon.npz")
    trace = read_trace(out)
    assert len(trace.values) == 2
    away = 20.0
    gain = tracer.gains(np.array([0.0, 0.0, 1.5]), np.array([[away, 0.0]]), np.zeros(1))
    friis = (299_792_458.0 / 3.5e9 / (4 * np.pi * away)) ** 2
    assert abs(10 * np.log10(gain[0, 0] / friis)) < 10
    with pytest.raises(AsflError, match="unknown scene 'munch': did you mean 'munich'"):
        rays.Tracer("munch", 3.5e9)
