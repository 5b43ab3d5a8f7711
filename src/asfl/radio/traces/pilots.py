"""From the samples of a pilot slot to a channel gain.

With y_r the r-th of R repeated OFDM symbols in a slot, cyclic prefix removed, and P the pilot on its bins 𝒦:

    ĥ[k] = FFT(1/R Σ_r y_r)[k] / P[k],   k ∈ 𝒦          gain = 1/|𝒦| Σ_k |ĥ[k]|²

Repetitions are averaged as complex numbers, before the power is taken: that divides the noise power, a bias
of the gain, by R, where averaging |ĥ|² would keep all of it. They follow each other within microseconds, so
neither fading nor the carrier offset turns the phase by much between them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
