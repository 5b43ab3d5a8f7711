"""A run: one scheme trained from the first round to the last, in a folder of its own that survives anything.

    manifest.json     the resolved configuration, scheme, budgets, versions, git commit; written once, at the start
    rounds.jsonl      one line per finished round
    checkpoints/      the state after some of the rounds
    model.safetensors the average model, once the run is finished
    tensorboard/ …    what trackers leave, if any (asfl.callbacks)

Resuming goes back to the newest whole checkpoint and plays the rounds after it again. All randomness is keyed by seed
and round, so they come out the same, bit for bit.
"""

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from asfl._version import __version__
from asfl.budgets import Budgets, resolve_budgets
from asfl.callbacks import Settings, Tracker, Tracking, check_trackers, trackers_for
from asfl.config import Config, by_name, differing_names
from asfl.errors import AsflError, MissingExtraError
from asfl.files import append_line, write_whole
from asfl.plugins import loaded_plugins
from asfl.records import RECORDS_FILE, RoundRecord, read_records
from asfl.schemes import scheme_named
from asfl.world import World

if TYPE_CHECKING:
    from asfl.simulate import Simulation
    from asfl.train.fleet import FleetMaker

MANIFEST_FILE, CHECKPOINTS, MODEL_FILE = "manifest.json", "checkpoints", "model.safetensors"
FORMAT = 1
LONGEST_UNSAVED_S = 60.0
_WITHOUT_EFFECT = {
    "output": ("folder", "checkpoint_every", "track"),
    "data": ("folder",),
    "field": ("deadlines", "nobody_s", "shaping"),
}
"""Fields that don't change results: where things lie, who watches, how long one waits for whom."""


