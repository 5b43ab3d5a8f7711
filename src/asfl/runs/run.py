"""A run: one scheme trained from the first round to the last, in a folder of its own that survives anything.

    manifest.json     the resolved configuration, scheme, budgets, versions, git commit; CPU seconds so far
    rounds.jsonl      one line per finished round
    checkpoints/      the state after some of the rounds
    model.safetensors the average model, once the run is finished; model.json is its seal
    tensorboard/ …    what trackers leave, if any (asfl.runs.callbacks)

Every file has a checksum (asfl.runs.files), and one process at a time may write. Resuming goes back to
the newest whole checkpoint and plays the rounds after it again. All randomness is keyed by seed and round, so they come
out the same, bit for bit.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from asfl.config import Config, by_name
from asfl.config.errors import AsflError, MissingExtraError
from asfl.costs.round import Decision
from asfl.costs.world import Budgets, World
from asfl.runs.callbacks import Settings, Tracker, Tracking, check_trackers, trackers_for
from asfl.runs.estimate import check_run
from asfl.runs.files import remove_abandoned, write_sealed, writing
from asfl.runs.folder import (
    Checkpoint,
    check_finite,
    check_sources,
    is_finished,
    save_checkpoint,
    sources_of,
    where_to_go_on,
)
from asfl.runs.initial import check_initial
from asfl.runs.manifest import (
    CHECKPOINTS,
    MODEL_FILE,
    Manifest,
    facts_of_now,
    read_manifest,
    run_to_go_on_with,
    write_manifest,
)
from asfl.runs.records import Journal, RoundRecord
from asfl.runs.this_process import usual_threads
from asfl.schemes import scheme_named
from asfl.schemes.base import budgets_of

if TYPE_CHECKING:
    from asfl.runs.simulation import Simulation
    from asfl.train.fleet import FleetMaker

LONGEST_UNSAVED_S = 60.0
OnRound = Callable[[RoundRecord], None]
ShouldStop = Callable[[], bool]


class RunOptions(TypedDict, total=False):
    """How a run is watched, and with what it runs here: nothing of it changes results but the number of threads."""

    on_round: OnRound
    """Called when a round's record is on the disk."""
    should_stop: ShouldStop
    """Asked after each round: if it says so, a checkpoint is written and the run stops."""
    trackers: Sequence[Tracker]
    """That are shown the rounds besides those that `output.track` names."""
    data_dir: Path | None
    """Where data sets lie."""
    threads: int | None
    """Of PyTorch, for a run that begins; one that goes on keeps its own."""


def run(
    config: Config,
    scheme: str,
    folder: Path,
    *,
    budgets: Budgets | None = None,
    recorded: Sequence[Decision] = (),
    fleet: "FleetMaker | None" = None,
    world: World | None = None,
    **options: Unpack[RunOptions],
) -> bool:
    """Train a scheme in a folder: a new run, or the rest of the one that is there. True: all rounds are done.

    A run that had fewer rounds is extended: it ends as if it had been longer from the start, but that the round that
    once was its last keeps the evaluation of a last round. Until the longer run goes on, nothing of the shorter one is
    changed; its model stays until there is a new one.

    `recorded` is what ASFL decided in the same world, round by round, for a scheme that borrows from it.
    `fleet` makes the clients, if they aren't in this process (`asfl.field`); `world` is given if it isn't simulated.
    """
    config = config.for_scheme(scheme_named(scheme).name)
    data_dir = options.get("data_dir")
    there = run_to_go_on_with(folder, config, scheme, recorded)
    if there is None:
        check_training(config, data_dir, real_clients=world is not None, elsewhere=fleet is not None)  # nothing written
    elif is_finished(folder, config.training.rounds):
        check_sources(folder, there, config, there.data_dir(data_dir), needed=False)
        return True
    with writing(folder):
        begun = run_to_go_on_with(folder, config, scheme, recorded)  # no other process changes it from here on
        if begun is not None:
            if recorded and not begun.recorded:
                raise AsflError(
                    f"{folder} holds a run that began without what ASFL decided in this world; remove it, or give "
                    "another --out"
                )
            manifest = replace(begun, config=config)  # what doesn't change results is taken as it is wished now
        else:
            budgets = budgets or budgets_of(World.of(config), scheme_named(scheme))
            threads = options.get("threads") or usual_threads()
            sources = sources_of(config, scheme, data_dir)
            facts = facts_of_now(data_dir)
            manifest = Manifest(config, scheme, budgets, threads, facts, tuple(recorded), sources=sources)
            write_manifest(folder, manifest)
        return _go_on(folder, manifest, options, fleet, world)


def check_training(
    config: Config, data_dir: Path | None = None, *, real_clients: bool = False, elsewhere: bool = False
) -> None:
    """Refuse what can't be trained here: PyTorch, the GPU, the data or a tracker is missing.

    `elsewhere`: clients aren't in this process; `real_clients`: and their costs are measured.
    """
    check_trackers(config.output.track)
    if config.field.costs == "measured" and not real_clients:
        raise AsflError(
            'field.costs = "measured" needs clients that are somewhere else, but here they are in this process; '
            'set it to "modelled", or start a fleet: asfl fleet'
        )
    if util.find_spec("torch") is None or util.find_spec("safetensors") is None:
        raise MissingExtraError("training", "train")
    from asfl.data import load_data

    data, clients = load_data(config, data_dir), config.scenario.clients
    samples = len(data.train_labels) // clients
    if config.data.private and not elsewhere:
        raise AsflError(
            f"data.name = '{config.data.name}' are images that only devices have, but here clients are in this "
            "process; let devices in with asfl serve"
        )
    if samples < config.training.batch_size and not config.data.private:
        raise AsflError(
            f"training.batch_size = {config.training.batch_size}, but {len(data.train_labels):,} training images of "
            f"{config.data.name} give each of {clients} clients only {samples}"
        )
    if not real_clients:  # each of which has a machine of its own
        check_run(config)
    check_initial(config)
    if config.training.device == "cuda":
        from asfl.train.fleet import device_named

        device_named("cuda")


