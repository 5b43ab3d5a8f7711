"""Meters of energy."""

from pathlib import Path

import pytest

from asfl.config.errors import AsflError
from asfl.field.meters import METERS, CarefulMeter, RaplMeter, meter_named, register_meter


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")
    return folder


def test_packages_are_summed_and_counters_start_over(tmp_path: Path) -> None:
    for number in (0, 1):
        write(tmp_path / f"intel-rapl:{number}", energy_uj=900, max_energy_range_uj=999)
    write(tmp_path / "intel-rapl:0:0", energy_uj=5, max_energy_range_uj=999)  # a part of package 0
    meter = RaplMeter(tmp_path)
    assert meter.read() == 0.0
    write(tmp_path / "intel-rapl:0", energy_uj=950)
    write(tmp_path / "intel-rapl:1", energy_uj=50)
    assert meter.read() == pytest.approx((50 + 150) * 1e-6)


def test_without_such_files_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match="'rapl': there are no energy counters"):
        RaplMeter(tmp_path)


class Broken:
    def read(self) -> float:
        raise RuntimeError("no such gauge")


def test_by_name() -> None:
    assert meter_named("none") is None
    with pytest.raises(AsflError, match=r"unknown meter 'rpl'.*rapl"):
        meter_named("rpl")
    try:
        register_meter("mine", Broken)
        assert meter_named("mine") is not None
    finally:
        METERS.clear()


def test_a_meter_that_fails_costs_nothing_but_its_readings(caplog: pytest.LogCaptureFixture) -> None:
    meter = CarefulMeter(Broken())
    assert [meter.read(), meter.read()] == [None, None]
    assert [record.getMessage() for record in caplog.records] == [
        "the energy meter failed, and isn't read any more: RuntimeError: no such gauge"
    ]
