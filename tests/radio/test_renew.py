"""Gains from pilots in both HDF5 layouts, checked against channels made here in plain NumPy."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from renew_files import (
    ANTENNAS,
    CLIENTS,
    FFT_SIZE,
    REPETITIONS,
    SLOT,
    WRITTEN,
    assert_gain,
    channels,
    expected_gain,
    h5py,
    lts,
    quantise,
    sounder_attributes,
    sounder_samples,
    write_argos,
    write_sounder,
    zadoff_chu,
)

from asfl.config.errors import AsflError, MissingExtraError
from asfl.radio import renew as pilots
from asfl.radio.traces import read_trace


@pytest.mark.parametrize(("taps", "antenna"), [(1, 0), (6, 1)], ids=["flat", "selective"])
def test_sounder_gain_is_the_mean_power_of_the_channel(tmp_path: Path, taps: int, antenna: int) -> None:
    response, pilot = channels(taps), lts()
    samples = sounder_samples(response, np.fft.ifftshift(pilot))
    trace = read_trace(write_sounder(tmp_path / "site.hdf5", samples, sounder_attributes(pilot)), antenna=antenna)
    assert (trace.quantity, trace.source) == ("relative_gain", "site.hdf5")
    assert trace.user_names == ("client 0", "client 1", "client 2")
    assert trace.sample_period_s == pytest.approx(SLOT * 20 / 5e6)
    assert_gain(trace.values, expected_gain(response[:, :, antenna], np.fft.ifftshift(pilot)))


def test_sounder_pilot_with_dc_first_is_not_shifted(tmp_path: Path) -> None:
    response, pilot = channels(6), zadoff_chu()
    assert pilot[1] != 0
    path = write_sounder(tmp_path / "site.h5", sounder_samples(response, pilot), sounder_attributes(pilot))
    assert_gain(read_trace(path, "relative_gain").values, expected_gain(response[:, :, 0], pilot))


def test_sounder_accepts_older_names_scalars_native_order_and_more_cells(tmp_path: Path) -> None:
    response, pilot = channels(6), lts()
    samples = sounder_samples(response, np.fft.ifftshift(pilot))
    attributes = sounder_attributes(pilot)
    attributes["SYMBOL_LEN"] = int(attributes.pop("SLOT_SAMP_LEN")[0])
    attributes |= {"RATE": 5e6, "FFT_SIZE": FFT_SIZE, "PILOT_SEQ_TYPE": b"lts", "CONFIG": b"not JSON"}
    two_cells = np.concatenate([samples, samples[:, :, ::-1]], axis=1)
    trace = read_trace(write_sounder(tmp_path / "old.hdf5", two_cells[[0, 1, 3, 4]], attributes, "<i2"))
    assert_gain(trace.values, expected_gain(response[:, :, 0], np.fft.ifftshift(pilot)))


def test_sounder_file_of_a_simulator_that_skips_ofdm(tmp_path: Path) -> None:
    """Agora's channel simulator may write subcarriers, in the order of the pilot, where samples would be."""
    response, pilot = channels(6), lts()
    received = 0.2 * np.fft.fftshift(response, axes=-1) * pilot
    iq = quantise(received).reshape(WRITTEN, 1, CLIENTS, ANTENNAS, 2 * FFT_SIZE)
    attributes = sounder_attributes(pilot)
    attributes |= {"SLOT_SAMP_LEN": FFT_SIZE, "PREFIX_LEN": 0, "POSTFIX_LEN": 0, "CP_LEN": 0}
    attributes["CONFIG"] = [json.dumps({"freq_domain_channel": True})]
    trace = read_trace(write_sounder(tmp_path / "simulated.hdf5", iq, attributes))
    expected = expected_gain(response[:, :, 0], np.fft.ifftshift(pilot)) * (0.2 / 0.5) ** 2
    np.testing.assert_allclose(np.stack(trace.values, axis=1), expected, rtol=1e-3)


def test_reading_in_blocks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pilot = lts()
    samples = sounder_samples(channels(6), np.fft.ifftshift(pilot))
    path = write_sounder(tmp_path / "site.hdf5", samples, sounder_attributes(pilot))
    at_once = read_trace(path)
    for frames_per_block in (0, 1, 4):
        monkeypatch.setattr(pilots, "BLOCK_SAMPLES", frames_per_block * CLIENTS * SLOT)
        for left, right in zip(read_trace(path).values, at_once.values, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-12)


def test_averaging_repetitions_divides_the_noise_power(tmp_path: Path) -> None:
    """Noise of power σ² per sample adds FFT_SIZE σ² / R to the gain; here is nothing else."""
    rng = np.random.default_rng(3)
    noise = rng.normal(scale=0.05, size=(400, 1, 1, 1, SLOT, 2))
    iq = np.rint(noise * 2**15).reshape(400, 1, 1, 1, 2 * SLOT)
    trace = read_trace(write_sounder(tmp_path / "noise.hdf5", iq, sounder_attributes(lts())))
    assert trace.values[0].mean() == pytest.approx(FFT_SIZE * 2 * 0.05**2 / REPETITIONS, rel=0.03)


