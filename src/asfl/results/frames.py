"""Runs as tables: from run folders to a pandas data frame in one call.

    import asfl
    rounds = asfl.load_runs("runs/compare-demo")
    rounds.dropna(subset="accuracy").groupby("scheme").plot(x="total_delay_s", y="accuracy")

One row per round (or per client and round, or per run), with the scheme, the seed, and every field of the configuration
in which the runs differ, under its own name such as `data.dirichlet_alpha`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from asfl.config import Config, by_name, differing_names
from asfl.config.errors import AsflError, MissingExtraError, printable
from asfl.results.curves import RunFolder, read_run, run_folders
from asfl.results.summary import summarize_run
from asfl.runs.files import cell, write_whole
from asfl.runs.records import by_client_fields

if TYPE_CHECKING:
    import pandas as pd

Per = Literal["round", "client", "run"]


def load_runs(*folders: str | Path, per: Per = "round") -> "pd.DataFrame":
    """All runs in or below these folders as one table; unfinished runs too.

    `per="round"`: one row per round; what is given per client is summed (energy) or averaged over those who took part.
    `per="client"`: one row per client and round. `per="run"`: one row per run, with the numbers of `asfl compare`.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading runs as a table", "report") from error

    runs = [read_run(folder) for folder in run_folders(folders)]
    varied = varied_fields([run.manifest.config for run in runs])
    rows: list[dict[str, Any]] = []
    for run in runs:
        fields = by_name(run.manifest.config.model_dump(mode="json"))
        of_run = {
            "run": printable(str(run.folder)),
            "scheme": run.scheme,
            "seed": run.seed,
            **{name: fields[name] for name in varied},
        }
        rows += [{**of_run, **row} for row in _rows(run, per)]
    return pd.DataFrame(rows)


def export_runs(folders: Sequence[str | Path], file: Path, per: Per = "round") -> int:
    """Write that table as Parquet or CSV, by the ending of the name; returns the number of rows."""
    if file.suffix not in (".parquet", ".csv"):
        raise AsflError(f"--out {file}: the name must end in .parquet or .csv")
    table = load_runs(*folders, per=per)
    try:
        content = table.map(cell).to_csv(index=False) if file.suffix == ".csv" else table.to_parquet(index=False)
    except ImportError as error:
        raise MissingExtraError("writing Parquet", "report") from error
    write_whole(file, content)
    return len(table)


def varied_fields(configs: Sequence[Config]) -> list[str]:
    """Names of the fields in which these configurations differ, but for the seed, which has a column of its own."""
    differing = differing_names([by_name(config.model_dump(mode="json")) for config in configs])
    return [name for name in differing if name != "scenario.seed"]


def _rows(run: RunFolder, per: Per) -> Iterator[dict[str, Any]]:
    if per == "run":
        numbers, budgets = summarize_run(run, []).to_json(), run.manifest.budgets
        numbers.pop("reached")
        ends = {"delay_budget_s": budgets.delay_s, "energy_budget_j": budgets.energy_j}
        yield {**numbers, "finished": run.finished, **ends}
        return
    for record in run.records:
        plain = asdict(record)
        if per == "client":
            cuts = record.cut if isinstance(record.cut, list) else [record.cut] * len(record.rb_count)
            for client, cut in enumerate(cuts):
                of_client = {name: plain[name][client] for name in by_client_fields()}
                yield {"round": record.round, "client": client, "cut": cut, **of_client}
            continue
        whole = {name: value for name, value in plain.items() if name not in by_client_fields()}
        yield {
            **whole,
            "cut": record.mean_cut,
            "energy_j": sum(record.energy_j),
            "resplit_energy_j": sum(record.resplit_energy_j),
            "energy_queue": sum(record.energy_queue) / len(record.energy_queue),
            "packet_error_rate": record.mean_packet_error_rate,
            "arrived": record.arrived_count,
            "scheduled": record.scheduled_count,
            "faults": len(record.faults or []),
        }
