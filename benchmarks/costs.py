"""All cuts in one call against one call per cut, and `import asfl` against importing NumPy alone."""

import subprocess
import sys

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from asfl.costs.modelled import cost_of_all_cuts, round_cost
from asfl.costs.round import Decision, Round
from benchmarks.problems import random_round
from benchmarks.timing import interleaved_medians

Floats = NDArray[np.float64]


def cost_table() -> Table:
    table = Table(title="costs of all 49 cuts of ResNet-50 (target: 1,000 clients under 20 ms)")
    for column in ("clients", "one call", "one call per cut", "ratio"):
        table.add_column(column, justify="right")
    for clients in (10, 100, 1000):
        round_, count, power = _round(clients)
        decisions = [Decision(cut, count, power) for cut in round_.profile.cuts.tolist()]
        medians = interleaved_medians(
            {
                "together": lambda r=round_, c=count, p=power: cost_of_all_cuts(r, c, p),  # type: ignore[misc]
                "one by one": lambda r=round_, ds=decisions: [round_cost(r, d) for d in ds],  # type: ignore[misc]
            }
        )
        together, single = medians["together"], medians["one by one"]
        table.add_row(
            f"{clients:,}", f"{1e3 * together:.2f} ms", f"{1e3 * single:.2f} ms", f"{single / together:.1f} x"
        )
    return table


def import_table() -> Table:
    table = Table(title="imports, in a fresh interpreter each time (target: asfl under 300 ms)")
    for column in ("statement", "over an empty program"):
        table.add_column(column, justify="right")
    statements = ("pass", "import asfl", "import numpy", "import asfl.costs")
    medians = interleaved_medians({text: lambda t=text: _run(t) for text in statements}, repeats=7)  # type: ignore[misc]
    for text in statements[1:]:
        table.add_row(text, f"{1e3 * (medians[text] - medians['pass']):.0f} ms")
    return table


def _run(statement: str) -> None:
    subprocess.run([sys.executable, "-c", statement], check=True)


def _round(clients: int) -> tuple[Round, Floats, Floats]:
    round_ = random_round(np.random.default_rng(1), clients, clients, "resnet50-cifar100").round
    return round_, np.ones(clients), np.full(clients, 1.5)
