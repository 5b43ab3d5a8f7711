"""The link of 5G NR: against a simulation of its attempts, and the laws that every link keeps."""

import json
import math
from importlib import util
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asfl.config import Radio
from asfl.radio import nr as curves
from asfl.radio.link import downlink_rate_bps, packet_error_rate_known, packet_error_rate_rayleigh, uplink_rate_bps

RADIO = Radio(link="nr")
NOISE_W = 1e6 * 10 ** (-17.3) * 1e-3
counts = st.integers(1, 60)
powers = st.floats(1e-3, 10)
gains = st.floats(-16, -7).map(lambda exponent: 10.0**exponent)


def simulated_bits_per_slot(snr_db: float, blocks: int) -> float:
    """Transport blocks one after the other, each attempt with luck of its own, as a textbook has them."""
    with files("asfl.radio").joinpath("bler.npz").open("rb") as file, np.load(file) as tables:
        grid_db, sizes, per_symbol = tables["snr_db"], tables["code_block_bits"], tables["uplink_bits_per_symbol"]
        bler = tables["uplink_bler"].astype(float)

    def fails(scheme: int, decibel: float) -> float:
        bits = math.floor(per_symbol[scheme] * 144 * 5 / 8) * 8 + 24
        parts = math.ceil(bits / 8448)
        by_size = [1.0 if decibel < grid_db[0] else np.interp(decibel, grid_db, row) for row in bler[scheme]]
        one = np.interp(math.log(bits / parts), np.log(sizes), by_size)
        return float(1 - (1 - one) ** parts)

    best = 0.0
    for repeat in (1, 2, 4, 8, 16):
        for scheme in range(len(per_symbol)):
            first = fails(scheme, snr_db + 10 * math.log10(repeat))
            if first > 0.1:
                continue
            failing = [fails(scheme, snr_db + 10 * math.log10(repeat * n)) for n in (1, 2, 3, 4)]
            luck = np.random.default_rng(scheme).random(blocks)
            attempts = 1 + np.sum([luck < p for p in failing[:3]], axis=0)  # combined: luck stays
            arrived = luck >= failing[3]
            bits = math.floor(per_symbol[scheme] * 144 * 5 / 8) * 8
            best = max(best, bits * arrived.sum() / (repeat * attempts.sum()))
    return best


@pytest.mark.parametrize("snr_db", [-14.3, 0.7, 13.9, 25.0])
def test_what_is_carried_is_what_a_simulation_delivers(snr_db: float) -> None:
    carried = curves.curve_of("uplink", 1e6).carried(10 ** (snr_db / 10)) * 1e6 * 1e-3
    assert carried == pytest.approx(simulated_bits_per_slot(snr_db, 40_000), rel=0.03)


@given(counts, powers, gains, st.floats(1.001, 10))
def test_more_power_never_hurts(count: int, power: float, gain: float, factor: float) -> None:
    for error_rate in (packet_error_rate_rayleigh, packet_error_rate_known):
        assert 0 <= error_rate(count, factor * power, gain, RADIO) <= error_rate(count, power, gain, RADIO) <= 1
    for fitted in (False, True):
        before, after = (uplink_rate_bps(count, p, gain, RADIO, fitted=fitted) for p in (power, factor * power))
        assert 0 <= before <= after * (1 + 1e-12)
        down = [downlink_rate_bps(g, RADIO, fitted=fitted) for g in (gain, factor * gain)]
        assert down[0] <= down[1] * (1 + 1e-12)


@given(counts, powers, gains)
def test_more_blocks_mean_more_errors_and_a_higher_rate(count: int, power: float, gain: float) -> None:
    """The fit is concave, so always; the link itself if blocks are doubled: half the SNR sent twice carries as much."""
    for error_rate in (packet_error_rate_rayleigh, packet_error_rate_known):
        assert error_rate(count, power, gain, RADIO) <= error_rate(count + 1, power, gain, RADIO)
    one, more = (uplink_rate_bps(k, power, gain, RADIO, fitted=True) for k in (count, count + 1))
    assert one <= more * (1 + 1e-12)
    alone, doubled = (uplink_rate_bps(k, power, gain, RADIO) for k in (count, 2 * count))
    if power * gain / (2 * count * NOISE_W) > 0.1:  # below, sixteen slots for an attempt may not suffice
        assert alone <= doubled * 1.03  # the table is read between two points


