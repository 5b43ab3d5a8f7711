"""What one resource block of a 5G NR link carries and loses at an SNR, from tables of block error rates.

Block after block, as TS 38.214 and 38.321 have it, simplified where said:

- A resource block of B Hz holds ⌊B / 180 kHz⌋ physical ones (15 kHz apart, slots of 1 ms, 12 of 14 symbols for data)
  and carries a transport block of its own in every slot, cut into code blocks of at most 8,448 bits.
- A transport block that fails is sent again, up to 4 times in all. The receiver adds up what it got (Chase combining),
  so the n-th attempt sees n times the SNR. Sixteen processes keep the air busy meanwhile: a repetition costs its slot
  (time and energy), not its round trip.
- At low SNR every attempt is repeated over 2, 4, 8 or 16 slots.
- Link adaptation takes what carries most among all coding schemes and repetitions whose first attempt fails with a
  probability of at most 10 %; where none does, the sturdiest.
- What HARQ gives up is sent again from the layer above (RLC), with the sturdiest scheme, up to 4 times. If that fails,
  the link is lost, and the packet with it.

Error rates are those of Sionna SYS (Apache-2.0, Copyright NVIDIA), written into a file by `tools/write_bler.py`.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.units import from_db, to_db

Floats = NDArray[np.float64]
Direction = Literal["uplink", "downlink"]

PHYSICAL_BLOCK_HZ = 180e3
SLOT_S = 1e-3
DATA_SYMBOLS = 12 * 12
"""Of a physical block in a slot: 12 subcarriers, 14 symbols less 2 of pilots."""
MOST_CODE_BLOCK_BITS = 8448
CRC_BITS = 24
TARGET = 0.1
ATTEMPTS = 4
REPETITIONS = (1, 2, 4, 8, 16)
RLC_ATTEMPTS = 4
PACKET_BLOCKS = 1000
"""Transport blocks of a packet, for its loss: a thousand more or less move the SNR at which links are lost by little,
because it is lost within a few dB."""
GRID_DB: Floats = np.arange(-45.0, 45.05, 0.1)
LEAST_LOSS = 1e-15
FIT_FROM_DB, FIT_TO_DB = -15.0, 25.0
"""Where the smooth fit is made, and its error measured: below links hardly live, above they carry their most."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One resource block of a link, over `GRID_DB`."""

    efficiency: Floats
    """bit/s and Hz that arrive, repetitions counted."""
    lost_known: Floats
    """log₁₀ of the probability that a packet is lost at this SNR."""
    lost_rayleigh: Floats
    """The same at this mean SNR under Rayleigh fading."""
    fit_scale: float
    """Of the smooth fit: efficiency ≈ min(`fit_scale` · log₂(1 + SNR / `fit_gap`), `most`)."""
    fit_gap: float
    most: float
    fit_error: float
    """Root mean square of the fit's relative error where it was fitted."""
    fit_worst: float
    """The largest."""

    def carried(self, snr: ArrayLike) -> Floats:
        """bit/s and Hz at an SNR (linear); below the table in proportion to it."""
        decibel = to_db(np.asarray(snr, float))
        below = np.minimum(decibel - GRID_DB[0], 0.0)
        return np.asarray(np.interp(decibel, GRID_DB, self.efficiency) * 10.0 ** (below / 10))

    def fitted(self, snr: ArrayLike) -> Floats:
        per_hz = self.fit_scale * np.log1p(np.asarray(snr, float) / self.fit_gap) / np.log(2)
        return np.asarray(np.minimum(per_hz, self.most))

    def lost(self, snr: ArrayLike, *, rayleigh: bool) -> Floats:
        """Probability that a packet is lost, at an SNR or at a mean SNR; 1 in silence."""
        decibel = to_db(np.asarray(snr, float))
        table = self.lost_rayleigh if rayleigh else self.lost_known
        above = np.maximum(decibel - GRID_DB[-1], 0.0)  # under fading the loss falls with the SNR for ever
        return np.asarray(10.0 ** (np.interp(decibel, GRID_DB, table) - (above / 10 if rayleigh else 0.0)))


