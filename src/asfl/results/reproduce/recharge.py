"""What recorded rounds cost under other charges: decisions, links and arrivals as they were; nothing is trained.

A round keeps the links that it had: where these follow the clock, those of the recorded time. Stages end by an outage
when they do in the world with these charges.
"""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.costs.modelled import ASFL, in_time
from asfl.costs.world import Budgets, ModelledAccountant, World, draw_arrivals
from asfl.results.curves import Run
from asfl.results.recorded import as_met
from asfl.results.reproduce.archive import NEXT_COMMAND, Found, runs_of, with_runs
from asfl.runs.this_process import leave_ctrl_c_to_the_parent, usual_threads
from asfl.schemes import Scheme, scheme_named
from asfl.schemes.base import budgets_of

CHARGES = (
    "compute.", "radio.downlink_bandwidth_hz", "radio.server_tx_power_w", "scenario.min_cpu_hz", "scenario.max_cpu_hz",
    "model.charged_as", "radio.slices", "decision.timing", "decision.charge", "decision.outage_s",
    "decision.gradient_bits", "decision.overheads", "decision.discrepancy_sample_ratio",
)  # fmt: skip
"""Settings that say what a round costs, and neither whose packets arrive nor what is learnt from them."""

Floats = NDArray[np.float64]
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
    runs = {key: on_trace(run, files) for key, run in recorded.items()}
    lost = {_trace_of(run) for run in runs.values() if not is_there(run)}
    for name in sorted(lost):
        print(f"left as recorded: all runs on {name}, which isn't here (give --trace FILE)", file=sys.stderr)
    here = {key: run for key, run in runs.items() if run.config and is_there(run)}
    done = _in_processes([(run, (*ALWAYS, *settings)) for run in here.values()], workers or usual_threads())
    names = {Path(name).name: Path(name) for name in map(_trace_of, recorded.values())}  # as they were given
    charged = {key: on_trace(run, names) for key, run in zip(here, done, strict=True)}
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


def on_trace(run: Run, files: Mapping[str, Path]) -> Run:
    file = files.get(Path(_trace_of(run)).name) if _trace_of(run) else None
    if run.config is None or file is None:
        return run
    return replace(run, config=load_config(run.config, {"scenario.channel.trace_file": file}).config)


def is_there(run: Run) -> bool:
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
    if run.config is None or not is_chargeable(run):
        return run
    config = load_config(run.config, settings).config
    return replace(charged_on(run, [config], {}).of(run, 0), config=config)


def is_chargeable(run: Run) -> bool:
    """Whether rounds of this run cost something that can be computed anew."""
    if run.config is None or run.is_ceiling:
        return False
    check_chargeable(run)
    return any(power for record in run.records for power in record.tx_power_w)


@dataclass(frozen=True, eq=False)
class Charges:
    """Of C configurations and R rounds."""

    stages_s: Floats
    """[3, C, R]"""
    energy_j: Floats
    """[C, R, N]; of layers that move up, too."""
    resplit_energy_j: Floats

    def of(self, run: Run, place: int) -> Run:
        """The run as one of the configurations charges it."""
        records, delay_s, energy_j = [], 0.0, 0.0
        for index, record in enumerate(run.records):
            resplit_s, uplink_s, server_s = self.stages_s[:, place, index].tolist()
            own_s, own_j = resplit_s + uplink_s + server_s, self.energy_j[place, index]
            delay_s, energy_j = delay_s + own_s, energy_j + float(own_j.sum())
            charge = replace(
                record,
                delay_s=own_s,
                resplit_delay_s=resplit_s,
                uplink_stage_delay_s=uplink_s,
                server_stage_delay_s=server_s,
                energy_j=own_j.tolist(),
                resplit_energy_j=self.resplit_energy_j[place, index].tolist(),
                total_delay_s=delay_s,
                total_energy_j=energy_j,
            )
            records.append(charge)
        return replace(run, records=records)


def charged_on(run: Run, configs: Sequence[Config], known: dict[tuple[object, ...], Budgets]) -> Charges:
    """What each configuration charges for the rounds of a run; they differ in processors alone.

    Who is late, so is brought up to date another time, is what the first says. `known`: budgets of worlds met before.
    """
    worlds, scheme = [World.of(config) for config in configs], scheme_named(run.scheme)
    world, basis = worlds[0], ModelledAccountant(configs[0].decision.charge)
    machines = [replace(one.begin_round(0), outage_s=_budgets(one, scheme, known).own_outage_s) for one in worlds]
    shape = (len(configs), len(run.records), configs[0].scenario.clients)
    stages_s, energy_j, resplit_j = np.zeros((3, *shape[:2])), np.zeros(shape), np.zeros(shape)
    previous_cut, holdings, time_s = None, None, 0.0
    for index, record in enumerate(run.records):
        round_ = world.begin_round(record.round - 1, previous_cut, time_s)
        round_, decision = as_met(round_, record, scheme, holdings)
        round_ = round_.on(machines)
        finishes = np.broadcast_to(in_time(round_, decision, scheme.exchange), energy_j[:, index].shape)
        arrived = np.array(record.arrived, dtype=np.bool_)
        # A late client lost its packet either way; whether the channel lost it, too, says who is served in stage 3.
        received = np.where(finishes, arrived, arrived | draw_arrivals(round_, decision, world.config.scenario.seed))
        charge = basis.charge(round_, decision, scheme.exchange, received)
        stages_s[:, :, index] = np.broadcast_arrays(
            charge.resplit_delay_s, charge.uplink_stage_delay_s, charge.server_stage_delay_s, stages_s[0, :, index]
        )[:3]
        energy_j[:, index], resplit_j[:, index] = charge.energy_j, charge.resplit_energy_j
        time_s = record.total_delay_s
        if decision.scheduled.any():
            if round_.holdings is not None:
                updated = decision.scheduled & finishes[0]
                holdings = round_.holdings.after(decision, updated, trained=bool(arrived.any()))
            if np.ndim(decision.cut) == 0 or scheme.exchange.on_demand:
                previous_cut = int(np.max(decision.cut))
    return Charges(stages_s, energy_j, resplit_j)


def _budgets(world: World, scheme: Scheme, known: dict[tuple[object, ...], Budgets]) -> Budgets:
    config = world.config
    given = config.model_dump_json(include={"scenario", "radio", "compute", "model", "data", "privacy", "decision"})
    rules = ASFL if scheme.exchange.keeps_client_sides else scheme.exchange  # all that keep them have ASFL's
    key = given, config.charged_samples, config.training.local_steps, rules, str(getattr(scheme, "cuts", None))
    if key not in known:
        known[key] = budgets_of(world, scheme)
    return known[key]


def check_chargeable(run: Run) -> None:
    """Refuse a run whose records don't say what its rounds would have cost."""
    assert run.config is not None
    name = f"{run.scheme}, seed {run.seed}"
    if run.config.field.costs == "measured":
        raise AsflError(f"{name}: its costs were measured, not computed, so they can't be recharged")
    if (run.config.budget.total_delay_s, run.config.budget.battery_j) != ("off", "off"):
        raise AsflError(f"{name}: total budgets ended it, and would have ended it elsewhere with other charges")
