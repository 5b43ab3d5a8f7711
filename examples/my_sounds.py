"""Data that are no images: half a second of sound, as the strengths of 32 frequency bands in 8 moments.

asfl --plugin examples/my_sounds.py run demo --set data.name=sounds --set model.architecture=mlp
"""

import numpy as np
from numpy.typing import NDArray

import asfl
from asfl.config.randomness import random_stream

RATE_HZ, SAMPLES, MOMENTS, BANDS, PEOPLE = 4096, 2048, 8, 32, 24
CALLS = {"steady": 0.0, "rising": 1.5, "falling": -0.6, "trill": 0.0}
"""By how much the pitch has changed at the end, as a share of where it began."""


def draw(count: int, purpose: str) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Vectors [count, MOMENTS · BANDS], which call it is, and who makes it: everybody has a pitch of their own."""
    random = random_stream(0, purpose)
    labels, person = random.integers(len(CALLS), size=count), random.integers(PEOPLE, size=count)
    time = np.arange(SAMPLES) / SAMPLES
    change = np.array(list(CALLS.values()))[labels, None]
    pitch = (300 + 20 * person + 30 * random.standard_normal(count))[:, None] * (1 + change * time)
    phase = 2 * np.pi * np.cumsum(pitch, axis=1) / RATE_HZ
    loud = np.where(labels[:, None] == 3, np.sin(2 * np.pi * 12 * time) > 0, 1.0)
    sound = loud * np.sin(phase) + 0.7 * random.standard_normal((count, SAMPLES))
    spectrum = np.abs(np.fft.rfft(sound.reshape(count, MOMENTS, -1), axis=2))[:, :, 1:]
    bands = spectrum.reshape(count, MOMENTS, BANDS, -1).mean(axis=3)
    return np.log(bands).reshape(count, -1), labels, person


sounds, calls, people = draw(2400, "sounds to learn")
asfl.register_arrays("sounds", sounds, calls, *draw(600, "sounds to test")[:2], train_groups=people)
