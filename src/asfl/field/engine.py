"""A run whose clients are elsewhere: the same folder, records, checkpoints and bits as one in a single process."""

from collections.abc import Callable, Sequence
from pathlib import Path

from asfl.budgets import Budgets
from asfl.callbacks import Tracker
from asfl.config import Config
from asfl.field.links import Link
from asfl.field.measured import MeasuredWorld
from asfl.field.probe import probe
from asfl.field.remote import remote_fleet
from asfl.field.roll import Patience
from asfl.field.shaping import read_profile
from asfl.field.terms import Terms
from asfl.field.watch import Watch
from asfl.records import RoundRecord
from asfl.run import MANIFEST_FILE, is_finished, read_manifest, run, usual_threads
from asfl.world import World


def terms_for(config: Config, scheme: str, folder: Path, threads: int | None = None) -> Terms:
    """The terms of a run in this folder; one that was begun before goes on with as many threads as it began with."""
    if (folder / MANIFEST_FILE).exists():
        threads = read_manifest(folder).threads
    file = config.field.shaping
    shaping = read_profile(file, config.scenario.clients) if file else ()
    return Terms(config, scheme, threads or usual_threads(), shaping)


def train(
    terms: Terms,
    folder: Path,
    links: Sequence[Link],
    *,
    patience: Patience | None = None,
    data_dir: Path | None = None,
    budgets: Budgets | None = None,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
    should_stop: Callable[[], bool] = lambda: False,
    trackers: Sequence[Tracker] = (),
) -> bool:
    """Train in a folder over one link per client: a new run, or the rest of the one that is there.

    Everything is as in `asfl.run.run`, which does the same with clients in this process; either can go on where the
    other stopped. The server needs the data set too, for its test images. With `field.costs = "measured"` the clients
    should be there when this is called: their links are measured first.
    """
    config = terms.config
    patience, world, watch = patience or Patience.of(config.field), None, None
    if config.field.costs == "measured" and not is_finished(folder):
        world = measured_world(config)
        watch = world.watch
        probe(links, watch, patience.deadlines.sync_s)
        budgets = budgets or world.budgets()
    return run(
        config,
        terms.scheme,
        folder,
        data_dir=data_dir,
        budgets=budgets,
        on_round=on_round,
        should_stop=should_stop,
        threads=terms.threads,
        trackers=trackers,
        fleet=remote_fleet(links, patience, watch),
        world=world,
    )


def measured_world(config: Config) -> MeasuredWorld:
    """A world of which nothing is known yet."""
    modelled = World.of(config)
    watch = Watch(modelled.profile, config.training.batch_size, config.scenario.clients, config.field)
    return MeasuredWorld(config, modelled.profile, modelled.channel, watch)
