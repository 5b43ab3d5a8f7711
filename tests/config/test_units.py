import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asfl.config.errors import AsflError
from asfl.config.units import dbm_to_w, format_si, from_db, parse_quantity, to_db


@given(st.floats(-200, 100))
def test_decibels_round_trip(value: float) -> None:
    assert to_db(from_db(value)) == pytest.approx(value, abs=1e-9)
    assert to_db(dbm_to_w(value) * 1e3) == pytest.approx(value, abs=1e-9)


def test_known_decibels() -> None:
    assert from_db(3.0) == pytest.approx(1.9952623)
    assert dbm_to_w(30.0) == pytest.approx(1.0)
    assert to_db(0.0) == -math.inf
    assert to_db(np.array([1.0, 100.0])).tolist() == [0.0, 20.0]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1 MHz", "Hz", 1e6),
        ("1.6GHz", "Hz", 1.6e9),
        ("-173 dBm/Hz", "W/Hz", 10 ** (-17.3) * 1e-3),
        ("−173 dBm/Hz", "W/Hz", 10 ** (-17.3) * 1e-3),
        ("30 dBm", "W", 1.0),
        ("250 mW", "W", 0.25),
        ("2 min", "s", 120.0),
        ("0.5", "J", 0.5),
        ("1e-28", "J/(cycle·Hz²)", 1e-28),
    ],
)
def test_quantities_with_units(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(value)


@pytest.mark.parametrize("text", ["20 s", "MHz", "1 2", "1 mhz", ""])
def test_wrong_units_name_the_right_ones(text: str) -> None:
    with pytest.raises(AsflError, match="Hz, kHz, MHz, GHz"):
        parse_quantity(text, "Hz")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00 s"), (0.0123, "12.3 ms"), (999.6, "1.00 ks"), (1.5e9, "1.50 Gs"), (math.inf, "∞"), (-2, "-2.00 s")],
)
def test_three_digits_and_a_prefix(value: float, text: str) -> None:
    assert format_si(value, "s") == text
