"""A run whose clients are elsewhere: the same folder, records, checkpoints and bits as one in a single process."""

from collections.abc import Callable, Sequence
from pathlib import Path

from asfl.budgets import Budgets
from asfl.callbacks import Tracker
from asfl.config import Config
from asfl.field.links import Link
from asfl.field.remote import remote_fleet
from asfl.field.roll import Patience
from asfl.field.terms import Terms
from asfl.records import RoundRecord
from asfl.run import MANIFEST_FILE, read_manifest, run, usual_threads


def terms_for(config: Config, scheme: str, folder: Path, threads: int | None = None) -> Terms:
    """The terms of a run in this folder; one that was begun before goes on with as many threads as it began with."""
    if (folder / MANIFEST_FILE).exists():
        threads = read_manifest(folder).threads
    return Terms(config, scheme, threads or usual_threads())


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
    other stopped. The server needs the data set too, for its test images.
    """
    return run(
        terms.config,
        terms.scheme,
        folder,
        data_dir=data_dir,
        budgets=budgets,
        on_round=on_round,
        should_stop=should_stop,
        threads=terms.threads,
        trackers=trackers,
        fleet=remote_fleet(links, patience),
    )
