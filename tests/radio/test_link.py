"""Rates and packet error rates: against Monte Carlo, quadrature and plain formulas, and their monotonicity (laws)."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.integrate import quad

from asfl.config import Radio
from asfl.radio.link import downlink_rate_bps, packet_error_rate_known, packet_error_rate_rayleigh, uplink_rate_bps

RADIO = Radio()
NOISE_W = 1e6 * 10 ** (-17.3) * 1e-3
SATURATED = 1 - 1e-9  # nearer to 1 than this, floating point can't tell two error rates apart
counts = st.integers(1, 200)
powers = st.floats(1e-3, 10)
gains = st.floats(-16, -5).map(lambda exponent: 10.0**exponent)


@given(counts, powers, gains)
def test_rates_are_the_printed_formulas(count: int, power: float, gain: float) -> None:
    shared = count * 1e6 * math.log2(1 + power * gain / (count * NOISE_W))
    each = count * 1e6 * math.log2(1 + power * gain / NOISE_W)
    down = 8e6 * math.log2(1 + 5 * gain / (8 * NOISE_W))
    assert uplink_rate_bps(count, power, gain, RADIO) == pytest.approx(shared, rel=1e-6)
    assert uplink_rate_bps(count, power, gain, RADIO, "each_rb") == pytest.approx(each, rel=1e-6)
    assert downlink_rate_bps(gain, RADIO) == pytest.approx(down, rel=1e-6)


@pytest.mark.parametrize("x", [1e-10, 1e-3, 0.0624, 0.0626, 0.2, 1.0, 10.0, 100.0])
def test_closed_form_is_the_average_over_rayleigh_fading(x: float) -> None:
    """E[1 − exp(−x/χ)], χ ~ Exp(1), by quadrature over t = ln χ, where the integrand has no corners."""

    def integrand(t: float) -> float:
        return -math.expm1(-x * math.exp(-t)) * math.exp(t - math.exp(t))

    expected, _ = quad(integrand, -45, 5, epsabs=0, epsrel=1e-11, limit=500)
    rate = packet_error_rate_rayleigh(1, 1.0, NOISE_W / x, RADIO)
    assert rate == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("count", "power", "distance"), [(1, 1.5, 480), (3, 0.4, 300), (8, 1.5, 500), (1, 0.01, 100)])
def test_closed_form_is_monte_carlo(count: int, power: float, distance: float) -> None:
    path_gain = 1e-3 * distance**-4.0
    draws = 400_000
    fading = np.random.default_rng(7).exponential(size=draws)
    lost = 1 - np.exp(-count * NOISE_W / (power * path_gain * fading))
    standard_error = lost.std() / math.sqrt(draws)
    assert packet_error_rate_rayleigh(count, power, path_gain, RADIO) == pytest.approx(
        lost.mean(), abs=5 * standard_error
    )


@pytest.mark.parametrize(("count", "power", "gain"), [(1, 1.5, 1e-14), (4, 1.0, 5e-14), (8, 1.5, 1e-13)])
def test_known_gain_is_monte_carlo_over_packets(count: int, power: float, gain: float) -> None:
    """A packet survives if a unit exponential exceeds the waterfall ratio α k B N₀ / (p g)."""
    draws = 400_000
    survives = np.random.default_rng(8).exponential(size=draws) > count * NOISE_W / (power * gain)
    rate = 1 - survives.mean()
    assert packet_error_rate_known(count, power, gain, RADIO) == pytest.approx(rate, abs=5 * 0.5 / math.sqrt(draws))


@given(counts, powers, gains, st.floats(1.001, 10))
def test_more_power_means_fewer_errors_and_a_higher_rate(count: int, power: float, gain: float, factor: float) -> None:
    for error_rate in (packet_error_rate_rayleigh, packet_error_rate_known):
        before, after = error_rate(count, power, gain, RADIO), error_rate(count, factor * power, gain, RADIO)
        assert 0 <= after <= before <= 1
        assert after < before or after > SATURATED
    assert uplink_rate_bps(count, factor * power, gain, RADIO) > uplink_rate_bps(count, power, gain, RADIO)


@given(counts, powers, gains)
def test_more_blocks_mean_more_errors_and_a_higher_rate(count: int, power: float, gain: float) -> None:
    for error_rate in (packet_error_rate_rayleigh, packet_error_rate_known):
        before, after = error_rate(count, power, gain, RADIO), error_rate(count + 1, power, gain, RADIO)
        assert 0 <= before <= after <= 1
        assert after > before or before > SATURATED
    for sharing in ("shared", "each_rb"):
        more, fewer = (uplink_rate_bps(k, power, gain, RADIO, sharing) for k in (count + 1, count))
        assert more > fewer


def test_silence_is_an_error_and_no_rate() -> None:
    for count, power, gain in [(0, 1.0, 1e-10), (1, 0.0, 1e-10), (1, 1.0, 0.0), (2, 1e-300, 1e-300)]:
        assert packet_error_rate_rayleigh(count, power, gain, RADIO) == 1
        assert packet_error_rate_known(count, power, gain, RADIO) == 1
        assert uplink_rate_bps(count, power, gain, RADIO) == 0
    assert downlink_rate_bps(0.0, RADIO) == 0