def resume(folder: Path, **options: Unpack[RunOptions]) -> bool:
    """Play the rest of the rounds of a run folder."""
    manifest = read_manifest(folder)
    if is_finished(folder):
        return True
    with writing(folder):
        return _go_on(folder, manifest, options)


def _go_on(
    folder: Path,
    manifest: Manifest,
    options: RunOptions,
    fleet: "FleetMaker | None" = None,
    world: World | None = None,
) -> bool:
    """In a folder that this process has locked. `manifest` may have more rounds than the one there."""
    if is_finished(folder, manifest.rounds):
        return True
    started = time.process_time()
    remove_abandoned(folder / CHECKPOINTS)
    data_dir = manifest.data_dir(options.get("data_dir"))
    check_training(manifest.config, data_dir, real_clients=world is not None, elsewhere=fleet is not None)
    # PyTorch is slow to import, and none of the checks above needs it.
    import torch

    from asfl.data import load_data
    from asfl.runs.simulation import Simulation
    from asfl.train.fleet import LocalFleet, keep_freed_memory

    data, shorter = load_data(manifest.config, data_dir), read_manifest(folder)
    check_sources(folder, manifest, manifest.config, data_dir)
    start = where_to_go_on(folder, manifest)
    keep_freed_memory()
    torch.set_num_threads(manifest.threads)
    scheme = scheme_named(manifest.scheme)
    clients = fleet or LocalFleet
    begins = start.checkpoint is None
    simulation = Simulation(
        manifest.config, scheme, data, manifest.budgets, clients, world, manifest.recorded, begins=begins
    )
    if start.checkpoint is not None:
        _restore(simulation, start.checkpoint)
    if shorter.rounds < manifest.rounds:  # nothing is refused any more
        write_manifest(folder, manifest)
    journal = start.clear()

    tracking = Tracking([*trackers_for(manifest.config.output.track), *options.get("trackers", ())])
    finished = False
    try:
        tracking.begin(folder, _settings(manifest), start.rounds.records[: start.round])
        finished = _play(simulation, manifest, folder, journal, tracking, options, started)
    finally:
        tracking.end(finished)
    return finished


def _play(
    simulation: "Simulation",
    manifest: Manifest,
    folder: Path,
    journal: Journal,
    tracking: Tracking,
    options: RunOptions,
    started: float,
) -> bool:
    """Round after round, to the last one (True) or until `should_stop` says so; CPU time counts from `started` on."""
    from safetensors.torch import save

    def save_state() -> float:
        tensors = simulation.tensors()
        save_checkpoint(folder, simulation.round_index, tensors, manifest.fingerprint, journal.checksum)
        so_far: dict[str, Any] = {"cpu_s": round(manifest.cpu_s + time.process_time() - started, 1)}
        if manifest.config.data.private:
            so_far["samples"] = simulation.trainer.state.samples.tolist()  # as far as devices have said
        write_manifest(folder, replace(manifest, facts={**manifest.facts, **so_far}))
        return time.monotonic()

    saved_at, every = time.monotonic(), manifest.config.output.checkpoint_every
    on_round, should_stop = options.get("on_round"), options.get("should_stop")
    while not simulation.finished:
        record = simulation.play_round()
        journal.append(record)
        if on_round is not None:
            on_round(record)
        tracking.round(record)
        if simulation.finished:
            break
        stop = should_stop is not None and should_stop()
        put_out = any(fault["stage"] == "quarantine" for fault in record.faults or ())  # and stays out
        if stop or put_out or simulation.round_index % every == 0 or time.monotonic() - saved_at > LONGEST_UNSAVED_S:
            saved_at = save_state()
        if stop:
            return False
    save_state()
    model = simulation.average_model()
    check_finite(model, simulation.round_index)
    write_sealed(
        folder / MODEL_FILE,
        save(model),
        round=simulation.round_index,
        fingerprint=manifest.fingerprint,
        records=journal.checksum,
    )
    return True


def _restore(simulation: "Simulation", checkpoint: Checkpoint) -> None:
    """A whole checkpoint may still be of another version, with other tensors in it."""
    try:
        simulation.restore(checkpoint.tensors)
    except (KeyError, ValueError, IndexError, TypeError, RuntimeError) as error:
        reason = f"no {error} in it" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise AsflError(f"{checkpoint.file} doesn't fit this run: {reason}") from None
    if simulation.round_index != checkpoint.seal.round:
        raise AsflError(f"{checkpoint.file} is of round {simulation.round_index}, not {checkpoint.seal.round}")


def _settings(manifest: Manifest) -> Settings:
    fields = by_name(manifest.config.model_dump(mode="json"))
    plain = {
        name: value if isinstance(value, str | int | float) else json.dumps(value) for name, value in fields.items()
    }
    return {"scheme": manifest.scheme, "seed": manifest.config.scenario.seed, **plain}
