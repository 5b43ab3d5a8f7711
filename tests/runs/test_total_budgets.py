"""Runs with total budgets: they end by themselves, are then finished, and resume bit for bit."""

from pathlib import Path

import pytest

from asfl.config import Config, load_config
from asfl.runs.folder import check_folder, is_finished
from asfl.runs.manifest import MODEL_FILE
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import run
from conftest import Asfl


def tiny(*overrides: str) -> Config:
    given = ["scenario.clients=3", "radio.num_rbs=3", "training.batch_size=4", "training.rounds=30"]
    return load_config("demo", [*given, "output.test_samples=50", "output.track=none", *overrides]).config


@pytest.mark.parametrize("scheme", ["asfl-plus", "asfl", "fedavg"])
def test_it_ends_with_the_time_and_resumes_bit_for_bit(scheme: str, tmp_path: Path) -> None:
    config, played = tiny("budget.total_delay_s=0.4", "budget.battery_j=[0.05, 0.2, 5]"), list[RoundRecord]()
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(config, scheme, whole, threads=1)
    while not run(config, scheme, broken, threads=1, should_stop=lambda: True, on_round=played.append):
        pass
    for file in (RECORDS_FILE, MODEL_FILE):
        assert (whole / file).read_bytes() == (broken / file).read_bytes()
    records = read_records(whole)
    last = records[-1]
    assert len(records) < 30
    assert is_finished(whole)
    assert last.uses_up_the_budget
    assert last.total_delay_s <= 0.4 * (1 + 1e-9)
    assert last.accuracy is not None
    assert last.battery_left_j is not None
    assert last.time_left_s is not None
    for client, (full, left) in enumerate(zip((0.05, 0.2, 5.0), last.battery_left_j, strict=True)):
        assert sum(record.energy_j[client] for record in records) == pytest.approx(full - left, abs=1e-9)
    assert all(finding.intact for finding in check_folder(whole))
    assert any("as many as the total budget allows" in finding.words for finding in check_folder(whole))


def test_what_is_left_is_shown(asfl: Asfl) -> None:
    settings = ["scenario.clients=2", "training.batch_size=4", "budget.battery_j=100", "output.track=none"]
    given = [word for one in [*settings, "training.rounds=2", "budget.total_delay_s=1 h"] for word in ("--set", one)]
    shown = asfl("run", "demo", *given)
    assert shown.returncode == 0, shown.stderr
    assert "left of the total budget" in shown.stdout