@dataclass(frozen=True)
class Manifest:
    """What a run is."""

    config: Config
    scheme: str
    budgets: Budgets
    threads: int
    """Of PyTorch; another number may round differently."""
    facts: dict[str, Any]
    """When, with which versions: for people, and never compared."""

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes results; not with where things lie, who watches, or how often is saved."""
        config = comparable(self.config)
        text = json.dumps([FORMAT, self.scheme, config], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def data_dir(self, given: Path | None) -> Path | None:
        """The folder given now, else the one given when the run began."""
        before = self.facts.get("data_dir")
        return given or (Path(before) if before else None)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "scheme": self.scheme,
            "seed": self.config.scenario.seed,
            "budgets": {"delay_s": self.budgets.delay_s, "energy_j": self.budgets.energy_j},
            "threads": self.threads,
            "facts": self.facts,
            "config": self.config.model_dump(mode="json"),
        }


def comparable(config: Config) -> dict[str, Any]:
    """A configuration without what doesn't change results."""
    plain: dict[str, Any] = config.model_dump(mode="json")
    for section, names in _WITHOUT_EFFECT.items():
        for name in names:
            plain[section].pop(name)
    return plain


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run folder; a clear error for anything else."""
    file = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise AsflError(f"{folder} is not a run folder: there is no such folder")
    if not file.is_file():
        raise AsflError(f"{folder} is not a run folder: it has no {MANIFEST_FILE}")
    try:
        data = json.loads(file.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise AsflError(f"{file}: format {data['format']}, but this asfl ({__version__}) reads format {FORMAT}")
        budgets = Budgets(float(data["budgets"]["delay_s"]), float(data["budgets"]["energy_j"]))
        config = Config.model_validate(data["config"])
        return Manifest(config, str(data["scheme"]), budgets, int(data["threads"]), dict(data["facts"]))
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise AsflError(f"{file} is not the manifest of a run: {_first_line(error)}") from None


def is_finished(folder: Path) -> bool:
    """Whether all rounds of the run in this folder are done; False if there is no run."""
    return (folder / MANIFEST_FILE).is_file() and (folder / MODEL_FILE).is_file()


def run(
    config: Config,
    scheme: str,
    folder: Path,
    *,
    data_dir: Path | None = None,
    budgets: Budgets | None = None,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
    should_stop: Callable[[], bool] = lambda: False,
    threads: int | None = None,
    trackers: Sequence[Tracker] = (),
    fleet: "FleetMaker | None" = None,
    world: World | None = None,
) -> bool:
    """Train a scheme in a folder: a new run, or the rest of the one that is there.

    `on_round` is called when a round's record is on the disk. `should_stop` is asked after each round: if it says so, a
    checkpoint is written and the result is False. True: all rounds are done. `trackers` watch besides those that
    `output.track` names. `fleet` makes the clients, if they aren't in this process (`asfl.field`), and `world` is
    given if it isn't simulated.
    """
    scheme_named(scheme)
    begun = run_to_go_on_with(folder, config, scheme)
    if begun is not None:
        manifest = replace(begun, config=config)  # what doesn't change results is taken as it is wished now
    else:
        check_training(config, data_dir, real_clients=world is not None)  # before anything is written
        budgets = budgets or resolve_budgets(World.of(config))
        manifest = Manifest(config, scheme, budgets, threads or usual_threads(), _facts(data_dir))
        write_whole(folder / MANIFEST_FILE, json.dumps(manifest.to_json(), indent=2).encode())
    return _go_on(folder, manifest, data_dir, on_round, should_stop, trackers, fleet, world)


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


def resume(
    folder: Path,
    *,
    data_dir: Path | None = None,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
    should_stop: Callable[[], bool] = lambda: False,
    trackers: Sequence[Tracker] = (),
) -> bool:
    """Play the rest of the rounds of a run folder, watched as when it began."""
    return _go_on(folder, read_manifest(folder), data_dir, on_round, should_stop, trackers)


def _go_on(
    folder: Path,
    manifest: Manifest,
    data_dir: Path | None,
    on_round: Callable[[RoundRecord], None],
    should_stop: Callable[[], bool],
    trackers: Sequence[Tracker],
    fleet: "FleetMaker | None" = None,
    world: World | None = None,
) -> bool:
    if is_finished(folder):
        return True
    check_training(manifest.config, manifest.data_dir(data_dir), real_clients=world is not None)
    # PyTorch is slow to import, and none of the checks above needs it.
    import torch

    from asfl.checkpoints import load_checkpoint
    from asfl.data import load_data
    from asfl.simulate import Simulation
    from asfl.train.fleet import LocalFleet
    from asfl.train.memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(manifest.threads)
    data = load_data(manifest.config, manifest.data_dir(data_dir))
    scheme = scheme_named(manifest.scheme)
    simulation = Simulation(manifest.config, scheme, data, manifest.budgets, fleet or LocalFleet, world)
    checkpoint = load_checkpoint(folder / CHECKPOINTS, manifest.fingerprint)
    if checkpoint is not None:
        simulation.restore(checkpoint)
    before = _keep_rounds(folder, simulation.round_index)

    tracking, finished = Tracking([*trackers_for(manifest.config.output.track), *trackers]), False

    def recorded(record: RoundRecord) -> None:
        on_round(record)
        tracking.round(record)

    try:
        tracking.begin(folder, _settings(manifest), before)
        finished = _play(simulation, manifest, folder, recorded, should_stop)
    finally:
        tracking.end(finished)
    return finished


def _play(
    simulation: "Simulation",
    manifest: Manifest,
    folder: Path,
    recorded: Callable[[RoundRecord], None],
    should_stop: Callable[[], bool],
) -> bool:
    """Round after round, to the last one (True) or until somebody says stop."""
    from safetensors.torch import save

    from asfl.checkpoints import save_checkpoint

    def save_state(*, whole: bool = True) -> float:
        tensors = simulation.tensors(whole=whole)
        save_checkpoint(folder / CHECKPOINTS, simulation.round_index, tensors, manifest.fingerprint)
        return time.monotonic()

    saved_at, every = time.monotonic(), manifest.config.output.checkpoint_every
    measured = manifest.config.field.costs == "measured"
    while not simulation.finished:
        record = simulation.play_round()
        append_line(folder / RECORDS_FILE, record.to_line())
        recorded(record)
        if simulation.finished:
            break
        stop = should_stop()
        if stop or simulation.round_index % every == 0 or time.monotonic() - saved_at > LONGEST_UNSAVED_S:
            saved_at = save_state()
        elif measured:  # such a round can't be played again, and asking everybody for everything takes long
            save_state(whole=False)
        if stop:
            return False
    save_state()
    write_whole(folder / MODEL_FILE, save(simulation.average_model()))
    return True


def first_difference(before: Config, now: Config) -> str | None:
    """The first field in which two configurations differ in a way that changes results: "a.b = 1 there, 2 here"."""
    old, new = by_name(comparable(before)), by_name(comparable(now))
    name = next(iter(differing_names([old, new])), None)
    return None if name is None else f"{name} = {old.get(name)} there, {new.get(name)} here"


def usual_threads() -> int:
    """As many as there are cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_to_go_on_with(folder: Path, config: Config, scheme: str) -> Manifest | None:
    """The run that is in the folder, None if it can begin there; refused if it is another run, or something else."""
    if not (folder / MANIFEST_FILE).exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise AsflError(f"{folder} exists and is not a run folder; give the name of a new one")
        return None
    manifest = read_manifest(folder)
    if manifest.scheme != scheme:
        raise AsflError(f"{folder} holds a run of scheme {manifest.scheme}, not {scheme}; give another --out")
    difference = first_difference(manifest.config, config)
    if difference is not None:
        raise AsflError(f"{folder} holds a run with another configuration ({difference}); give another --out")
    return manifest


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


def _facts(data_dir: Path | None) -> dict[str, Any]:
    import numpy as np
    import torch

    return {
        "asfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git_commit(),
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": loaded_plugins(),
    }


def _git_commit() -> str | None:
    """Of the source tree asfl runs from; None for an installed package."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(here), "status", "--porcelain", "--", "."],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"config.{'.'.join(map(str, first['loc']))}: {first['msg']}"
    text = f"no {error} in it" if isinstance(error, KeyError) else str(error)
    return text.splitlines()[0] if text else type(error).__name__
