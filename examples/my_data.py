"""A data set: discs, squares, diamonds, crosses and rings in noisy images of 16×16 pixels.

asfl --plugin examples/my_data.py run demo --set data.name=shapes
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import asfl
from asfl.config.randomness import random_stream

SIZE, NOISE = 16, 20.0
Floats = NDArray[np.float64]

SHAPES: dict[str, Callable[[Floats, Floats], NDArray[np.bool_]]] = {
    "disc": lambda x, y: np.hypot(x, y) < 1,
    "square": lambda x, y: np.maximum(x, y) < 0.9,
    "diamond": lambda x, y: x + y < 1.2,
    "cross": lambda x, y: (np.minimum(x, y) < 0.3) & (np.maximum(x, y) < 1),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.8) < 0.25,
}
"""Whether a point belongs to the shape; x and y are distances from its centre, in units of its size."""


def draw(count: int, purpose: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [count, SIZE, SIZE] and labels [count]; the same purpose always gives the same ones."""
    random = random_stream(0, purpose)
    labels = random.permutation(np.arange(count) % len(SHAPES))
    size = random.uniform(4, 6, (count, 1, 1))
    row, column = random.uniform(7, SIZE - 7, (2, count, 1, 1))
    pixel = np.arange(SIZE) + 0.5
    y, x = np.broadcast_arrays(np.abs(pixel[:, None] - row) / size, np.abs(pixel - column) / size)
    inside = np.zeros((count, SIZE, SIZE), dtype=bool)
    for label, shape in enumerate(SHAPES.values()):
        inside[labels == label] = shape(x[labels == label], y[labels == label])
    bright = np.where(inside, random.uniform(120, 220, (count, 1, 1)), 60)
    return np.clip(bright + NOISE * random.standard_normal(inside.shape), 0, 255).astype(np.uint8), labels


asfl.register_arrays("shapes", *draw(1500, "shapes to learn"), *draw(400, "shapes to test"))
