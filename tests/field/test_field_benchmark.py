"""The benchmarks of the field run, and compare what is the same."""

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from benchmarks import field


def _cells(table: Table) -> list[list[str]]:
    """Row by row, as shown."""
    assert table.title is not None
    return [list(row) for row in zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)]


def test_a_round_over_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field, "CLIENTS", 2)
    monkeypatch.setattr(field, "ROUNDS_A_TURN", 1)
    monkeypatch.setattr(field, "TWO_MEGABYTES", {"cnn-w0.1-cifar10": 2})
    table = field.overhead_table([1], 1, ["cnn-w0.1-cifar10"], ["in this process", "gRPC"])
    Console(width=200).print(table)
    here, there = _cells(table)
    assert [row[4] for row in (here, there)] == ["in this process", "gRPC"]
    assert there[-1] == "yes"
    assert float(there[5].split()[0].replace(",", "")) > 0


def test_memory_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"pss": [300e6, 100e6, 120e6], "rss": [400e6, 200e6, 220e6], "there": [0.2, 0.4], "here": [0.1, 0.2]}
    monkeypatch.setattr(field, "_in_new_process", lambda *arguments: found)
    (row,) = _cells(field.processes_table(2, [2]))
    assert row[:6] == ["2", "300", "110", "520", "400", "210"]
    assert row[6:8] == [f"{1e3 * np.median(found[name]):.0f} ms" for name in ("there", "here")]
    assert row[8].startswith("2.00")