@lru_cache(maxsize=32)
def curve_of(direction: Direction, rb_bandwidth_hz: float) -> Curve:
    tables = _tables()
    snr_db, per_symbol = tables["snr_db"], tables[f"{direction}_bits_per_symbol"]
    symbols = DATA_SYMBOLS * max(1, int(rb_bandwidth_hz / PHYSICAL_BLOCK_HZ))
    block_bits = np.floor(per_symbol * symbols / 8) * 8
    parts = np.ceil((block_bits + CRC_BITS) / MOST_CODE_BLOCK_BITS)
    errors = _at_size(tables[f"{direction}_bler"], tables["code_block_bits"], (block_bits + CRC_BITS) / parts)

    def fails(scheme: int, times_snr: float) -> Floats:
        """[grid] that an attempt of this scheme fails with so many times the SNR: any of its code blocks does."""
        bler = np.interp(GRID_DB + to_db(times_snr), snr_db, errors[scheme], left=1.0)
        return np.asarray(1.0 - (1.0 - bler) ** parts[scheme])

    best, sturdiest = np.zeros_like(GRID_DB), np.zeros_like(GRID_DB)
    for repeat in REPETITIONS:
        for scheme, bits in enumerate(block_bits):
            failing = [fails(scheme, repeat * attempt) for attempt in range(1, ATTEMPTS + 1)]
            slots = repeat * (1.0 + sum(failing[:-1]))
            carried = bits * (1.0 - failing[-1]) / (slots * SLOT_S * rb_bandwidth_hz)
            best = np.maximum(best, np.where(failing[0] <= TARGET, carried, 0.0))
            if scheme == 0 and repeat == REPETITIONS[-1]:
                sturdiest = carried
    efficiency = np.maximum(np.where(best > 0, best, sturdiest), 1e-12 * from_db(GRID_DB))
    given_up = fails(0, REPETITIONS[-1] * ATTEMPTS) ** RLC_ATTEMPTS
    lost = np.maximum(-np.expm1(PACKET_BLOCKS * np.log1p(-np.minimum(given_up, 1 - 1e-16))), LEAST_LOSS)
    return Curve(efficiency, np.log10(lost), np.log10(_under_fading(lost)), *_fit(efficiency))


@lru_cache(maxsize=1)
def _tables() -> dict[str, Floats]:
    with files("asfl.radio").joinpath("bler.npz").open("rb") as file, np.load(file) as archive:
        return {name: archive[name].astype(np.float64) for name in archive.files if name != "source"}


def _at_size(bler: Floats, sizes: Floats, wanted: Floats) -> Floats:
    """[schemes, SNRs] error rates of code blocks of the wanted size, between the two nearest that were simulated."""
    place = np.interp(np.log(wanted), np.log(sizes), np.arange(len(sizes)))
    before = np.minimum(place.astype(int), len(sizes) - 2)
    share, scheme = (place - before)[:, None], np.arange(len(wanted))
    return np.asarray((1 - share) * bler[scheme, before] + share * bler[scheme, before + 1])


def _under_fading(lost: Floats) -> Floats:
    """∫ lost(χ · SNR) e^(−χ) dχ over Exp(1), at every SNR of the grid; below the grid everything is lost."""
    fading_db = np.arange(-90.0, 20.0, 0.1)
    fading = from_db(fading_db)
    edges = np.sqrt(fading[1:] * fading[:-1])
    weight = np.diff(-np.exp(-np.concatenate([[0.0], edges, [np.inf]])))
    at = np.interp(np.add.outer(GRID_DB, fading_db), GRID_DB, lost, left=1.0)
    return np.asarray(np.clip(at @ weight, LEAST_LOSS, 1.0))


def _fit(efficiency: Floats) -> tuple[float, float, float, float, float]:
    """Scale and gap that are nearest in ratio, the most that is carried, and how far off they are."""
    from scipy.optimize import least_squares

    within = (GRID_DB >= FIT_FROM_DB) & (GRID_DB <= FIT_TO_DB)
    snr, wanted, most = from_db(GRID_DB[within]), efficiency[within], float(efficiency.max())

    def off(logs: Floats) -> Floats:
        guess = np.minimum(np.exp(logs[0]) * np.log2(1 + snr / np.exp(logs[1])), most)
        return np.asarray(np.log(guess / wanted))

    found = least_squares(off, np.zeros(2)).x
    error = np.expm1(off(found))
    return (
        float(np.exp(found[0])),
        float(np.exp(found[1])),
        most,
        float(np.sqrt((error**2).mean())),
        float(np.abs(error).max()),
    )
