"""Path loss without line of sight, TR 38.901 Table 7.4.1-1, for neighbours that nobody draws places for."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import from_db
from asfl.radio.cell.places import CLIENT_M, NEAREST_M, SERVER_M

if TYPE_CHECKING:
    from asfl import config

Floats = NDArray[np.float64]

STREET_M, HOUSE_M = 20.0, 5.0
"""W and h of the rural model."""


def unseen_gain(distance_m: Floats, cell: "config.Cell") -> Floats:
    """Linear gain at a distance in the plane; the formulas without line of sight, which dominate beyond a street."""
    server_m, ghz = SERVER_M[cell.model], cell.carrier_hz / 1e9
    flat = np.maximum(distance_m, NEAREST_M[cell.model])
    log_d, log_f = np.log10(np.hypot(flat, server_m - CLIENT_M)), np.log10(ghz)
    if cell.model == "umi":
        loss_db = 35.3 * log_d + 22.4 + 21.3 * log_f
    elif cell.model == "uma":
        loss_db = 13.54 + 39.08 * log_d + 20 * log_f
    else:
        loss_db = (
            161.04
            - 7.1 * np.log10(STREET_M)
            + 7.5 * np.log10(HOUSE_M)
            - (24.37 - 3.7 * (HOUSE_M / server_m) ** 2) * np.log10(server_m)
            + (43.42 - 3.1 * np.log10(server_m)) * (log_d - 3)
            + 20 * log_f
            - (3.2 * np.log10(11.75 * CLIENT_M) ** 2 - 4.97)
        )
    return np.asarray(from_db(-np.asarray(loss_db, float)))
