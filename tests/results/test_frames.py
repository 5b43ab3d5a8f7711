"""Runs as tables."""

from pathlib import Path

import pandas as pd
import pytest
from made_up import leave_run, made_up_round

import asfl as package
from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.costs.world import Budgets
from asfl.results.frames import varied_fields
from asfl.runs.manifest import Manifest
from conftest import Asfl, assert_refused


def write_run(folder: Path, scheme: str, *overrides: str, rounds: int = 3) -> None:
    config = load_config("demo", overrides).config
    manifest = Manifest(config, scheme, Budgets(1.0, 2.0), 1, {})
    leave_run(folder, manifest, [made_up_round(number, 0.1 * number) for number in range(1, rounds + 1)])


def test_one_row_per_round_with_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "asfl", "data.dirichlet_alpha=1")
    write_run(tmp_path / "deep" / "b", "sfl", "data.dirichlet_alpha=10", "scenario.seed=2", rounds=2)
    table = package.load_runs(tmp_path)
    assert len(table) == 5
    assert set(zip(table["scheme"], table["seed"], table["data.dirichlet_alpha"], strict=True)) == {
        ("asfl", 1, 1.0), ("sfl", 2, 10.0),
    }  # fmt: skip
    first = table.iloc[0]
    assert (first["energy_j"], first["arrived"], first["scheduled"]) == (3.0, 2, 2)
    assert first["packet_error_rate"] == pytest.approx(0.2)
    assert table[table["scheme"] == "asfl"]["accuracy"].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_one_row_per_client_and_per_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "asfl")
    clients = package.load_runs(tmp_path, per="client")
    assert len(clients) == 9
    assert clients[clients["client"] == 1]["rb_count"].tolist() == [2.0, 2.0, 2.0]
    (run,) = package.load_runs(tmp_path, per="run").to_dict("records")
    assert (run["rounds"], run["finished"], run["delay_budget_s"]) == (3, False, 1.0)
    assert run["final_accuracy"] == pytest.approx(0.3)


def test_only_what_differs_becomes_a_column() -> None:
    configs = [load_config("demo", [f"training.rounds={r}", f"scenario.seed={r}"]).config for r in (1, 2)]
    assert varied_fields(configs) == ["training.rounds"]
    assert varied_fields(configs[:1]) == []


@pytest.mark.parametrize("name", ["runs.parquet", "runs.csv"])
def test_export_can_be_read_back(asfl: Asfl, tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "a", "asfl")
    result = asfl("export", "a", "--out", name)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"3 rows: {name}\n"
    read = pd.read_parquet if name.endswith("parquet") else pd.read_csv
    assert read(tmp_path / name)["total_delay_s"].tolist() == [2.0, 4.0, 6.0]


def test_mistakes(asfl: Asfl, tmp_path: Path) -> None:
    with pytest.raises(AsflError, match="no run in or below"):
        package.load_runs(tmp_path)
    write_run(tmp_path / "a", "asfl")
    assert_refused(asfl("export", "a", "--out", "runs.xlsx"), "runs.xlsx", ".parquet or .csv")
