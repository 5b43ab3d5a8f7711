"""Run folders and comparisons that were never trained, for the report; and a server that shows them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from made_up import leave_run, made_up_round

from asfl.config import load_config
from asfl.costs.world import Budgets
from asfl.results.page import Report, page
from asfl.results.page.collect import signature
from asfl.results.page.serve import LivePage, open_server
from asfl.runs.comparison import Comparison
from asfl.runs.manifest import Manifest
from asfl.runs.records import RoundRecord

BUDGETS = Budgets(1.6, 1.0)


def run_folder(
    folder: Path,
    scheme: str = "asfl",
    accuracies: Sequence[float | None] = (0.1, 0.3, 0.6),
    *,
    seed: int = 1,
    rounds: int | None = None,
    overrides: Sequence[str] = (),
    records: Sequence[RoundRecord] | None = None,
    delay_s: float = 2.0,
) -> Path:
    """A run that is finished, or stopped early if `rounds` is more than it has."""
    played = records if records is not None else [
        made_up_round(number, accuracy, delay_s=delay_s, cut=None if scheme == "fedavg" else 3)
        for number, accuracy in enumerate(accuracies, start=1)
    ]  # fmt: skip
    total = rounds or max(1, len(played))
    config = load_config("demo", [f"training.rounds={total}", f"scenario.seed={seed}", *overrides]).config
    facts = {"asfl": "0.1.0", "git_commit": "abc123", "data_dir": "/home/private"}
    manifest = Manifest(config, scheme, BUDGETS, 1, facts)
    leave_run(folder, manifest, played, finished=total == len(played))
    return folder


def comparison_folder(
    folder: Path,
    schemes: Sequence[str] = ("asfl", "fedavg"),
    seeds: Sequence[int] = (1, 2),
    overrides: Sequence[str] = (),
) -> Path:
    """The first scheme learns fastest; every seed a little better than the one before."""
    config = load_config("demo", ["training.rounds=3", *overrides]).config
    Comparison(folder, config, tuple(schemes), tuple(seeds)).remember()
    for place, scheme in enumerate(schemes):
        for seed in seeds:
            top = 0.6 - 0.1 * place + 0.01 * seed
            run_folder(
                folder / f"{scheme}-seed{seed}",
                scheme,
                (top / 3, top / 2, top),
                seed=seed,
                delay_s=2.0 + place,
                overrides=overrides,
            )
    return folder


def live_page(folder: Path, library: str) -> LivePage:
    return LivePage(lambda: signature([folder]), lambda version: page(Report.of([folder]), version=version), library)


@contextmanager
def serving(live: LivePage) -> Iterator[int]:
    """The page on a port of its own."""
    with open_server(live, 0) as server:
        yield server.server_port