@given(counts, powers, gains)
def test_energy_to_send_grows_with_power(count: int, power: float, gain: float) -> None:
    """p / rate(p): a client that is in no hurry sends with less power."""
    spent = [p / uplink_rate_bps(count, p, gain, RADIO, fitted=True) for p in (power, 2 * power)]
    assert spent[0] <= spent[1] * (1 + 1e-12)


@given(counts, powers, gains)
def test_never_faster_than_shannon_and_1_without_a_block(count: int, power: float, gain: float) -> None:
    assert uplink_rate_bps(count, power, gain, RADIO) <= uplink_rate_bps(count, power, gain, Radio())
    assert uplink_rate_bps(0, power, gain, RADIO) == 0
    for error_rate in (packet_error_rate_rayleigh, packet_error_rate_known):
        assert error_rate(0, power, gain, RADIO) == 1
        assert error_rate(count, power, 0.0, RADIO) == 1


def test_the_loss_under_fading_is_monte_carlo() -> None:
    curve = curves.curve_of("uplink", 1e6)
    fading = np.random.default_rng(1).exponential(size=400_000)
    for mean_db in (-20.0, -10.0, 3.0):
        mean = 10 ** (mean_db / 10)
        known = curve.lost(mean * fading, rayleigh=False)
        assert curve.lost(mean, rayleigh=True) == pytest.approx(
            known.mean(), abs=5 * known.std() / math.sqrt(len(fading)) + 1e-9
        )


@pytest.mark.parametrize("direction", ["uplink", "downlink"])
@pytest.mark.parametrize("bandwidth_hz", [180e3, 1e6, 5e6])
def test_the_fit_says_how_far_it_is_off(direction: curves.Direction, bandwidth_hz: float) -> None:
    curve = curves.curve_of(direction, bandwidth_hz)
    snr = 10 ** (np.linspace(-15, 25, 401) / 10)
    off = curve.fitted(snr) / curve.carried(snr) - 1
    assert np.sqrt((off**2).mean()) == pytest.approx(curve.fit_error, rel=0.02)
    assert np.abs(off).max() == pytest.approx(curve.fit_worst, rel=0.1)
    assert curve.fit_error < 0.1
    assert curve.fit_worst < 0.3


@pytest.mark.parametrize(("link", "file"), [("uplink", "PUSCH_table1.json"), ("downlink", "PDSCH_table1.json")])
def test_the_tables_that_ship_are_those_of_sionna(link: str, file: str) -> None:
    """What was simulated, between the SNRs of the simulation as Sionna has it: straight in log₁₀ of the error rate.

    Its files are enough: importing it takes ten seconds.
    """
    sionna = util.find_spec("sionna")
    assert sionna is not None
    assert sionna.submodule_search_locations
    text = (Path(sionna.submodule_search_locations[0]) / "sys" / "bler_tables" / file).read_text("utf-8")
    ((_, category),) = json.loads(text)["category"].items()
    schemes = {int(number): rows for number, rows in category["index"]["1"]["MCS"].items()}
    with files("asfl.radio").joinpath("bler.npz").open("rb") as opened, np.load(opened) as tables:
        grid_db, sizes, bler = tables["snr_db"], tables["code_block_bits"], tables[f"{link}_bler"].astype(float)
    assert len(bler) == len(schemes)
    for place, number in enumerate(sorted(schemes)):
        simulated = np.array([schemes[number]["CBS"][str(size)]["BLER"] for size in sizes])
        least = simulated[simulated > 0].min()
        logs = np.log10(np.where(simulated > 0, simulated, least / 100))  # no error was seen: far below any that was
        between = 10 ** np.array([np.interp(grid_db, schemes[number]["SNR_db"], row) for row in logs])
        monotone = np.minimum.accumulate(np.where(between < least, 0, between), axis=1)
        np.testing.assert_allclose(bler[place], monotone, rtol=1e-3, atol=1.01 * least)  # which is all or nothing
