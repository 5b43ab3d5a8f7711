"""Turn an HDF5 recording of uplink pilots into a channel trace that asfl reads.

    pip install h5py
    python tools/read_renew.py RECORDING.hdf5 TRACE.npz [--antenna 0]

There are two layouts: RENEW Sounder (also written by Agora), and the older Argos. Both keep int16 IQ samples of one
pilot slot per client antenna, in every frame and at every base-station antenna; a slot becomes a gain. Power is not
calibrated: gains are relative. Every pair of a client's and a base-station antenna is a user, as in the paper, so that
a file of few clients can play many; with --antenna only those of one base-station antenna.

Source of both layouts: PYTHON/IrisUtils/hdf5_lib.py of https://github.com/renew-wireless/RENEWLab, where
Argos is called "legacy".
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError

Antenna = int | Literal["each"]
IQ_SCALE = 2.0**-15
"""Full scale of int16 samples is 1."""

BLOCK_SAMPLES = 2**20
"""Complex samples handled at once, 16 MB as complex128: recordings may be larger than memory."""

_LTS_BELOW_DC = (1, 1, -1, -1, 1, 1, -1, 1, -1, 1, 1, 1, 1, 1, 1, -1, -1, 1, 1, -1, 1, -1, 1, 1, 1, 1)
_LTS_ABOVE_DC = (1, -1, -1, 1, 1, -1, 1, -1, 1, -1, -1, -1, -1, -1, 1, 1, -1, -1, 1, -1, 1, -1, 1, 1, 1, 1)
LTS = np.array((*[0] * 6, *_LTS_BELOW_DC, 0, *_LTS_ABOVE_DC, *[0] * 5), dtype=np.complex128)
"""Long training sequence of IEEE 802.11a on 64 bins with DC in the middle; 52 of them are used."""


@dataclass(frozen=True, eq=False)
class PilotFormat:
    """Where the pilot is in a slot, and what it was when it was sent."""

    pilot: NDArray[np.complex128]
    """Frequency-domain pilot [fft_size]; zero on unused bins."""
    symbol_starts: tuple[int, ...]
    """First sample of each repetition, after its cyclic prefix."""
    dc_centred: bool = True
    """Whether `pilot` has DC in the middle, rather than in bin 0."""
    in_frequency_domain: bool = False
    """Whether the "samples" already are subcarriers, in the order of `pilot`."""

    def gains(self, samples: NDArray[np.complex128]) -> NDArray[np.float64]:
        """Mean power of the channel estimate over the used subcarriers: [..., samples] -> [...], linear."""
        # The FFT is linear, so the mean of the estimates is the estimate from the mean symbol.
        spectrum = np.mean([samples[..., start : start + len(self.pilot)] for start in self.symbol_starts], axis=0)
        if not self.in_frequency_domain:
            spectrum = np.fft.fft(spectrum, axis=-1)
            if self.dc_centred:
                spectrum = np.fft.fftshift(spectrum, axes=-1)
        used = self.pilot != 0
        gain: NDArray[np.float64] = np.mean(np.abs(spectrum[..., used] / self.pilot[used]) ** 2, axis=-1)
        return gain


def gains_in_blocks(
    pilot_format: PilotFormat,
    read_slots: Callable[[slice], NDArray[np.int16]],
    frames: int,
    samples_per_frame: int,
) -> NDArray[np.float64]:
    """Gains [frames, clients]; NaN where a slot is all zero, that is, was never written.

    `read_slots` gives the int16 I and Q of some frames, [block, clients, samples, 2].
    """
    block = max(1, BLOCK_SAMPLES // samples_per_frame)
    gains = []
    for first in range(0, frames, block):
        slots = read_slots(slice(first, min(first + block, frames)))
        iq = slots.astype(np.float64) * IQ_SCALE
        written = slots.any(axis=(2, 3))
        gains.append(np.where(written, pilot_format.gains(iq[..., 0] + 1j * iq[..., 1]), np.nan))
    return np.concatenate(gains)


ARGOS_RATE_HZ = 20e6
ARGOS_SYMBOL_STARTS = (47, 111)
"""First samples of the two LTS bodies in a slot."""

MAX_ATTRIBUTE = 1e15
"""Of samples in a slot, slots in a frame, samples in a second: products and ratios of such numbers are finite."""

_DAMAGED = (OSError, AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError)
"""What h5py raises on a damaged file, depending on where the damage is."""


def read_hdf5(path: Path, antenna: Antenna) -> tuple[list[str], NDArray[np.float64], float]:
    """Names, gains [frames, users] and seconds of a frame, from either layout: of one antenna, or of each.

    A frame without any client is dropped, since files are created with room for 2,000 frames. If the pilots
    of just some clients are lost in a frame, theirs are missing values, treated as in a table.
    """
    try:
        with h5py.File(path, "r") as file:
            if isinstance(file.get("Data/Pilot_Samples"), h5py.Dataset):
                samples, antenna_axis = file["Data/Pilot_Samples"], 3
                read = partial(_read_sounder, path, file["Data"])
            elif isinstance(file.get("Pilot_Samples"), h5py.Dataset):
                samples, antenna_axis = file["Pilot_Samples"], 1
                read = partial(_read_argos, path, file)
            else:
                raise AsflError(
                    f"{path}: no dataset /Data/Pilot_Samples (Sounder) or /Pilot_Samples (Argos) in it; "
                    f"the file holds: {', '.join(file) or 'nothing'}"
                )
            antennas = range(samples.shape[antenna_axis]) if antenna == "each" else [antenna]
            of_antenna = [read(number) for number in antennas]
    except _DAMAGED as error:
        raise AsflError(f"{path}: not an HDF5 file, or a damaged or incomplete one: {error}") from error
    frame_period_s = of_antenna[0][1]
    gains = np.hstack([of_one for of_one, _ in of_antenna])
    gains = gains[~np.isnan(gains).all(axis=1)]
    if len(gains) == 0:
        which = "every antenna" if antenna == "each" else f"antenna {antenna}"
        raise AsflError(f"{path}: Pilot_Samples of {which} are all zero; no frame was recorded")
    clients = range(gains.shape[1] // len(antennas))
    names = [
        f"client {client}" + (f", antenna {number}" if antenna == "each" else "")
        for number in antennas
        for client in clients
    ]
    return names, gains, frame_period_s


def _read_sounder(path: Path, group: Any, antenna: int) -> tuple[NDArray[np.float64], float]:
    """Gains [frames, clients] and frame period from samples (frame, cell, client, antenna, 2 × slot length).

    Only the first cell is read: a client is served by one base station, whose antennas `antenna` counts.
    """
    dataset = group["Pilot_Samples"]

    def number(name: str, minimum: float) -> float:
        return _attribute(path, "/Data", group.attrs, name, minimum)

    slot_names = ("SLOT_SAMP_LEN", "SYMBOL_LEN")  # the second in older files
    slot_name = next((name for name in slot_names if name in group.attrs), slot_names[0])
    slot, fft_size, cp_len = int(number(slot_name, 1)), int(number("FFT_SIZE", 2)), int(number("CP_LEN", 0))
    prefix, postfix = int(number("PREFIX_LEN", 0)), int(number("POSTFIX_LEN", 0))
    frame_period_s = slot * number("BS_FRAME_LEN", 1) / number("RATE", 1)
    repetitions = (slot - prefix - postfix) // (fft_size + cp_len)
    if repetitions < 1:
        raise AsflError(
            f"{path}: /Data attribute {slot_name} is {slot}; one symbol already takes PREFIX_LEN {prefix} + "
            f"CP_LEN {cp_len} + FFT_SIZE {fft_size} + POSTFIX_LEN {postfix} samples"
        )
    _check_samples(path, "/Data/Pilot_Samples", dataset, (None, None, None, None, 2 * slot), antenna, antenna_axis=3)
    pilot = _sounder_pilot(path, group.attrs, fft_size)
    pilot_format = PilotFormat(
        pilot,
        tuple(prefix + cp_len + symbol * (fft_size + cp_len) for symbol in range(repetitions)),
        # With DC in the middle, bin 1 is unused, at the edge of the band; with DC first, it is used.
        dc_centred=bool(pilot[1] == 0),
        in_frequency_domain=_skips_ofdm(group.attrs),
    )

    def read_slots(frames: slice) -> NDArray[np.int16]:
        slots: NDArray[np.int16] = dataset[frames, 0, :, antenna, :]
        return slots.reshape(*slots.shape[:2], slot, 2)

    return gains_in_blocks(pilot_format, read_slots, dataset.shape[0], dataset.shape[2] * slot), frame_period_s


def _sounder_pilot(path: Path, attributes: Mapping[str, Any], fft_size: int) -> NDArray[np.complex128]:
    """Complex pilot [fft_size] from its real and imaginary parts, which alternate in OFDM_PILOT_F."""
    if "OFDM_PILOT_F" not in attributes:
        raise AsflError(f"{path}: /Data has no attribute OFDM_PILOT_F; give the pilot, 2 × FFT_SIZE numbers")
    parts = np.asarray(attributes["OFDM_PILOT_F"]).ravel()
    if parts.size != 2 * fft_size or parts.dtype.kind not in "fiu":
        raise AsflError(
            f"{path}: /Data attribute OFDM_PILOT_F holds {parts.size} values of {parts.dtype}; "
            f"give {2 * fft_size} numbers, 2 × FFT_SIZE"
        )
    pilot = parts.astype(np.float64).view(np.complex128)
    sizes = np.abs(parts[parts != 0].astype(np.float64))
    if not sizes.size or not ((sizes >= 1 / MAX_ATTRIBUTE) & (sizes <= MAX_ATTRIBUTE)).all():
        raise AsflError(f"{path}: /Data attribute OFDM_PILOT_F is all zero or not finite, or absurd; give the pilot")
    return pilot


def _skips_ofdm(attributes: Mapping[str, Any]) -> bool:
    """Whether Agora's simulator wrote subcarriers instead of samples; its JSON in CONFIG then says so.

    One more FFT would spread each subcarrier over all bins, and the estimate would no longer be the channel.
    """
    text = np.asarray(attributes.get("CONFIG", "")).ravel()
    try:
        config = json.loads(text[0])
    except (IndexError, TypeError, ValueError):
        return False
    return isinstance(config, dict) and config.get("freq_domain_channel") is True


def _read_argos(path: Path, file: Any, antenna: int) -> tuple[NDArray[np.float64], float]:
    """Gains [frames, clients] and frame period from samples (frame, antenna, (K + 1) × slot length, 2).

    The slot after those of the K clients holds noise alone and is not read.
    """
    dataset = file["Pilot_Samples"]
    slot = int(_attribute(path, "/", file.attrs, "samples_per_user", ARGOS_SYMBOL_STARTS[-1] + len(LTS)))
    clients = int(_attribute(path, "/", file.attrs, "num_mob_ant", 1))
    frame_period_s = _attribute(path, "/", file.attrs, "frame_length", 1) / ARGOS_RATE_HZ
    _check_samples(path, "/Pilot_Samples", dataset, (None, None, (clients + 1) * slot, 2), antenna, antenna_axis=1)

    def read_slots(frames: slice) -> NDArray[np.int16]:
        slots: NDArray[np.int16] = dataset[frames, antenna, : clients * slot, :]
        return slots.reshape(-1, clients, slot, 2)

    pilot_format = PilotFormat(LTS, ARGOS_SYMBOL_STARTS)
    return gains_in_blocks(pilot_format, read_slots, dataset.shape[0], clients * slot), frame_period_s


def _attribute(path: Path, where: str, attributes: Mapping[str, Any], name: str, minimum: float) -> float:
    """A number kept as a scalar or, by the Sounder, as an array of length 1."""
    if name not in attributes:
        raise AsflError(f"{path}: {where} has no attribute {name}; give one number, {minimum:g} or more")
    value = np.asarray(attributes[name])
    if value.size != 1 or value.dtype.kind not in "fiu" or not minimum <= value.item() <= MAX_ATTRIBUTE:
        raise AsflError(
            f"{path}: {where} attribute {name} is {str(value.tolist())[:60]}; give one number, {minimum:g} or more, "
            f"and at most {MAX_ATTRIBUTE:g}"
        )
    return float(value.item())


def _check_samples(
    path: Path, where: str, dataset: Any, shape: tuple[int | None, ...], antenna: int, antenna_axis: int
) -> None:
    """Raise unless the dataset is int16 of that shape (None: any length above 0) and has that antenna."""
    if dataset.dtype.kind != "i" or dataset.dtype.itemsize != 2:
        raise AsflError(f"{path}: {where} holds {dataset.dtype}; IQ samples have to be int16")
    actual = dataset.shape or ()
    if len(actual) != len(shape) or any(
        have == 0 or want not in (None, have) for have, want in zip(actual, shape, strict=True)
    ):
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise AsflError(f"{path}: {where} has shape {list(actual)}; by its attributes it has to be [{wanted}]")
    if not 0 <= antenna < actual[antenna_axis]:
        raise AsflError(f"{path}: antenna is {antenna}; the file has antennas 0 to {actual[antenna_axis] - 1}")


def convert(recording: Path, trace: Path, antenna: Antenna = "each") -> None:
    names, gains, frame_period_s = read_hdf5(recording, antenna)
    np.savez_compressed(trace, relative_gain=gains.T, dt_s=frame_period_s, user_names=names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="RENEW or Argos HDF5 recording -> NPZ for scenario.channel.trace_file")
    parser.add_argument("recording", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--antenna", type=int, default="each")
    given = parser.parse_args()
    convert(given.recording, given.trace, given.antenna)
