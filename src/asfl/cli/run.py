"""`asfl run` and `asfl resume`: train one scheme."""

import math
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.table import Table

from asfl.cli.options import (
    STOPPED,
    AddressOption,
    ClientEngineName,
    ClientEngineOption,
    DataDirOption,
    JsonOption,
    PresetArgument,
    SetOption,
    console,
    print_json,
)
from asfl.cli.progress import RunProgress, stopping_on_ctrl_c
from asfl.config import Config, load_config
from asfl.errors import AsflError
from asfl.records import RECORDS_FILE, RoundRecord, read_records, records_so_far
from asfl.run import MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest
from asfl.run import run as run_here
from asfl.schemes import scheme_named
from asfl.summary import Run, number, percent, summarize_run
from asfl.units import format_si


def run(
    preset: PresetArgument = "demo",
    scheme: Annotated[str, typer.Option(help="Which scheme to train.")] = "asfl",
    overrides: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The run folder. Default: runs/PRESET-SCHEME-seedK."),
    ] = None,
    data_dir: DataDirOption = None,
    engine: ClientEngineOption = "local",
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one scheme: split federated rounds over the simulated radio, into a run folder."""
    config = load_config(preset, overrides or []).config
    scheme_named(scheme)
    name = f"{Path(preset).stem}-{scheme}-seed{config.scenario.seed}"
    folder = out or Path(config.output.folder) / name
    train = _trainer(engine, address)
    done = records_so_far(folder) if (folder / MANIFEST_FILE).exists() else []
    with stopping_on_ctrl_c() as stop, RunProgress(config.training.rounds, done) as progress:
        finished = train(config, scheme, folder, data_dir=data_dir, on_round=progress, should_stop=stop)
    conclude(folder, finished, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    data_dir: DataDirOption = None,
    engine: ClientEngineOption = "local",
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends as if it never had been."""
    manifest, train = read_manifest(folder), _trainer(engine, address)
    config, scheme = manifest.config, manifest.scheme
    done = records_so_far(folder)
    with stopping_on_ctrl_c() as stop, RunProgress(config.training.rounds, done) as progress:
        finished = train(config, scheme, folder, data_dir=data_dir, on_round=progress, should_stop=stop)
    conclude(folder, finished, as_json)


class _Train(Protocol):
    """Trains a run in a folder, or the rest of it, as `asfl.run.run` does."""

    def __call__(
        self,
        config: Config,
        scheme: str,
        folder: Path,
        *,
        data_dir: Path | None,
        on_round: Callable[[RoundRecord], None],
        should_stop: Callable[[], bool],
    ) -> bool: ...


def _trainer(engine: ClientEngineName, address: str | None) -> _Train:
    if engine == "ray":
        from asfl.engines.ray_cluster import check_ray

        check_ray(address)
        from asfl.field.ray_clients import run_with_actors

        return partial(run_with_actors, address=address)
    if address is not None:
        raise AsflError(f"--address {address} is for --engine ray")
    return run_here


def conclude(folder: Path, finished: bool, as_json: bool) -> None:
    manifest, records = read_manifest(folder), read_records(folder)
    if not finished:
        print(f"stopped after round {len(records)}; go on with: asfl resume {shlex.quote(str(folder))}")
        raise typer.Exit(STOPPED)
    if as_json:
        summary = summarize_run(Run(manifest.scheme, manifest.config.scenario.seed, records, manifest.budgets), [])
        print_json({"folder": str(folder), **summary.to_json()})
        return
    _print_table(manifest, records)
    print(f"rounds: {folder / RECORDS_FILE}\nmodel:  {folder / MODEL_FILE}")


def _print_table(manifest: Manifest, records: list[RoundRecord]) -> None:
    budgets, clients = manifest.budgets, manifest.config.scenario.clients
    summary = summarize_run(Run(manifest.scheme, manifest.config.scenario.seed, records, budgets), [])
    worst_j = max(sum(of_client) / len(records) for of_client in zip(*(r.energy_j for r in records), strict=True))
    clock = "time" if manifest.config.field.costs == "measured" else "simulated time"
    rows = {
        "accuracy": f"{percent(summary.final_accuracy, 1)} of the average model, "
        f"{percent(summary.client_accuracy, 1)} of the clients' own",
        clock: f"{format_si(summary.total_delay_s, 's')}, {format_si(summary.delay_s, 's')} a round "
        f"(budget {format_si(budgets.delay_s, 's')})",
        "energy": f"{format_si(summary.total_energy_j, 'J')}, at most {format_si(worst_j, 'J')} a round and client "
        f"(budget {format_si(budgets.energy_j, 'J')})",
        "packet errors": f"{percent(summary.packet_error_rate, 1)}, "
        f"{summary.updates_per_round:.1f} of {clients} clients arrive",
        "cut": "none: the whole model is on the clients"
        if math.isnan(summary.cut)
        else f"{summary.cut:.1f} layers on the client, moves in {percent(summary.cut_moves, 0)} of the rounds",
        "re-splits": f"{percent(summary.resplit_share, 1)} of the time",
        "discrepancy": f"{number(summary.discrepancy)} updates",
    }
    table = Table(title=f"{manifest.scheme}, {summary.rounds} rounds", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in rows.items():
        table.add_row(name, text)
    console().print(table)
