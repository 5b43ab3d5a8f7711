"""The benchmarks of the field run, and compare what is the same."""

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
    table = field.overhead_table([1], 1, ["cnn-w0.1-cifar10"], ["in this process", "gRPC, TLS"])
    Console(width=200).print(table)
    here, there = _cells(table)
    assert [row[4] for row in (here, there)] == ["in this process", "gRPC, TLS"]
    assert there[-1] == "yes"
    assert float(there[5].split()[0].replace(",", "")) > 0
