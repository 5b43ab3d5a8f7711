"""`asfl run` and `asfl resume`: train one scheme."""

import math
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from asfl.api.progress import RunsProgress
from asfl.cli import options
from asfl.cli.output import print_json, print_listed
from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.tree import DELTA
from asfl.config.units import format_si, number, percent
from asfl.results.curves import Run
from asfl.results.summary import RunSummary, summarize_run, with_note
from asfl.results.tables import NO_CLIENT
from asfl.runs.folder import is_finished
from asfl.runs.jobs import Job
from asfl.runs.manifest import MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest, with_rounds
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records, records_so_far
from asfl.runs.run import RunOptions, run as run_here
from asfl.runs.this_process import stopping_on_ctrl_c
from asfl.schemes import scheme_named


def run(
    preset: options.Preset = "demo",
    scheme: options.Scheme = "asfl",
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    overrides: options.Set = None,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    engine: options.ClientEngine = "local",
    address: options.Address = None,
    as_json: options.Json = False,
) -> None:
    """Train one scheme: split federated rounds over the simulated radio, into a run folder."""
    config = options.configuration(preset, overrides, rounds=rounds, seed=seed).config
    scheme_named(scheme)
    folder = options.run_folder(out, preset, scheme, config.scenario.seed)
    watching: RunOptions = {"data_dir": data_dir}
    _train(config, scheme, folder, engine, address, as_json, watching)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="How many rounds it is to have in the end: more than it has.")
    ] = None,
    data_dir: options.DataDir = None,
    engine: options.ClientEngine = "local",
    address: options.Address = None,
    as_json: options.Json = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends as if it never had been. --rounds makes it longer."""
    manifest = read_manifest(folder)
    config = manifest.config
    if rounds is not None:
        if rounds < config.training.rounds:
            raise AsflError(f"--rounds {rounds}: {folder} has {config.training.rounds} rounds, and can only have more")
        config = with_rounds(config, rounds)
    watching: RunOptions = {"data_dir": data_dir}
    _train(config, manifest.scheme, folder, engine, address, as_json, watching)


def _train(
    config: Config,
    scheme: str,
    folder: Path,
    engine: str,
    address: str | None,
    as_json: bool,
    watching: RunOptions,
) -> None:
    train: Callable[..., bool] = run_here
    if engine == "ray":
        from asfl.runs.engines.ray import check_ray

        check_ray(address)
        from asfl.field.ray import run_with_actors

        train = partial(run_with_actors, address=address)
    elif address is not None:
        raise AsflError(f"--address {address} is for --engine ray")
    rounds, there = config.for_scheme(scheme).training.rounds, (folder / MANIFEST_FILE).exists()
    was_finished, before = is_finished(folder, rounds), read_manifest(folder).rounds if there else rounds
    job = Job(scheme, config.scenario.seed, config, folder)
    with stopping_on_ctrl_c() as stop, RunsProgress({job.name: rounds - len(records_so_far(folder))}, 1) as progress:
        on_round = partial(progress.show, job)
        finished = train(config, scheme, folder, on_round=on_round, should_stop=stop, **watching)
    if before < rounds:
        print(f"{folder}: {before} rounds became {rounds}", file=sys.stderr)
    if was_finished:
        print(f"{folder} was finished; more rounds: asfl resume {shlex.quote(str(folder))} --rounds N", file=sys.stderr)
    conclude(folder, finished, as_json)


def conclude(folder: Path, finished: bool, as_json: bool) -> None:
    manifest, records = read_manifest(folder), read_records(folder)
    if not finished:
        print(f"stopped after round {len(records)}; go on with: asfl resume {shlex.quote(str(folder))}")
        raise typer.Exit(options.STOPPED)
    run = Run(manifest.scheme, manifest.config.scenario.seed, records, manifest.budgets, manifest.config)
    if as_json:
        print_json({"folder": str(folder), **summarize_run(run, []).to_json()})
        return
    _print_table(manifest, run)
    print(f"rounds: {folder / RECORDS_FILE}\nmodel:  {folder / MODEL_FILE}")


def _print_table(manifest: Manifest, run: Run) -> None:
    summary = summarize_run(run, [])
    accuracy = (
        f"{percent(summary.final_accuracy, 1)} of the average model, {percent(summary.client_accuracy, 1)} of the "
        "clients' own"
    )
    rows = {"accuracy": accuracy, **_costs(manifest, run, summary)}
    if run.is_ceiling:
        rows = {"accuracy": percent(summary.final_accuracy, 1), "costs": "none: all data is in one place"}
    if run.records[-1].epsilon is not None:
        rows["privacy"] = f"ε = {number(run.records[-1].epsilon)} at δ = {DELTA:g}, for one image of one client"
    title = with_note(f"{manifest.scheme}, {summary.rounds} rounds", summary.model)
    print(title)
    print_listed(rows.items())
    if not (run.is_ceiling or any(record.scheduled_count for record in run.records)):
        print(NO_CLIENT)


def _costs(manifest: Manifest, run: Run, summary: RunSummary) -> dict[str, str]:
    budgets, clients, records = manifest.budgets, manifest.config.scenario.clients, run.records
    training = manifest.config.training
    worst_j = max(sum(of_client) / len(records) for of_client in zip(*(r.energy_j for r in records), strict=True))
    clock = "time" if manifest.config.field.costs == "measured" else "simulated time"
    return {
        clock: f"{format_si(summary.total_delay_s, 's')}, {format_si(summary.delay_s, 's')} a round "
        f"(median {format_si(summary.median_delay_s, 's')}, budget {format_si(budgets.delay_s, 's')}"
        f"{_owed(summary.delay_owed)})",
        "energy": f"{format_si(summary.total_energy_j, 'J')}, {format_si(summary.energy_j, 'J')} a round "
        f"(median {format_si(summary.median_energy_j, 'J')}), at most {format_si(worst_j, 'J')} a round and client "
        f"(budget {format_si(budgets.energy_j, 'J')}{_owed(summary.energy_owed)})",
        **_left(records[-1]),
        "packet errors": f"{percent(summary.packet_error_rate, 1)}, "
        f"{summary.updates_per_round:.1f} of {clients} clients arrive",
        "cut": "none: the whole model is on the clients"
        if math.isnan(summary.cut)
        else f"{summary.cut:.1f} layers on the client, moves in {percent(summary.cut_moves, 0)} of the rounds",
        "re-splits": f"{percent(summary.resplit_share, 1)} of the time",
        "discrepancy": f"{number(summary.discrepancy)} updates",
        "training": f"learning rate {training.learning_rate:g}, {training.local_steps} mini-"
        f"batch{'' if training.local_steps == 1 else 'es'} of {training.batch_size} a client and round",
    }


def _left(last: RoundRecord) -> dict[str, str]:
    """What is left of total budgets; nothing without any."""
    parts = [] if last.time_left_s is None else [format_si(last.time_left_s, "s")]
    if last.battery_left_j is not None:
        empty = sum(joule == 0 for joule in last.battery_left_j)
        least, most = (format_si(end(last.battery_left_j), "J") for end in (min, max))
        parts.append(f"{least} to {most} a client, {empty or 'no'} batter{'y' if empty == 1 else 'ies'} empty")
    return {"left of the total budget": ", ".join(parts)} if parts else {}


def _owed(share: float) -> str:
    """The violation still owed, Q/R; nothing where queues don't tell."""
    return "" if math.isnan(share) else f", {percent(share, 1)} of it still owed"
