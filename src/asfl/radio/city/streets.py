"""A city from above, and people who walk through its streets."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream

Floats = NDArray[np.float64]

ROOF_M = 1.5
"""What is higher above the ground is a building."""
CLEAR_M = 3.0
"""People keep this far from walls."""
HEADINGS = 16
"""Directions that somebody before a wall chooses from."""


@dataclass(frozen=True, eq=False)
class CityMap:
    """How high everything is, seen from above."""

    height_m: Floats
    """[rows, columns] above the lowest ground; row 0 is in the south."""
    west_m: float
    south_m: float
    cell_m: float

    @property
    def extent_m(self) -> tuple[float, float, float, float]:
        """West, east, south, north."""
        rows, columns = self.height_m.shape
        return (
            self.west_m,
            self.west_m + columns * self.cell_m,
            self.south_m,
            self.south_m + rows * self.cell_m,
        )

    def streets(self) -> NDArray[np.bool_]:
        """[rows, columns] where people can walk: outdoors, off the walls, and not in a closed yard."""
        clear = max(1, round(CLEAR_M / self.cell_m))
        open_ = ~ndimage.binary_dilation(self.height_m > ROOF_M, iterations=clear)
        open_[[0, -1]], open_[:, [0, -1]] = False, False
        parts, count = ndimage.label(open_)
        if not count:
            raise AsflError("nowhere in this part of the scene is outdoors; choose another --radius")
        return np.asarray(parts == 1 + np.bincount(parts.ravel())[1:].argmax())

    def cell_of(self, position_m: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row and column of positions [..., 2], at the edge if they are beyond it."""
        place = (position_m - (self.west_m, self.south_m)) / self.cell_m
        rows, columns = self.height_m.shape
        return np.clip(place[..., 1].astype(int), 0, rows - 1), np.clip(place[..., 0].astype(int), 0, columns - 1)

    def centre_of(self, cells: NDArray[np.int64]) -> Floats:
        """[..., 2] the middle of cells [..., 2] (row, column)."""
        return np.asarray(np.array([self.west_m, self.south_m]) + (cells[..., ::-1] + 0.5) * self.cell_m)


def walk(city: CityMap, start_m: Floats, steps: int, step_m: float, seed: int) -> Floats:
    """[N, steps, 2] where people are who go straight on until a wall, and then turn somewhere else."""
    streets, headings = city.streets(), 2 * np.pi * np.arange(HEADINGS) / HEADINGS
    ways = np.stack([np.cos(headings), np.sin(headings)], axis=1) * step_m
    positions = np.empty((len(start_m), steps, 2))
    for client, start in enumerate(start_m):
        luck = random_stream(seed, "turns", client)
        here, way = start, ways[luck.integers(HEADINGS)]
        for step in range(steps):
            positions[client, step] = here
            if not streets[city.cell_of(here + way)]:
                free = [other for other in luck.permutation(ways) if streets[city.cell_of(here + other)]]
                way = free[0] if free else np.zeros(2)
            here = here + way
    return positions