def test_lost_pilots_of_one_client_are_interpolated(tmp_path: Path) -> None:
    pilot = lts()
    samples = sounder_samples(channels(1), np.fft.ifftshift(pilot))
    path = write_sounder(tmp_path / "site.hdf5", samples, sounder_attributes(pilot))
    whole = read_trace(path).values
    samples[1, 0, 2] = 0  # frame 1 of 0, 1, 3, 4
    lossy = read_trace(write_sounder(path, samples, sounder_attributes(pilot))).values
    np.testing.assert_array_equal(lossy[0], whole[0])
    assert lossy[2][1] == pytest.approx((whole[2][0] + whole[2][2]) / 2)
    samples[:, 0, 2] = 0
    assert read_trace(write_sounder(path, samples, sounder_attributes(pilot))).user_names == ("client 0", "client 1")


@pytest.mark.parametrize(("taps", "antenna"), [(1, 0), (6, 1)], ids=["flat", "selective"])
def test_argos_gain_is_the_mean_power_of_the_channel(tmp_path: Path, taps: int, antenna: int) -> None:
    response = channels(taps)
    trace = read_trace(write_argos(tmp_path / "ch1_los_loc1.hdf5", response), antenna=antenna)
    assert trace.quantity == "relative_gain"
    assert len(trace.values) == CLIENTS  # the noise slot is none
    assert trace.sample_period_s == pytest.approx(100_000 / 20e6)
    assert_gain(trace.values, expected_gain(response[:, :, antenna], np.fft.ifftshift(lts())))


READ = {"FFT_SIZE", "CP_LEN", "PREFIX_LEN", "POSTFIX_LEN", "BS_FRAME_LEN", "RATE", "OFDM_PILOT_F", "SLOT_SAMP_LEN"}
Spoil = Callable[[NDArray[Any], dict[str, Any]], NDArray[Any]]


def without(name: str) -> Spoil:
    return lambda samples, attributes: (attributes.pop(name), samples)[1]


def having(name: str, value: object) -> Spoil:
    return lambda samples, attributes: (attributes.update({name: value}), samples)[1]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        *((without(name), f"/Data has no attribute {name}") for name in sounder_attributes(lts()) if name in READ),
        (having("FFT_SIZE", 0), "/Data attribute FFT_SIZE is 0; give one number, 2 or more"),
        (having("FFT_SIZE", [64, 64]), r"/Data attribute FFT_SIZE is \[64, 64\]; give one number"),
        (having("RATE", np.nan), "/Data attribute RATE is nan; give one number"),
        (having("CP_LEN", -1), "/Data attribute CP_LEN is -1.*; give one number, 0 or more"),
        (having("CP_LEN", 200), "SLOT_SAMP_LEN is 172; one symbol already takes .* CP_LEN 200"),
        (having("SLOT_SAMP_LEN", 200), r"has shape \[6, 1, 3, 2, 344\]; .* \[any, any, any, any, 400\]"),
        (having("OFDM_PILOT_F", np.ones(3)), "OFDM_PILOT_F holds 3 values of float64; give 128 numbers"),
        (having("OFDM_PILOT_F", ["a"] * 128), "OFDM_PILOT_F holds 128 values of object; give 128 numbers"),
        (having("OFDM_PILOT_F", np.zeros(128)), "OFDM_PILOT_F is all zero or not finite"),
        (having("OFDM_PILOT_F", np.full(128, 5e-324)), "OFDM_PILOT_F is all zero or not finite, or absurd"),
        (having("BS_FRAME_LEN", 1e308), "BS_FRAME_LEN is 1e.308; give one number, 1 or more, and at most 1e.15"),
        (lambda samples, _: samples[:, :, :, :0], r"Pilot_Samples has shape \[6, 1, 3, 0, 344\]"),
        (lambda samples, _: samples[:0], r"Pilot_Samples has shape \[0, 1, 3, 2, 344\]"),
        (lambda samples, _: samples * 0, "Pilot_Samples of antenna 0 are all zero; no frame was recorded"),
    ],
)
def test_sounder_errors_name_file_field_and_remedy(tmp_path: Path, spoil: Spoil, message: str) -> None:
    attributes = sounder_attributes(lts())
    samples = spoil(sounder_samples(channels(1), np.fft.ifftshift(lts())), attributes)
    path = write_sounder(tmp_path / "site.hdf5", samples, attributes)
    with pytest.raises(AsflError, match=message) as caught:
        read_trace(path)
    assert "site.hdf5" in str(caught.value)


