"""A run: one scheme trained from the first round to the last, in a folder of its own that survives anything.

    manifest.json     the resolved configuration, scheme, budgets, versions, git commit; written once, at the start
    rounds.jsonl      one line per finished round
    checkpoints/      the state after some of the rounds
    model.safetensors the average model, once the run is finished
    tensorboard/ …    what trackers leave, if any (asfl.runs.callbacks)

Resuming goes back to the newest whole checkpoint and plays the rounds after it again. All randomness is keyed by seed
and round, so they come out the same, bit for bit.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from asfl.config import Config, by_name
from asfl.config.errors import AsflError, MissingExtraError
from asfl.costs.budgets import Budgets
from asfl.costs.decision import Decision
from asfl.costs.world import World
from asfl.runs.callbacks import Settings, Tracking, check_trackers, trackers_for
from asfl.runs.files import append_line, write_whole
from asfl.runs.manifest import (
    CHECKPOINTS,
    MANIFEST_FILE,
    MODEL_FILE,
    Manifest,
    facts_of_now,
    is_finished,
    read_manifest,
    run_to_go_on_with,
)
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.this_process import usual_threads
from asfl.runs.watching import Watching
from asfl.schemes import scheme_named
from asfl.schemes.rounds import budgets_of

if TYPE_CHECKING:
    from asfl.runs.simulation import Simulation
    from asfl.train.fleet import FleetMaker

LONGEST_UNSAVED_S = 60.0


def run(
    config: Config,
    scheme: str,
    folder: Path,
    *,
    budgets: Budgets | None = None,
    recorded: Sequence[Decision] = (),
    fleet: "FleetMaker | None" = None,
    world: World | None = None,
    **watching: Unpack[Watching],
) -> bool:
    """Train a scheme in a folder: a new run, or the rest of the one that is there. True: all rounds are done.

    `recorded` is what ASFL decided in the same world, round by round, for a scheme that borrows its blocks and powers.
    `fleet` makes the clients, if they aren't in this process (`asfl.field`); `world` is given if it isn't simulated.
    """
    config = config.for_scheme(scheme_named(scheme).name)
    data_dir = watching.get("data_dir")
    begun = run_to_go_on_with(folder, config, scheme)
    if begun is not None:
        if recorded and not begun.recorded:
            raise AsflError(
                f"{folder} holds a run that began without what ASFL decided in this world; remove it, or give another "
                "--out"
            )
        manifest = replace(begun, config=config)  # what doesn't change results is taken as it is wished now
    else:
        check_training(config, data_dir, real_clients=world is not None)  # before anything is written
        budgets = budgets or budgets_of(World.of(config), scheme_named(scheme))
        threads = watching.get("threads") or usual_threads()
        manifest = Manifest(config, scheme, budgets, threads, facts_of_now(data_dir), tuple(recorded))
        write_whole(folder / MANIFEST_FILE, json.dumps(manifest.to_json(), indent=2).encode())
    return _go_on(folder, manifest, watching, fleet, world)


def check_training(config: Config, data_dir: Path | None = None, *, real_clients: bool = False) -> None:
    """Refuse what can't be trained here: PyTorch, the GPU, the data or a tracker is missing."""
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
    if samples < config.training.batch_size:
        raise AsflError(
            f"training.batch_size = {config.training.batch_size}, but {len(data.train_labels):,} training images of "
            f"{config.data.name} give each of {clients} clients only {samples}"
        )
    if config.training.device == "cuda":
        from asfl.train.device import device_named

        device_named("cuda")


def resume(folder: Path, **watching: Unpack[Watching]) -> bool:
    """Play the rest of the rounds of a run folder."""
    return _go_on(folder, read_manifest(folder), watching)


def _go_on(
    folder: Path,
    manifest: Manifest,
    watching: Watching,
    fleet: "FleetMaker | None" = None,
    world: World | None = None,
) -> bool:
    if is_finished(folder):
        return True
    data_dir = manifest.data_dir(watching.get("data_dir"))
    check_training(manifest.config, data_dir, real_clients=world is not None)
    # PyTorch is slow to import, and none of the checks above needs it.
    import torch

    from asfl.data import load_data
    from asfl.runs.checkpoints import load_checkpoint
    from asfl.runs.simulation import Simulation
    from asfl.train.fleet import LocalFleet
    from asfl.train.memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(manifest.threads)
    data = load_data(manifest.config, data_dir)
    scheme = scheme_named(manifest.scheme)
    clients = fleet or LocalFleet
    simulation = Simulation(manifest.config, scheme, data, manifest.budgets, clients, world, manifest.recorded)
    checkpoint = load_checkpoint(folder / CHECKPOINTS, manifest.fingerprint)
    if checkpoint is not None:
        simulation.restore(checkpoint)
    before = _keep_rounds(folder, simulation.round_index)

    tracking = Tracking([*trackers_for(manifest.config.output.track), *watching.get("trackers", ())])
    finished = False
    try:
        tracking.begin(folder, _settings(manifest), before)
        finished = _play(simulation, manifest, folder, tracking, watching)
    finally:
        tracking.end(finished)
    return finished


def _play(
    simulation: "Simulation",
    manifest: Manifest,
    folder: Path,
    tracking: Tracking,
    watching: Watching,
) -> bool:
    """Round after round, to the last one (True) or until somebody says stop."""
    from safetensors.torch import save

    from asfl.runs.checkpoints import save_checkpoint
    from asfl.runs.finite import check_finite

    def save_state(*, whole: bool = True) -> float:
        tensors = simulation.tensors(whole=whole)
        check_finite(tensors, simulation.round_index)
        save_checkpoint(folder / CHECKPOINTS, simulation.round_index, tensors, manifest.fingerprint)
        return time.monotonic()

    saved_at, every = time.monotonic(), manifest.config.output.checkpoint_every
    measured = manifest.config.field.costs == "measured"
    on_round, should_stop = watching.get("on_round"), watching.get("should_stop")
    while not simulation.finished:
        record = simulation.play_round()
        append_line(folder / RECORDS_FILE, record.to_line())
        if on_round is not None:
            on_round(record)
        tracking.round(record)
        if simulation.finished:
            break
        stop = should_stop is not None and should_stop()
        if stop or simulation.round_index % every == 0 or time.monotonic() - saved_at > LONGEST_UNSAVED_S:
            saved_at = save_state()
        elif measured:  # such a round can't be played again, and asking everybody for everything takes long
            save_state(whole=False)
        if stop:
            return False
    save_state()
    model = simulation.average_model()
    check_finite(model, simulation.round_index)
    write_whole(folder / MODEL_FILE, save(model))
    return True


def _keep_rounds(folder: Path, rounds: int) -> list[RoundRecord]:
    """Cut the records back to the rounds the checkpoint knows; the later ones are played again, to the same lines."""
    file = folder / RECORDS_FILE
    if not file.exists():
        if rounds:
            raise AsflError(f"{folder}: the checkpoint is of round {rounds}, but {RECORDS_FILE} is gone")
        return []
    records = read_records(folder)
    if len(records) < rounds:
        raise AsflError(
            f"{file} ends after round {len(records)}, but the checkpoint is of round {rounds}: the file was cut short"
        )
    kept = records[:rounds]
    write_whole(file, "".join(record.to_line() for record in kept).encode())
    return kept


def _settings(manifest: Manifest) -> Settings:
    fields = by_name(manifest.config.model_dump(mode="json"))
    plain = {
        name: value if isinstance(value, str | int | float) else json.dumps(value) for name, value in fields.items()
    }
    return {"scheme": manifest.scheme, "seed": manifest.config.scenario.seed, **plain}
