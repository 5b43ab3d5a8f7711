"""`asfl run` and `asfl resume`: train one scheme."""

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from asfl.cli.data import DataDirOption
from asfl.cli.options import JsonOption, PresetArgument, SetOption, console, print_json
from asfl.cli.progress import RunProgress, stopping_on_ctrl_c
from asfl.config import load_config
from asfl.records import RECORDS_FILE, RoundRecord, read_records
from asfl.run import MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest
from asfl.schemes import scheme_named
from asfl.units import format_si

STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""


def run(
    preset: PresetArgument = "demo",
    scheme: Annotated[str, typer.Option(help="Which scheme to train.")] = "asfl",
    overrides: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The run folder. Default: runs/PRESET-SCHEME-seedK."),
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one scheme: split federated rounds over the simulated radio, into a run folder."""
    from asfl.run import run as train

    config = load_config(preset, overrides or []).config
    scheme_named(scheme)
    name = f"{Path(preset).stem}-{scheme}-seed{config.scenario.seed}"
    folder = out or Path(config.output.folder) / name
    done = read_records(folder) if (folder / RECORDS_FILE).exists() and (folder / MANIFEST_FILE).exists() else []
    with stopping_on_ctrl_c() as stop, RunProgress(config.training.rounds, len(done), _accuracy(done)) as progress:
        finished = train(config, scheme, folder, data_dir=data_dir, on_round=progress, should_stop=stop)
    _conclude(folder, finished, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends as if it never had been."""
    from asfl.run import resume as train

    manifest = read_manifest(folder)
    done = read_records(folder) if (folder / RECORDS_FILE).exists() else []
    rounds = manifest.config.training.rounds
    with stopping_on_ctrl_c() as stop, RunProgress(rounds, len(done), _accuracy(done)) as progress:
        finished = train(folder, data_dir=data_dir, on_round=progress, should_stop=stop)
    _conclude(folder, finished, as_json)


def _accuracy(records: list[RoundRecord]) -> float | None:
    return next((record.accuracy for record in reversed(records) if record.accuracy is not None), None)


def _conclude(folder: Path, finished: bool, as_json: bool) -> None:
    manifest, records = read_manifest(folder), read_records(folder)
    if not finished:
        print(f"stopped after round {len(records)}; go on with: asfl resume {shlex.quote(str(folder))}")
        raise typer.Exit(STOPPED)
    if as_json:
        print_json({"folder": str(folder), **summary_of(manifest, records)})
        return
    _print_table(manifest, records)
    print(f"rounds: {folder / RECORDS_FILE}\nmodel:  {folder / MODEL_FILE}")


def summary_of(manifest: Manifest, records: list[RoundRecord]) -> dict[str, float | str | int | None]:
    """The numbers of a finished run."""
    rounds, last = len(records), records[-1]
    evaluated = [record.accuracy for record in records if record.accuracy is not None]
    return {
        "scheme": manifest.scheme,
        "rounds": rounds,
        "accuracy": last.accuracy,
        "best_accuracy": max(evaluated),
        "client_accuracy": last.client_accuracy,
        "delay_s": last.total_delay_s,
        "energy_j": last.total_energy_j,
        "delay_per_round_s": last.total_delay_s / rounds,
        "resplit_share": sum(r.resplit_delay_s for r in records) / max(last.total_delay_s, 1e-300),
        "packet_error_rate": sum(r.mean_packet_error_rate for r in records) / rounds,
        "arrived_per_round": sum(r.arrived_count for r in records) / rounds,
        "discrepancy": sum(r.discrepancy for r in records) / rounds,
    }


def _print_table(manifest: Manifest, records: list[RoundRecord]) -> None:
    summary, budgets, clients = summary_of(manifest, records), manifest.budgets, manifest.config.scenario.clients
    last, rounds = records[-1], len(records)
    energies = [sum(of_client) / rounds for of_client in zip(*(r.energy_j for r in records), strict=True)]
    cuts = [record.mean_cut for record in records if record.cut is not None]
    moves = sum(a != b for a, b in pairwise(cuts))
    rows = {
        "accuracy": f"{100 * (last.accuracy or 0):.1f} % of the average model, "
        f"{100 * (last.client_accuracy or 0):.1f} % of the clients' own",
        "simulated time": f"{format_si(last.total_delay_s, 's')}, {format_si(last.total_delay_s / rounds, 's')} a "
        f"round (budget {format_si(budgets.delay_s, 's')})",
        "energy": f"{format_si(last.total_energy_j, 'J')}, at most {format_si(max(energies), 'J')} a round and client "
        f"(budget {format_si(budgets.energy_j, 'J')})",
        "packet errors": f"{100 * float(summary['packet_error_rate'] or 0):.1f} %, "
        f"{summary['arrived_per_round']:.1f} of {clients} clients arrive",
        "cut": f"{sum(cuts) / len(cuts):.1f} layers on the client, moved in {moves} rounds" if cuts else "none",
        "re-splits": f"{100 * float(summary['resplit_share'] or 0):.1f} % of the time",
        "discrepancy": f"{summary['discrepancy']:.2f} updates",
    }
    table = Table(title=f"{manifest.scheme}, {rounds} rounds", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in rows.items():
        table.add_row(name, text)
    console().print(table)
