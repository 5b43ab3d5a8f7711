"""Traces that tools/read_renew.py makes of pilots in both HDF5 layouts, against channels made here in plain NumPy."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from asfl.radio.traces import Trace, read_trace

h5py = pytest.importorskip("h5py")
pilots = pytest.importorskip("tools.read_renew")

FRAMES, WRITTEN, CLIENTS, ANTENNAS = 6, 4, 3, 2
FFT_SIZE, CP_LEN, PREFIX_LEN, POSTFIX_LEN, REPETITIONS = 64, 16, 7, 5, 2
SLOT = PREFIX_LEN + REPETITIONS * (FFT_SIZE + CP_LEN) + POSTFIX_LEN
LTS_USED = [
    *(1, 1, -1, -1, 1, 1, -1, 1, -1, 1, 1, 1, 1, 1, 1, -1, -1, 1, 1, -1, 1, -1, 1, 1, 1, 1),
    *(1, -1, -1, 1, 1, -1, 1, -1, 1, -1, -1, -1, -1, -1, 1, 1, -1, -1, 1, -1, 1, -1, 1, 1, 1, 1),
]
USED = np.r_[6:32, 33:59]
"""Bins of the LTS, DC in the middle."""

Complex = NDArray[np.complex128]


def lts() -> Complex:
    sequence = np.zeros(FFT_SIZE, dtype=complex)
    sequence[USED] = LTS_USED
    return sequence


def channels(taps: int, seed: int = 5) -> Complex:
    """Frequency response [frame, client, antenna, bin], DC first, each client 6 dB below the one before."""
    rng = np.random.default_rng(seed)
    shape = (WRITTEN, CLIENTS, ANTENNAS, taps)
    impulse = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / np.sqrt(2 * taps)
    client_amplitude = 0.5 ** np.arange(CLIENTS)[:, None, None]
    return np.asarray(np.fft.fft(impulse * client_amplitude, FFT_SIZE, axis=-1))


def quantise(samples: Complex) -> NDArray[np.int16]:
    """int16 I and Q in a new last axis; nothing may clip, for then no reader could recover the gain."""
    iq = np.stack([samples.real, samples.imag], axis=-1) * 2**15
    assert np.abs(iq).max() < 2**15 - 1
    return np.rint(iq).astype(np.int16)


def body(response: Complex, pilot_dc_first: Complex) -> Complex:
    """Received OFDM symbol without cyclic prefix."""
    return np.asarray(np.fft.ifft(response * pilot_dc_first, axis=-1)) * 0.5


def expected_gain(response: Complex, pilot_dc_first: Complex) -> NDArray[np.float64]:
    used = pilot_dc_first != 0
    return np.asarray((np.abs(0.5 * response[..., used]) ** 2).mean(axis=-1))


def assert_gain(actual: tuple[NDArray[np.float64], ...], expected: NDArray[np.float64]) -> None:
    """Compare within what rounding to 2^-15 does: its power per bin is FFT_SIZE × 2 × step² / 12."""
    assert len(actual) == expected.shape[1]
    noise_power = FFT_SIZE * 2 * 2.0**-30 / 12
    for client, values in enumerate(actual):
        tolerance = 6 * np.sqrt(expected[:, client] * noise_power) + 6 * noise_power
        np.testing.assert_array_less(np.abs(values - expected[:, client]), tolerance)


def sounder_samples(response: Complex, pilot_dc_first: Complex) -> NDArray[np.int16]:
    """(FRAMES, 1 cell, client, antenna, 2 × SLOT); only WRITTEN frames hold anything.

    Sent samples are convolved with the impulse response, so that echoes of what came before spoil the cyclic
    prefix: a reader that cuts elsewhere than after it finds another gain.
    """
    symbol = 0.5 * np.fft.ifft(pilot_dc_first)
    with_cp = np.concatenate([symbol[-CP_LEN:], symbol])
    sent = np.concatenate([[0.3] * PREFIX_LEN, *[with_cp] * REPETITIONS, [0.2j] * POSTFIX_LEN])
    slots = np.apply_along_axis(lambda impulse: np.convolve(sent, impulse)[:SLOT], -1, np.fft.ifft(response))
    samples = np.zeros((FRAMES, 1, CLIENTS, ANTENNAS, 2 * SLOT), dtype=np.int16)
    samples[[0, 1, 3, 4], 0] = quantise(slots).reshape(WRITTEN, CLIENTS, ANTENNAS, 2 * SLOT)
    return samples


def sounder_attributes(pilot: Complex) -> dict[str, Any]:
    counts = {
        "SLOT_SAMP_LEN": SLOT,
        "PREFIX_LEN": PREFIX_LEN,
        "POSTFIX_LEN": POSTFIX_LEN,
        "FFT_SIZE": FFT_SIZE,
        "CP_LEN": CP_LEN,
        "PILOT_NUM": CLIENTS,
        "CL_NUM": CLIENTS,
        "BS_FRAME_LEN": 20,
        "ANT_NUM": ANTENNAS,
    }
    return {
        **{name: np.array([value], dtype=">u4") for name, value in counts.items()},
        "FREQ": np.array([3.6e9]),
        "RATE": np.array([5e6]),
        "OFDM_PILOT_F": np.stack([pilot.real, pilot.imag], axis=-1).ravel(),
        "PILOT_SEQ_TYPE": ["lts"],
        "BS_FRAME_SCHED": ["BGPPPG"],
    }


def write_sounder(path: Path, samples: NDArray[Any], attributes: dict[str, Any], dtype: str = ">i2") -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group("Data")
        chunks = None if 0 in samples.shape else (*[1] * (samples.ndim - 1), samples.shape[-1])
        group.create_dataset("Pilot_Samples", data=samples.astype(dtype), chunks=chunks)
        group.create_dataset("Noise_Samples", data=np.full((FRAMES, 1, 1, ANTENNAS, 2 * SLOT), 99, dtype=dtype))
        group.attrs.update(attributes)
    return path


def write_argos(path: Path, response: Complex, **changed_attributes: int | None) -> Path:
    """None leaves out an attribute."""
    rng = np.random.default_rng(2)
    symbol = body(response, np.fft.ifftshift(lts()))
    slots = rng.normal(scale=0.1, size=(WRITTEN, CLIENTS + 1, ANTENNAS, 224)) * np.complex128(1 + 1j)
    slots[:, :CLIENTS, :, 47:111] = slots[:, :CLIENTS, :, 111:175] = symbol
    samples = np.zeros((FRAMES, ANTENNAS, (CLIENTS + 1) * 224, 2), dtype=np.int16)
    samples[[0, 1, 3, 4]] = quantise(slots.swapaxes(1, 2).reshape(WRITTEN, ANTENNAS, -1))
    attributes = {
        **{"samples_per_user": 224, "num_mob_ant": CLIENTS, "frame_length": 100_000, "measured_noise": 1},
        **changed_attributes,
    }
    with h5py.File(path, "w") as file:
        file["Pilot_Samples"] = samples
        file.attrs.update({name: value for name, value in attributes.items() if value is not None})
    return path


def converted(recording: Path, antenna: int | Literal["each"] = 0) -> Trace:
    pilots.convert(recording, recording.with_suffix(".npz"), antenna)
    return read_trace(recording.with_suffix(".npz"))


@pytest.mark.parametrize(("taps", "antenna"), [(1, 0), (6, 1)], ids=["flat", "selective"])
def test_sounder_gain_is_the_mean_power_of_the_channel(tmp_path: Path, taps: int, antenna: int) -> None:
    response, pilot = channels(taps), lts()
    samples = sounder_samples(response, np.fft.ifftshift(pilot))
    trace = converted(write_sounder(tmp_path / "site.hdf5", samples, sounder_attributes(pilot)), antenna)
    assert (trace.quantity, trace.source) == ("relative_gain", "site.npz")
    assert trace.user_names == ("client 0", "client 1", "client 2")
    assert trace.sample_period_s == pytest.approx(SLOT * 20 / 5e6)
    assert_gain(trace.values, expected_gain(response[:, :, antenna], np.fft.ifftshift(pilot)))


@pytest.mark.parametrize(("taps", "antenna"), [(1, 0), (6, 1)], ids=["flat", "selective"])
def test_argos_gain_is_the_mean_power_of_the_channel(tmp_path: Path, taps: int, antenna: int) -> None:
    response = channels(taps)
    trace = converted(write_argos(tmp_path / "ch1_los_loc1.hdf5", response), antenna)
    assert trace.quantity == "relative_gain"
    assert len(trace.values) == CLIENTS  # the noise slot is none
    assert trace.sample_period_s == pytest.approx(100_000 / 20e6)
    assert_gain(trace.values, expected_gain(response[:, :, antenna], np.fft.ifftshift(lts())))
