"""Traces that tools/read_renew.py makes of pilots in both HDF5 layouts, against channels made here in plain NumPy."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from asfl.config.errors import AsflError
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


def zadoff_chu() -> Complex:
    """Of length 47 on bins 1 to 47, DC first: bin 1 is used, so readers must not shift."""
    n = np.arange(47)
    sequence = np.zeros(FFT_SIZE, dtype=complex)
    sequence[1:48] = np.exp(-1j * np.pi * 5 * n * (n + 1) / 47)
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


def test_sounder_pilot_with_dc_first_is_not_shifted(tmp_path: Path) -> None:
    response, pilot = channels(6), zadoff_chu()
    assert pilot[1] != 0
    path = write_sounder(tmp_path / "site.h5", sounder_samples(response, pilot), sounder_attributes(pilot))
    assert_gain(converted(path).values, expected_gain(response[:, :, 0], pilot))


def test_sounder_accepts_older_names_scalars_native_order_and_more_cells(tmp_path: Path) -> None:
    response, pilot = channels(6), lts()
    samples = sounder_samples(response, np.fft.ifftshift(pilot))
    attributes = sounder_attributes(pilot)
    attributes["SYMBOL_LEN"] = int(attributes.pop("SLOT_SAMP_LEN")[0])
    attributes |= {"RATE": 5e6, "FFT_SIZE": FFT_SIZE, "PILOT_SEQ_TYPE": b"lts", "CONFIG": b"not JSON"}
    two_cells = np.concatenate([samples, samples[:, :, ::-1]], axis=1)
    trace = converted(write_sounder(tmp_path / "old.hdf5", two_cells[[0, 1, 3, 4]], attributes, "<i2"))
    assert_gain(trace.values, expected_gain(response[:, :, 0], np.fft.ifftshift(pilot)))


def test_sounder_file_of_a_simulator_that_skips_ofdm(tmp_path: Path) -> None:
    """Agora's channel simulator may write subcarriers, in the order of the pilot, where samples would be."""
    response, pilot = channels(6), lts()
    received = 0.2 * np.fft.fftshift(response, axes=-1) * pilot
    iq = quantise(received).reshape(WRITTEN, 1, CLIENTS, ANTENNAS, 2 * FFT_SIZE)
    attributes = sounder_attributes(pilot)
    attributes |= {"SLOT_SAMP_LEN": FFT_SIZE, "PREFIX_LEN": 0, "POSTFIX_LEN": 0, "CP_LEN": 0}
    attributes["CONFIG"] = [json.dumps({"freq_domain_channel": True})]
    trace = converted(write_sounder(tmp_path / "simulated.hdf5", iq, attributes))
    expected = expected_gain(response[:, :, 0], np.fft.ifftshift(pilot)) * (0.2 / 0.5) ** 2
    np.testing.assert_allclose(np.stack(trace.values, axis=1), expected, rtol=1e-3)


def test_reading_in_blocks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pilot = lts()
    samples = sounder_samples(channels(6), np.fft.ifftshift(pilot))
    path = write_sounder(tmp_path / "site.hdf5", samples, sounder_attributes(pilot))
    at_once = converted(path)
    for frames_per_block in (0, 1, 4):
        monkeypatch.setattr(pilots, "BLOCK_SAMPLES", frames_per_block * CLIENTS * SLOT)
        for left, right in zip(converted(path).values, at_once.values, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-12)


def test_averaging_repetitions_divides_the_noise_power(tmp_path: Path) -> None:
    """Noise of power σ² per sample adds FFT_SIZE σ² / R to the gain; here is nothing else."""
    rng = np.random.default_rng(3)
    noise = rng.normal(scale=0.05, size=(400, 1, 1, 1, SLOT, 2))
    iq = np.rint(noise * 2**15).reshape(400, 1, 1, 1, 2 * SLOT)
    trace = converted(write_sounder(tmp_path / "noise.hdf5", iq, sounder_attributes(lts())))
    assert trace.values[0].mean() == pytest.approx(FFT_SIZE * 2 * 0.05**2 / REPETITIONS, rel=0.03)


