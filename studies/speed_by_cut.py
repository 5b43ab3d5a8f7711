"""Is a client's speed, estimated at one cut, of use at another? By FLOPs, and by shares of measured time.

A run with measured costs at each fixed cut, with clients in this process that compute one at a time. An estimate that
is good for deciding would be the same at every cut.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from asfl.config import load_config
from asfl.field.client import ClientNode
from asfl.field.fleet import agreement_for, train
from asfl.field.measured import Clocks
from asfl.models.load import load_profile
from asfl.runs.records import RoundRecord
from asfl.schemes import register_scheme
from asfl.schemes.asfl import AsflScheme
from studies.local_links import LocalLink

PRESET, CLIENTS, ROUNDS, SEEDS = "demo", 2, 8, (1, 2, 3)
Floats = NDArray[np.float64]


def estimated_flops(cut: int, seed: int) -> float:
    """FLOP/s of a client after some rounds at this cut, mean over clients."""
    overrides = [
        f"scenario.clients={CLIENTS}", f"training.rounds={ROUNDS}", f"scenario.seed={seed}",
        "field.costs=measured", "output.track=none", "output.evaluate_every=1000",
    ]  # fmt: skip
    config = load_config(PRESET, overrides).config
    records: list[RoundRecord] = []
    with TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as pool:
        agreement = agreement_for(config, f"always-{cut}", Path(scratch) / "run", threads=1)
        links = [LocalLink(ClientNode(agreement.welcome(client)), pool) for client in range(CLIENTS)]
        train(agreement, Path(scratch) / "run", links, on_round=records.append)
    measured = records[-1].measured
    assert measured is not None
    return float(np.mean([value for value in measured["client_flops"] if value is not None]))


def main(folder: Path) -> None:
    cuts = load_profile(load_config(PRESET).config.model_spec).cuts.tolist()
    for cut in cuts:
        register_scheme(AsflScheme(f"always-{cut}", cuts=(cut,)))
    by_time = np.array([[estimated_flops(cut, seed) for cut in cuts] for seed in SEEDS])
    probed = Clocks.layers_take
    try:
        setattr(Clocks, "layers_take", _ignore)  # noqa: B010
        by_flops = np.array([[estimated_flops(cut, seed) for cut in cuts] for seed in SEEDS])
    finally:
        setattr(Clocks, "layers_take", probed)  # noqa: B010
    table = Table(
        title="Speed of a client as estimated at each cut, GFLOP/s, mean ± sd over seeds", title_justify="left"
    )
    for heading in ("cut", "by FLOPs", "by shares of time"):
        table.add_column(heading, justify="right")
    for place, cut in enumerate(cuts):
        table.add_row(str(cut), _cell(by_flops[:, place]), _cell(by_time[:, place]))
    table.add_row("largest / smallest", _range(by_flops), _range(by_time))
    Console().print(table)


def _ignore(clocks: Clocks, seconds: Mapping[int, Floats]) -> None:
    pass


def _cell(values: Floats) -> str:
    return f"{values.mean() / 1e9:.2f} ± {values.std(ddof=1) / 1e9:.2f}"


def _range(values: Floats) -> str:
    means = values.mean(axis=0)
    return f"{means.max() / means.min():.1f}"
