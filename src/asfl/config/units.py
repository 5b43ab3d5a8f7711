"""Decibels, bits, and numbers written with their unit ("1 MHz", "-173 dBm/Hz").

Everything inside the package is in SI units, and the unit is in the name (`tx_power_w`, `delay_s`).
"""

import re
from collections.abc import Callable
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.errors import AsflError, short

BITS_PER_VALUE = 32
"""Parameters, activations and gradients travel as 32-bit floats."""


@overload
def from_db(decibel: float) -> float: ...
@overload
def from_db(decibel: NDArray[np.floating]) -> NDArray[np.float64]: ...
def from_db(decibel: ArrayLike) -> float | NDArray[np.float64]:
    """Linear ratio of a value in dB: 10^(x/10)."""
    linear: NDArray[np.float64] = 10.0 ** (np.asarray(decibel, dtype=float) / 10.0)
    return float(linear) if linear.ndim == 0 else linear


@overload
def to_db(linear: float) -> float: ...
@overload
def to_db(linear: NDArray[np.floating]) -> NDArray[np.float64]: ...
def to_db(linear: ArrayLike) -> float | NDArray[np.float64]:
    """Value in dB of a linear ratio: 10 log10(x); zero gives -inf."""
    with np.errstate(divide="ignore"):
        decibel = 10.0 * np.log10(np.asarray(linear, dtype=float))
    return float(decibel) if decibel.ndim == 0 else decibel


def dbm_to_w(dbm: float) -> float:
    return from_db(dbm) * 1e-3


def _times(factor: float) -> Callable[[float], float]:
    return lambda value: value * factor


_SUFFIXES: dict[str, dict[str, Callable[[float], float]]] = {
    "Hz": {"Hz": _times(1), "kHz": _times(1e3), "MHz": _times(1e6), "GHz": _times(1e9)},
    "W": {"W": _times(1), "mW": _times(1e-3), "kW": _times(1e3), "dBm": dbm_to_w, "dBW": from_db},
    "W/Hz": {"W/Hz": _times(1), "mW/Hz": _times(1e-3), "dBm/Hz": dbm_to_w},
    "s": {"s": _times(1), "ms": _times(1e-3), "min": _times(60), "m": _times(60), "h": _times(3600)},
    "J": {"J": _times(1), "mJ": _times(1e-3), "kJ": _times(1e3)},
    "bit/s": {"bit/s": _times(1), "kbit/s": _times(1e3), "Mbit/s": _times(1e6), "Gbit/s": _times(1e9)},
    "m": {"m": _times(1), "km": _times(1e3)},
    "m/s": {"m/s": _times(1), "km/h": _times(1 / 3.6)},
    "dB": {"dB": _times(1)},
}
"""How to write a value of each unit in text. Units not listed here are written as plain numbers."""

_QUANTITY = re.compile(r"\s*([-+−]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*")


def parse_quantity(text: str, unit: str) -> float:
    """The number behind "1 MHz" or "-173 dBm/Hz", in `unit`; a bare number already is in `unit`."""
    suffixes = _SUFFIXES.get(unit, {})
    accepted = f"a number in {unit}" + (f", or one with a unit: {', '.join(suffixes)}" if suffixes else "")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise AsflError(f"{short(text)} is not a quantity; give {accepted}")
    value, suffix = float(match[1].replace("−", "-")), match[2]
    if not suffix:
        return value
    if suffix not in suffixes:
        raise AsflError(f"{short(text)} has the unit {short(suffix)}; give {accepted}")
    return suffixes[suffix](value)


def format_si(value: float, unit: str = "") -> str:
    """Three significant digits with an SI prefix: 1.23 Mbit, 45.6 ms."""
    if not np.isfinite(value):
        return "∞" if value > 0 else "-∞" if value < 0 else "nan"
    prefixes = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}
    exponent = 0 if value == 0 else int(np.clip(3 * np.floor(np.log10(abs(value)) / 3), -12, 12))
    scaled = value / 10.0**exponent
    if abs(scaled) >= 999.5 and exponent < 12:  # 999.9 k would print as 1000 k
        exponent, scaled = exponent + 3, scaled / 1e3
    digits = 0 if abs(scaled) >= 99.5 else 1 if abs(scaled) >= 9.95 else 2
    return f"{scaled:.{digits}f} {prefixes[exponent]}{unit}".rstrip()


def percent(share: float, decimals: int | None = None) -> str:
    """As many decimals as asked for; by default as many as it takes."""
    return f"{100 * share:.4g} %" if decimals is None else f"{100 * share:.{decimals}f} %"


def number(value: float, digits: int = 3) -> str:
    """So many significant digits, but never an exponent for a number people can read."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
