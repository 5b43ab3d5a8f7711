"""Form, reading and queue rule side by side: 200 rounds, 3 seeds, radio only; costs always charged as corrected."""

from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from asfl.config import load_config
from asfl.runs.play import play_all

ROUNDS, SEEDS = 200, (1, 2, 3)
AUTO = ("decision.delay_budget_s=auto", "decision.energy_budget_j=auto")
WORLDS = {
    "paper-cifar100, printed budgets": ("paper-cifar100", ()),
    "paper-cifar100, auto budgets": ("paper-cifar100", AUTO),
    "small-cifar10, full width, auto budgets": ("small-cifar10", ("model.width=1",)),
}
READINGS = (("corrected", "s"), ("printed", "(1-s)^2"), ("printed", "s"))
COLUMNS = {
    "delay_s": ("delay / round (s)", 1),
    "energy_j": ("energy / round (J)", 1),
    "packet_error_rate": ("error rate (%)", 100),
    "updates_per_round": ("arrived", 1),
    "spread": ("spread (updates)", 1),
    "cut_switches": ("cut moves (%)", 100),
    "delay_violation": ("delay over (%)", 100),
    "energy_violation": ("energy over (%)", 100),
}


def _summaries(world: str, reading: str, weight: str, form: str, rule: str) -> list[dict[str, float]]:
    preset, overrides = WORLDS[world]
    options = {
        "equations": reading,
        "error_weight": weight,
        "form": form,
        "queue_rule": rule,
        "uplink_power": "shared",
        "gradient_bits": "activations",
    }
    config = load_config(preset, [*overrides, *(f"decision.{key}={value}" for key, value in options.items())]).config
    return [played.summary() for played in play_all(config, ["asfl"], SEEDS, ROUNDS)]


def main(folder: Path) -> None:
    cases = [
        (world, *reading, form, rule)
        for world, reading, form, rule in product(
            WORLDS, READINGS, ("drift", "per_round_budgets"), ("printed", "standard")
        )
    ]
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(_summaries, *zip(*cases, strict=True)))
    for world in WORLDS:
        table = Table(title=f"{world}: mean ± standard deviation over {len(SEEDS)} seeds, {ROUNDS} rounds")
        for name in ("objective", "form", "queue rule", *(title for title, _ in COLUMNS.values())):
            table.add_column(name, justify="right")
        for (where, reading, weight, form, rule), rows in zip(cases, results, strict=True):
            if where != world:
                continue
            cells = []
            for key, (_, factor) in COLUMNS.items():
                values = factor * np.array([row[key] for row in rows])
                cells.append(f"{values.mean():.3g} ± {values.std(ddof=1):.2g}")
            name = "corrected" if reading == "corrected" else f"printed, {weight}"
            table.add_row(name, form, rule, *cells)
        Console(width=190).print(table)