def test_samples_of_another_type_and_other_quantities(tmp_path: Path) -> None:
    samples = sounder_samples(channels(1), np.fft.ifftshift(lts()))
    path = write_sounder(tmp_path / "site.hdf5", samples, sounder_attributes(lts()), "<f4")
    with pytest.raises(AsflError, match="/Data/Pilot_Samples holds float32; IQ samples have to be int16"):
        read_trace(path)
    with pytest.raises(AsflError, match="gives no snr_db; leave the quantity"):
        read_trace(path, "snr_db")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("samples_per_user", None, "/ has no attribute samples_per_user"),
        ("samples_per_user", 128, "samples_per_user is 128; give one number, 175 or more"),
        ("num_mob_ant", 0, "num_mob_ant is 0; give one number, 1 or more"),
        ("num_mob_ant", 8, r"/Pilot_Samples has shape \[6, 2, 896, 2\]; .* \[any, any, 2016, 2\]"),
    ],
)
def test_argos_errors_name_file_field_and_remedy(tmp_path: Path, name: str, value: int | None, message: str) -> None:
    path = write_argos(tmp_path / "ch1_los_loc1.hdf5", channels(1), **{name: value})
    with pytest.raises(AsflError, match=message) as caught:
        read_trace(path)
    assert "ch1_los_loc1.hdf5" in str(caught.value)


def test_each_antenna_makes_every_pair_a_user(tmp_path: Path) -> None:
    samples = sounder_samples(channels(6), np.fft.ifftshift(lts()))
    sounder = write_sounder(tmp_path / "sounder.hdf5", samples, sounder_attributes(lts()))
    for path in (write_argos(tmp_path / "argos.hdf5", channels(6)), sounder):
        for antenna in (-1, 2):
            with pytest.raises(AsflError, match=f"antenna is {antenna}; the file has antennas 0 to 1"):
                read_trace(path, antenna=antenna)
        pairs = read_trace(path, antenna="each")
        assert len(set(pairs.user_names)) == CLIENTS * ANTENNAS
        assert pairs.user_names[CLIENTS] == "client 0, antenna 1"
        one_by_one = [values for antenna in range(ANTENNAS) for values in read_trace(path, antenna=antenna).values]
        for values, expected in zip(pairs.values, one_by_one, strict=True):
            np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("shape", [(), (6, 0, 896, 2)])
def test_without_antennas_there_is_nothing_to_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = write_argos(tmp_path / "argos.hdf5", channels(1))
    with h5py.File(path, "a") as file:
        del file["Pilot_Samples"]
        file.create_dataset("Pilot_Samples", shape, "<i2")
    with pytest.raises(AsflError, match=r"has shape \[.*\]; it has to have 4 axes, none of length 0"):
        read_trace(path, antenna="each")


def test_hdf5_of_other_content(tmp_path: Path) -> None:
    path = tmp_path / "other.hdf5"
    with h5py.File(path, "w") as file:
        file["Data"] = np.arange(3)
        file.create_group("Pilot_Samples")
    with pytest.raises(AsflError, match=r"no dataset /Data/Pilot_Samples .* the file holds: Data, Pilot_Samples"):
        read_trace(path)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_truncated_hdf5(tmp_path: Path, kept: float) -> None:
    path = write_argos(tmp_path / "argos.hdf5", channels(1))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(AsflError, match=r"argos.hdf5: not an HDF5 file, or a damaged or incomplete one"):
        read_trace(path)


def test_hdf5_whose_samples_cannot_be_decompressed(tmp_path: Path) -> None:
    pilot = lts()
    path = tmp_path / "site.hdf5"
    samples = sounder_samples(channels(1), np.fft.ifftshift(pilot))
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("Data/Pilot_Samples", data=samples, compression="gzip")
        file["Data"].attrs.update(sounder_attributes(pilot))
        chunk = dataset.id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)
    with pytest.raises(AsflError, match="a damaged or incomplete one"):
        read_trace(path)


def test_missing_h5py_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_argos(tmp_path / "argos.hdf5", channels(1))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"reading RENEW/Argos HDF5 files needs .*asfl\[channels\]"):
        read_trace(path)


def test_a_shape_that_says_more_than_the_file_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "lie.hdf5"
    with h5py.File(path, "w") as file:
        group = file.create_group("Data")
        group.create_dataset("Pilot_Samples", (10**12, 1, 3, 2, 160), dtype="<i2", chunks=(1, 1, 3, 2, 160))
    with pytest.raises(AsflError, match=r"claim to be \[1000000000000, 1, 3, 2, 160\], .* bytes, but the file has"):
        read_trace(path)


def test_samples_in_another_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.hdf5"
    with h5py.File(path, "w") as file:
        file["Pilot_Samples"] = h5py.ExternalLink(write_argos(tmp_path / "argos.hdf5", channels(1)), "Pilot_Samples")
    with pytest.raises(AsflError, match="kept in another file"):
        read_trace(path)
