from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from asfl.config import ChannelSettings, Radio, Scenario
from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.radio.channel import RayleighChannel, make_channel, trace_gains
from asfl.radio.link import place_clients
from asfl.radio.traces import Trace

MANY = Scenario(clients=20_000)


@given(st.integers(0, 2**31), st.text(min_size=1), st.integers(0, 10_000))
def test_a_stream_is_its_seed_purpose_and_round(seed: int, purpose: str, round_index: int) -> None:
    first = random_stream(seed, purpose, round_index).random(4)
    assert (first == random_stream(seed, purpose, round_index).random(4)).all()
    for other in (
        random_stream(seed + 1, purpose, round_index),
        random_stream(seed, purpose + "x", round_index),
        random_stream(seed, purpose, round_index + 1),
    ):
        assert (first != other.random(4)).any()


def test_clients_are_uniform_in_the_disc() -> None:
    clients = place_clients(MANY)
    assert clients.distance_m.min() >= 1
    assert clients.distance_m.max() <= 500
    assert np.hypot(*clients.position_m.T) == pytest.approx(clients.distance_m)
    # Uniform over the area: the squared distance is uniform, and so is the angle.
    squared = (clients.distance_m**2 - 1) / (500**2 - 1)
    assert stats.kstest(squared, "uniform").pvalue > 1e-3
    angle = np.arctan2(clients.position_m[:, 1], clients.position_m[:, 0]) / (2 * np.pi) % 1
    assert stats.kstest(angle, "uniform").pvalue > 1e-3
    assert stats.kstest((clients.cpu_hz - 1e9) / 0.6e9, "uniform").pvalue > 1e-3


def test_rayleigh_fading_is_exponential_and_drawn_anew() -> None:
    channel = RayleighChannel(MANY)
    first, second = channel.at(0), channel.at(1)
    assert stats.kstest(first.channel_gain / first.path_gain, "expon").pvalue > 1e-3
    assert (first.path_gain == second.path_gain).all()
    assert (first.channel_gain != second.channel_gain).all()
    assert (channel.at(1).channel_gain == second.channel_gain).all()
    assert not first.gain_is_known


def _trace(quantity: str, *users: list[float]) -> Trace:
    values = tuple(np.array(user) for user in users)
    return Trace(quantity, values, 1.0, tuple(map(str, range(len(users)))), "some.csv")  # type: ignore[arg-type]


def test_measured_quantities_become_gains() -> None:
    """SNR of one block at full power: p g / (B N₀) gives the SNR back. RSRP: received over sent power."""
    radio, scenario = Radio(), Scenario()
    (gain,) = trace_gains(_trace("snr_db", [0.0, 20.0]), scenario, radio)
    snr = 1.5 * gain / (1e6 * radio.noise_psd_w_per_hz)
    assert 10 * np.log10(snr) == pytest.approx([0, 20])
    (gain,) = trace_gains(_trace("rsrp_dbm", [-85.0, -115.0]), scenario, radio)
    assert 10 * np.log10(gain) == pytest.approx([-100, -130])


def test_gains_without_a_scale_are_shifted_to_the_median_of_the_disc() -> None:
    users = ([4.0, 1.0], [9.0, 2.0, 100.0])
    gains = trace_gains(_trace("relative_gain", *users), Scenario(), Radio())
    assert np.median(np.concatenate(gains)) == pytest.approx(1e-3 * ((1 + 500**2) / 2) ** -2)
    assert gains[1] / gains[0][0] == pytest.approx(np.array(users[1]) / 4)
    with pytest.raises(AsflError, match="median gain is 0"):
        trace_gains(_trace("relative_gain", [0.0, 0.0]), Scenario(), Radio())


def test_a_trace_plays_in_order_and_starts_over(tmp_path: Path) -> None:
    snr = np.arange(12.0).reshape(3, 4)
    np.savez(tmp_path / "trace.npz", snr_db=snr, dt_s=1.0)
    options = ChannelSettings(kind="trace", trace_file=str(tmp_path / "trace.npz"), trace_samples_per_round=3)
    channel = make_channel(Scenario(clients=3, channel=options), Radio())
    reference = 1e6 * Radio().noise_psd_w_per_hz / 1.5
    for round_index, sample in enumerate([0, 3, 2, 1, 0]):
        state = channel.at(round_index)
        assert state.gain_is_known
        assert 10 * np.log10(state.channel_gain / reference) == pytest.approx(snr[:, sample])
        assert state.path_gain == pytest.approx(reference * (10 ** (snr / 10)).mean(axis=1))
    two = make_channel(Scenario(clients=2, channel=options), Radio())
    assert set(two.at(0).channel_gain) < set(channel.at(0).channel_gain)
    with pytest.raises(AsflError, match=r"has 3 users with enough values, but scenario\.clients = 4"):
        make_channel(Scenario(clients=4, channel=options), Radio())
