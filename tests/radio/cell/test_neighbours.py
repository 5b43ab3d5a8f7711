import numpy as np
import pytest

from asfl.config import Cell, ChannelSettings, Radio, Scenario
from asfl.radio.cell.neighbours import SITE_DISTANCE_M, Neighbours, sites_m

RADIO = Radio()


def neighbours(model: str = "uma") -> Neighbours:
    cell = Cell(model=model, neighbours="hexagonal")
    return Neighbours(Scenario(clients=8, channel=ChannelSettings(kind="3gpp", cell=cell)), RADIO)


def test_the_grid_is_hexagonal() -> None:
    sites = sites_m(500.0)
    away = np.sort(np.hypot(*sites.T))
    assert away[:6] == pytest.approx(500.0)
    assert away[6:12] == pytest.approx(500.0 * np.sqrt(3))
    assert away[12:] == pytest.approx(1000.0)
    apart = np.linalg.norm(sites[:, None] - sites, axis=2)[~np.eye(18, dtype=bool)]
    assert apart.min() == pytest.approx(500.0)


def test_the_rise_down_is_the_sum_over_sites() -> None:
    at = np.array([[120.0, -40.0]])
    received = 0.0
    for site in sites_m(500.0):
        d3 = np.hypot(np.hypot(*(at[0] - site)), 23.5)
        loss_db = 13.54 + 39.08 * np.log10(d3) + 20 * np.log10(3.5)
        received += 0.5 * 5.0 / 8e6 * 10 ** (-loss_db / 10)
    assert neighbours().downlink_rise(at)[0] == pytest.approx(1 + received / RADIO.noise_psd_w_per_hz)


def test_the_rise_up_is_monte_carlo_over_places() -> None:
    draw = np.random.default_rng(5)
    total = 0.0
    for site in sites_m(500.0):
        radius = 500.0 * np.sqrt(np.sqrt(3) / 2 / np.pi) * np.sqrt(draw.random(20_000))
        angle = 2 * np.pi * draw.random(20_000)
        d2 = np.hypot(site[0] + radius * np.cos(angle), site[1] + radius * np.sin(angle))
        loss_db = 13.54 + 39.08 * np.log10(np.hypot(d2, 23.5)) + 20 * np.log10(3.5)
        total += float((10 ** (-loss_db / 10)).mean())
    rise = 1 + 0.5 * total * 1.5 / 1e6 / RADIO.noise_psd_w_per_hz
    assert neighbours().uplink_rise == pytest.approx(rise, rel=0.02)


@pytest.mark.parametrize("model", ["umi", "uma", "rma"])
def test_more_load_and_nearer_sites_raise_the_noise(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rise(load: float = 0.5, distance_m: float = 500.0) -> float:
        monkeypatch.setattr("asfl.radio.cell.neighbours.LOAD", load)
        monkeypatch.setitem(SITE_DISTANCE_M, model, distance_m)
        return neighbours(model).uplink_rise

    assert rise(load=0.0) == 1
    assert rise(load=1.0) > rise(load=0.3) > 1
    assert rise(distance_m=300.0) > rise(distance_m=900.0)
    places = np.array([[0.0, 0.0], [0.0, 250.0]])
    centre, edge = neighbours(model=model).downlink_rise(places)
    assert edge > centre > 1