def test_lost_pilots_of_one_client_are_interpolated(tmp_path: Path) -> None:
    pilot = lts()
    samples = sounder_samples(channels(1), np.fft.ifftshift(pilot))
    path = write_sounder(tmp_path / "site.hdf5", samples, sounder_attributes(pilot))
    whole = converted(path).values
    samples[1, 0, 2] = 0  # frame 1 of 0, 1, 3, 4
    lossy = converted(write_sounder(path, samples, sounder_attributes(pilot))).values
    np.testing.assert_array_equal(lossy[0], whole[0])
    assert lossy[2][1] == pytest.approx((whole[2][0] + whole[2][2]) / 2)
    samples[:, 0, 2] = 0
    assert converted(write_sounder(path, samples, sounder_attributes(pilot))).user_names == ("client 0", "client 1")


@pytest.mark.parametrize(("taps", "antenna"), [(1, 0), (6, 1)], ids=["flat", "selective"])
def test_argos_gain_is_the_mean_power_of_the_channel(tmp_path: Path, taps: int, antenna: int) -> None:
    response = channels(taps)
    trace = converted(write_argos(tmp_path / "ch1_los_loc1.hdf5", response), antenna)
    assert trace.quantity == "relative_gain"
    assert len(trace.values) == CLIENTS  # the noise slot is none
    assert trace.sample_period_s == pytest.approx(100_000 / 20e6)
    assert_gain(trace.values, expected_gain(response[:, :, antenna], np.fft.ifftshift(lts())))


def test_each_antenna_makes_every_pair_a_user(tmp_path: Path) -> None:
    samples = sounder_samples(channels(6), np.fft.ifftshift(lts()))
    sounder = write_sounder(tmp_path / "sounder.hdf5", samples, sounder_attributes(lts()))
    for path in (write_argos(tmp_path / "argos.hdf5", channels(6)), sounder):
        for antenna in (-1, 2):
            with pytest.raises(AsflError, match=f"antenna is {antenna}; the file has antennas 0 to 1"):
                converted(path, antenna)
        pairs = converted(path, "each")
        assert len(set(pairs.user_names)) == CLIENTS * ANTENNAS
        assert pairs.user_names[CLIENTS] == "client 0, antenna 1"
        one_by_one = [values for antenna in range(ANTENNAS) for values in converted(path, antenna).values]
        for values, expected in zip(pairs.values, one_by_one, strict=True):
            np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"FFT_SIZE": 0}, "/Data attribute FFT_SIZE is 0; give one number, 2 or more"),
        ({"RATE": np.nan}, "/Data attribute RATE is nan; give one number"),
        ({"CP_LEN": 200}, "SLOT_SAMP_LEN is 172; one symbol already takes .* CP_LEN 200"),
        ({"SLOT_SAMP_LEN": 200}, r"has shape \[6, 1, 3, 2, 344\]; .* \[any, any, any, any, 400\]"),
        ({"OFDM_PILOT_F": np.ones(3)}, "OFDM_PILOT_F holds 3 values of float64; give 128 numbers"),
        ({"OFDM_PILOT_F": np.zeros(128)}, "OFDM_PILOT_F is all zero or not finite"),
    ],
)
def test_errors_name_file_field_and_remedy(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    samples = sounder_samples(channels(1), np.fft.ifftshift(lts()))
    path = write_sounder(tmp_path / "site.hdf5", samples, sounder_attributes(lts()) | changed)
    with pytest.raises(AsflError, match=f"site.hdf5.*{message}"):
        converted(path)
    with pytest.raises(AsflError, match=r"turned into NPZ traces by tools/read_renew\.py"):
        read_trace(path)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_truncated_hdf5(tmp_path: Path, kept: float) -> None:
    path = write_argos(tmp_path / "argos.hdf5", channels(1))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(AsflError, match=r"argos.hdf5: not an HDF5 file, or a damaged or incomplete one"):
        converted(path)
