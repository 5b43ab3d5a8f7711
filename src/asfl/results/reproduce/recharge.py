"""What recorded rounds cost under other charges: decisions, links and arrivals as they were; nothing is trained."""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.costs.modelled import round_cost
from asfl.results.curves import Run
from asfl.results.recorded import rounds_met
from asfl.results.reproduce.archive import NEXT_COMMAND, Found, runs_of, with_runs
from asfl.runs.records import RoundRecord
from asfl.runs.this_process import leave_ctrl_c_to_the_parent, usual_threads

CHARGES = (
    "compute.", "radio.downlink_bandwidth_hz", "radio.server_tx_power_w", "scenario.min_cpu_hz", "scenario.max_cpu_hz",
    "model.charged_as", "decision.charge", "decision.outage_s", "decision.gradient_bits", "decision.overheads",
    "decision.discrepancy_sample_ratio",
)  # fmt: skip
"""Settings that say what a round costs, and neither whose packets arrive nor what is learnt from them."""

RECORDED = "as recorded"
ALWAYS = ("decision.overheads=charged", "decision.discrepancy_sample_ratio=auto")
"""Settings of every recharge: nothing crosses for free."""


def recharge_all(
    found: Sequence[Found], settings: Sequence[str], traces: Sequence[Path], workers: int | None = None
) -> list[Found]:
    """Every run charged by its configuration and these settings; beside it, as recorded.

    `traces`: where measured channels are; a run whose trace is nowhere stays as it was recorded.
    """
    check_charges(settings)
    found = [one.otherwise.get(RECORDED, one) for one in found]
    recorded, files = runs_of(found), {file.name: file for file in traces}
    runs = {key: _on_trace(run, files) for key, run in recorded.items()}
    lost = {_trace_of(run) for run in runs.values() if not _is_there(run)}
    for name in sorted(lost):
        print(f"left as recorded: all runs on {name}, which isn't here (give --trace FILE)", file=sys.stderr)
    here = {key: run for key, run in runs.items() if run.config and _is_there(run)}
    done = _in_processes([(run, (*ALWAYS, *settings)) for run in here.values()], workers or usual_threads())
    names = {Path(name).name: Path(name) for name in map(_trace_of, recorded.values())}  # as they were given
    charged = {key: _on_trace(run, names) for key, run in zip(here, done, strict=True)}
    left = sorted({f"{key[1]} in {key[0]}" for key, run in charged.items() if _is_left(run, here[key])})
    if left:
        print(
            f"left as recorded, as their archive has no powers: {', '.join(left)}",
            file=sys.stderr,
        )
    sets = "".join(f" --set {one}" for one in settings)
    every = []
    for one in found:
        command = f"{one.command}{NEXT_COMMAND}asfl reproduce {one.recipe} --from records.jsonl.xz --recharge{sets}"
        every.append(replace(with_runs(one, charged, {RECORDED: recorded}), command=command))
    return every


def _is_left(run: Run, before: Run) -> bool:
    return not run.is_ceiling and run.config == before.config and run.records == before.records


def _trace_of(run: Run) -> str:
    return "" if run.config is None else run.config.scenario.channel.trace_file


def _on_trace(run: Run, files: Mapping[str, Path]) -> Run:
    file = files.get(Path(_trace_of(run)).name) if _trace_of(run) else None
    if run.config is None or file is None:
        return run
    return replace(run, config=load_config(run.config, {"scenario.channel.trace_file": file}).config)


def _is_there(run: Run) -> bool:
    return not _trace_of(run) or Path(_trace_of(run)).exists()


def _in_processes(jobs: Sequence[tuple[Run, Sequence[str]]], workers: int) -> list[Run]:
    if workers == 1 or len(jobs) < 2:
        return [recharged(*job) for job in jobs]
    with ProcessPoolExecutor(workers, initializer=leave_ctrl_c_to_the_parent) as pool:
        try:
            return list(pool.map(recharged, *zip(*jobs, strict=True), chunksize=4))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def check_charges(settings: Sequence[str]) -> None:
    """Refuse settings with which other packets would have arrived."""
    for setting in settings:
        if not setting.strip().startswith(CHARGES):
            raise AsflError(
                f"--set {setting}: recorded rounds can't be recharged for it, as other packets would arrive or other "
                f"models be trained; what can be set: {', '.join(one + '*' * one.endswith('.') for one in CHARGES)}"
            )


def recharged(run: Run, settings: Sequence[str] = ()) -> Run:
    """The run with its rounds charged by its configuration and these settings; without powers, as it is."""
    if run.config is None or run.is_ceiling:
        return run
    check_chargeable(run)
    if not any(power for record in run.records for power in record.tx_power_w):
        return run
    config = load_config(run.config, settings).config
    return replace(run, records=_charged(run, config), config=config)


def _charged(run: Run, config: Config) -> list[RoundRecord]:
    records, delay_s, energy_j = [], 0.0, 0.0
    for met in rounds_met(run, config):
        charge = round_cost(met.round, met.decision, met.arrived, met.exchange)
        delay_s, energy_j = delay_s + float(charge.delay_s), energy_j + float(charge.energy_j.sum())
        records.append(
            replace(
                met.record,
                delay_s=float(charge.delay_s),
                resplit_delay_s=float(charge.resplit_delay_s),
                uplink_stage_delay_s=float(charge.uplink_stage_delay_s),
                server_stage_delay_s=float(charge.server_stage_delay_s),
                energy_j=charge.energy_j.tolist(),
                resplit_energy_j=charge.resplit_energy_j.tolist(),
                total_delay_s=delay_s,
                total_energy_j=energy_j,
            )
        )
    return records


def check_chargeable(run: Run) -> None:
    """Refuse a run whose records don't say what its rounds would have cost."""
    assert run.config is not None
    name = f"{run.scheme}, seed {run.seed}"
    if run.config.field.costs == "measured":
        raise AsflError(f"{name}: its costs were measured, not computed, so they can't be recharged")
    if (run.config.budget.total_delay_s, run.config.budget.battery_j) != ("off", "off"):
        raise AsflError(f"{name}: total budgets ended it, and would have ended it elsewhere with other charges")
