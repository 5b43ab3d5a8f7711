"""Pictures say numbers as people read them."""

import pytest

from asfl.results.figures.figure import make_logarithmic


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1500.0, 45_000.0, {"2,000", "6,000", "10,000", "40,000"}),  # some between powers of ten, where these are few
        (0.5, 60_000.0, {"1", "10", "1,000", "10,000"}),
    ],
)
def test_a_logarithmic_axis_has_plain_numbers(low: float, high: float, labels: set[str]) -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    make_logarithmic(axes, "x")
    axes.set_xlim(low, high)
    shown = {text.get_text() for which in ("major", "minor") for text in axes.get_xticklabels(which=which)}
    assert labels <= shown
    assert not any("$" in text or "e" in text for text in shown)
