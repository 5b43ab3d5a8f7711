"""A run whose clients are elsewhere: the same folder, records, checkpoints and bits as one in a single process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from asfl.config import Config
from asfl.config.names import is_own_file
from asfl.costs.world import Budgets
from asfl.field.fleet import remote_fleet
from asfl.field.measured import MeasuredWorld, probe
from asfl.field.messages import Agreement, Link
from asfl.field.roster import Patience
from asfl.field.shaping import read_profile
from asfl.runs.folder import is_finished
from asfl.runs.manifest import MANIFEST_FILE, read_manifest
from asfl.runs.run import RunOptions, run
from asfl.runs.this_process import usual_threads


def agreement_for(config: Config, scheme: str, folder: Path, threads: int | None = None) -> Agreement:
    """For a run in this folder; one that was begun before goes on with as many threads as it began with."""
    if (folder / MANIFEST_FILE).exists():
        threads = read_manifest(folder).threads
    config, file = config.for_scheme(scheme), config.field.shaping
    shaping = read_profile(file, config.scenario.clients) if file else ()
    return Agreement(config, scheme, threads or usual_threads(), shaping)


def train(
    agreement: Agreement,
    folder: Path,
    links: Sequence[Link],
    *,
    patience: Patience | None = None,
    budgets: Budgets | None = None,
    **watching: Unpack[RunOptions],
) -> bool:
    """Train in a folder over one link per client: a new run, or the rest of the one that is there.

    Everything is as in `asfl.runs.run.run`, which does the same with clients in this process; either can go on where
    the other stopped. The server needs the data set too, for its test images. With `field.costs = "measured"` the
    clients should be there when this is called: their links are measured first.
    """
    config = agreement.config
    patience, world, clocks = patience or Patience(config.field.deadline_s), None, None
    if config.field.costs == "measured" and not is_finished(folder, config.training.rounds):
        world = MeasuredWorld.unknown(config)
        clocks = world.clocks
        probe(links, clocks, patience.most_s("sync"))
        budgets = budgets or world.budgets()
    watching["threads"] = agreement.threads
    fleet = remote_fleet(links, patience, clocks)
    return run(config, agreement.scheme, folder, budgets=budgets, fleet=fleet, world=world, **watching)


def data_folder(config: Config, data_dir: Path | None) -> str | None:
    """Where clients with the same files look for their data: under the same path as here."""
    if is_own_file(config.data.name):
        return str(Path(config.data.name).absolute().parent)
    return str(data_dir.absolute()) if data_dir else None
