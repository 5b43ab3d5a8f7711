"""A cell of TR 38.901: ways, what clients meet on them, its channel, and its neighbours."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from asfl.config import Cell, ChannelSettings, Radio, Scenario
from asfl.config.errors import AsflError
from asfl.radio import cell as places
from asfl.radio.cell import CellChannel, Walks
from asfl.radio.link import place_clients

Floats = NDArray[np.float64]
RADIO = Radio()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASFL_CACHE_DIR", str(tmp_path))


def scenario(clients: int = 40, seed: int = 1, radius_m: float = 500.0, **cell: Any) -> Scenario:
    channel = ChannelSettings(kind="3gpp", cell=Cell(**cell))
    return Scenario(clients=clients, seed=seed, radius_m=radius_m, channel=channel)


@given(st.floats(0, 1e5), st.just(0.0) | st.floats(0.01, 10), st.integers(0, 50))
def test_clients_stay_in_the_disc_and_walk_no_faster_than_said(time_s: float, speed: float, seed: int) -> None:
    world = scenario(30, seed, speed_mps=speed)
    walks = Walks.of(world)
    here, later = walks.position_m(time_s), walks.position_m(time_s + 3.0)
    assert np.hypot(*here.T).max() <= world.radius_m * (1 + 1e-9)
    assert (np.hypot(*(later - here).T) <= 3.0 * speed + 1e-6).all()
    assert (walks.walked_m(time_s) <= 100.0 * (1 + 1e-9)).all()
    assert walks.position_m(0.0) == pytest.approx(place_clients(world).position_m)


def test_they_come_back() -> None:
    walks = Walks.of(scenario(30, speed_mps=2.0))
    free = walks.length_m == 100.0
    assert free.sum() > 20
    assert walks.position_m(100.0)[free] == pytest.approx(walks.start_m[free])
    assert walks.position_m(10.0)[free] == pytest.approx((walks.start_m + 20.0 * walks.heading)[free])
    assert walks.position_m(90.0)[free] == pytest.approx(walks.position_m(10.0)[free])
    assert (walks.length_m >= 50.0).all()  # at the edge clients walk inwards


# ---------------------------------------------------------------------- TR 38.901, Table 7.4.1-1, once more by NumPy
def umi_loss_db(d2: Floats, fc_ghz: float, *, los: bool) -> Floats:
    d3, h_bs, h_ut = np.hypot(d2, 8.5), 10.0, 1.5
    breakpoint_m = 4 * (h_bs - 1) * (h_ut - 1) * fc_ghz * 1e9 / 299_792_458.0
    near = 32.4 + 21 * np.log10(d3) + 20 * np.log10(fc_ghz)
    far = 32.4 + 40 * np.log10(d3) + 20 * np.log10(fc_ghz) - 9.5 * np.log10(breakpoint_m**2 + (h_bs - h_ut) ** 2)
    seen = np.where(d2 <= breakpoint_m, near, far)
    return np.asarray(seen) if los else np.maximum(seen, 35.3 * np.log10(d3) + 22.4 + 21.3 * np.log10(fc_ghz))


def uma_loss_db(d2: Floats, fc_ghz: float, *, los: bool) -> Floats:
    d3, h_bs, h_ut = np.hypot(d2, 23.5), 25.0, 1.5
    breakpoint_m = 4 * (h_bs - 1) * (h_ut - 1) * fc_ghz * 1e9 / 299_792_458.0
    near = 28.0 + 22 * np.log10(d3) + 20 * np.log10(fc_ghz)
    far = 28.0 + 40 * np.log10(d3) + 20 * np.log10(fc_ghz) - 9 * np.log10(breakpoint_m**2 + (h_bs - h_ut) ** 2)
    seen = np.where(d2 <= breakpoint_m, near, far)
    return np.asarray(seen) if los else np.maximum(seen, 13.54 + 39.08 * np.log10(d3) + 20 * np.log10(fc_ghz))


def rma_loss_db(d2: Floats, fc_ghz: float, *, los: bool) -> Floats:
    h, w, h_bs, h_ut = 5.0, 20.0, 35.0, 1.5
    breakpoint_m = 2 * np.pi * h_bs * h_ut * fc_ghz * 1e9 / 299_792_458.0

    def first(d3: Floats) -> Floats:
        return np.asarray(
            20 * np.log10(40 * np.pi * d3 * fc_ghz / 3)
            + min(0.03 * h**1.72, 10) * np.log10(d3)
            - min(0.044 * h**1.72, 14.77)
            + 0.002 * np.log10(h) * d3
        )

    d3 = np.hypot(d2, h_bs - h_ut)
    seen = np.where(d2 <= breakpoint_m, first(d3), first(np.array(breakpoint_m)) + 40 * np.log10(d3 / breakpoint_m))
    if los:
        return np.asarray(seen)
    unseen = (
        161.04
        - 7.1 * np.log10(w)
        + 7.5 * np.log10(h)
        - (24.37 - 3.7 * (h / h_bs) ** 2) * np.log10(h_bs)
        + (43.42 - 3.1 * np.log10(h_bs)) * (np.log10(d3) - 3)
        + 20 * np.log10(fc_ghz)
        - (3.2 * np.log10(11.75 * h_ut) ** 2 - 4.97)
    )
    return np.asarray(np.maximum(seen, unseen))


@pytest.mark.parametrize(("model", "loss_db"), [("umi", umi_loss_db), ("uma", uma_loss_db), ("rma", rma_loss_db)])
@pytest.mark.parametrize("radius_m", [100.0, 3000.0])
def test_path_gains_are_those_of_the_standard(model: str, loss_db: Any, radius_m: float) -> None:
    world = scenario(60, radius_m=radius_m, model=model, shadowing=False, speed_mps=0.0)
    drawn = places.draw_places(walks := Walks.of(world), world)
    distance = np.maximum(np.hypot(*walks.start_m.T), places.NEAREST_M[model])
    sees = drawn.sees_server[:, 0]
    assert sees.any()
    assert radius_m == 100.0 or not sees.all()
    wanted = -np.where(sees, loss_db(distance, 3.5, los=True), loss_db(distance, 3.5, los=False))
    assert drawn.path_gain_db[:, 0] == pytest.approx(wanted, abs=1e-6)


def test_line_of_sight_and_shadowing_are_as_likely_as_the_standard_has_it() -> None:
    world = scenario(600, radius_m=200.0, speed_mps=0.0)
    drawn = places.draw_places(walks := Walks.of(world), world)
    distance = np.maximum(np.hypot(*walks.start_m.T), 18.0)
    likely = np.where(distance <= 18, 1.0, 18 / distance + np.exp(-distance / 36) * (1 - 18 / distance))
    assert abs(drawn.sees_server.mean() - likely.mean()) < 4 * np.sqrt(likely.mean() / 600)
    for sees, deviation_db in ((True, 4.0), (False, 7.82)):  # Table 7.5-6: σ_SF of UMi
        who = drawn.sees_server[:, 0] == sees
        away = np.maximum(np.hypot(*walks.start_m[who].T), 10.0)
        shadow = drawn.path_gain_db[who, 0] + umi_loss_db(away, 3.5, los=sees)
        assert abs(shadow.mean()) < 4 * deviation_db / np.sqrt(who.sum())
        assert shadow.std() == pytest.approx(deviation_db, rel=0.2)


def test_rays_add_up() -> None:
    world = scenario(shadowing=False, speed_mps=0.0)
    drawn = places.draw_places(Walks.of(world), world)
    # The standard leaves out clusters 25 dB below the strongest.
    assert (drawn.amplitude.astype(float) ** 2).sum(axis=2) == pytest.approx(1.0, abs=0.02)


def test_gains_follow_the_clock_and_nothing_else() -> None:
    world = scenario(12, speed_mps=1.0)
    channel, again = CellChannel.of(world, RADIO), CellChannel.of(world, RADIO)
    late = channel.at_time(57.0)
    assert (channel.at_time(3.0).channel_gain != late.channel_gain).all()
    assert (again.at_time(57.0).channel_gain == late.channel_gain).all()
    assert (again.at(57).path_gain == channel.at_time(57.0).path_gain).all()
    assert late.gain_is_known
    # A step changes the path gain by little, a street by more; a millimetre leaves the fading as it is.
    gain_db = [10 * np.log10(channel.at_time(t).path_gain) for t in (0.0, 1.0, 60.0)]
    assert np.abs(gain_db[1] - gain_db[0]).mean() < 0.5 * np.abs(gain_db[2] - gain_db[0]).mean()
    assert channel.at_time(57.001).channel_gain == pytest.approx(late.channel_gain, rel=0.1)
    standing = CellChannel.of(scenario(12, speed_mps=0.0), RADIO)
    assert (standing.at_time(0.0).channel_gain == standing.at_time(1e4).channel_gain).all()


def test_fading_has_the_mean_1_and_is_drawn_by_the_seed() -> None:
    world = scenario(40)
    channel = CellChannel.of(world, RADIO)
    states = [channel.at_time(t) for t in np.linspace(0, 40, 150)]
    fading = np.array([state.channel_gain / state.path_gain for state in states])
    assert fading.mean() == pytest.approx(1.0, abs=0.05)
    other = CellChannel.of(scenario(40, seed=2), RADIO)
    assert (other.at_time(0.0).channel_gain != states[0].channel_gain).all()


def test_places_are_read_from_the_cache_without_sionna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = CellChannel.of(scenario(3), RADIO).at_time(7.0)
    assert len(list(tmp_path.glob("3gpp-umi-*.npz"))) == 1
    monkeypatch.setitem(sys.modules, "sionna", None)
    monkeypatch.setitem(sys.modules, "sionna.phy", None)
    assert (CellChannel.of(scenario(3), RADIO).at_time(7.0).channel_gain == first.channel_gain).all()
    with pytest.raises(AsflError, match=r'kind = "3gpp" needs Sionna: pip install "asfl\[channels\]"'):
        CellChannel.of(scenario(4), RADIO)
