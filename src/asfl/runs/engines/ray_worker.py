"""What runs on a node of a Ray cluster: a process that trains one run after the other, in a folder of its own.

Training happens in a thread. Meanwhile the driver asks again and again for news: rounds as they are played, each new
checkpoint, in the end everything else. No disk has to be seen by both.
"""

import queue
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from asfl.runs.engines.processes import attempt
from asfl.runs.engines.ray_actors import Actor
from asfl.runs.engines.scratch import scratch_folder
from asfl.runs.engines.shipping import Destination, News, Piece, Source
from asfl.runs.jobs import Ended, Job, Train
from asfl.runs.records import RoundRecord

PATIENCE_S = 0.5
"""How long `report` waits for news: a question costs little, but not nothing."""


class Trainer(Actor):
    """Trains the runs it is given. A Ray actor: one driver calls its methods, one after the other."""

    def __init__(self, driver_folder: str, scratch: str | None) -> None:
        """`scratch`: where to work, if not where temporary files go."""
        super().__init__(driver_folder)
        self._scratch = Path(scratch) if scratch else None
        self._run: _Run | None = None

    def receive(self, piece: Piece) -> None:
        """Part of the folder of the next run, which was begun elsewhere."""
        self._this_run().destination.take(piece)

    def begin(self, job: Job, train: Train) -> None:
        self._this_run().begin(job, train)

    def report(self, stop: bool) -> list[News]:
        """What happened since the last time, to be taken in this order."""
        news = self._this_run().report(stop)
        if news and isinstance(news[-1], Ended):
            self._this_run().clear_up()
            self._run = None
        return news

    def _this_run(self) -> "_Run":
        if self._run is None:
            self._run = _Run(self._scratch)
        return self._run


class _Run:
    """One run in a scratch folder."""

    def __init__(self, parent: Path | None) -> None:
        self._open = ExitStack()
        self._scratch = self._open.enter_context(scratch_folder("asfl-run-", parent))
        self.destination = Destination(self._scratch / "luggage")
        self._rounds: queue.SimpleQueue[RoundRecord | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._sending = False
        self._ended = Ended(False)

    def begin(self, job: Job, train: Train) -> None:
        self._home = job.folder
        last_two = job.folder.absolute().parts[-2:]  # by them trackers name a run
        self._folder = self._scratch.joinpath("at", *last_two)
        self._folder.parent.mkdir(parents=True)
        if self.destination.folder.exists():
            self.destination.folder.rename(self._folder)
        self._source = Source(self._folder)
        work = replace(job, folder=self._folder)
        self._thread = threading.Thread(target=self._train, args=(work, train), daemon=True)
        self._thread.start()

    def _train(self, job: Job, train: Train) -> None:
        self._ended = attempt(train, job, self._rounds.put, self._stop.is_set)
        self._rounds.put(None)  # so that nobody waits for another one

    def report(self, stop: bool) -> list[News]:
        if stop:
            self._stop.set()
        rounds = self._new_rounds(0.0 if self._sending else PATIENCE_S)
        # First the thread, then the files, then the rounds: so no checkpoint comes before its rounds, and once the
        # thread was over, nothing new can appear behind our back.
        over = not self._thread.is_alive()
        piece = self._source.next_piece(everything=over)
        rounds += self._new_rounds(0.0)
        self._sending = piece is not None
        news: list[News] = [*self._source.manifest(), *rounds]
        if piece is not None:
            news.append(piece)
        elif over:
            news.append(self._end())
        return news

    def _new_rounds(self, wait_s: float) -> list[RoundRecord]:
        """Those that were played; if there are none, wait for one."""
        found = []
        with suppress(queue.Empty):
            found.append(self._rounds.get(timeout=wait_s))
            while True:
                found.append(self._rounds.get_nowait())
        return [record for record in found if record is not None]

    def _end(self) -> Ended:
        """How it ended, told at home, where nobody knows the scratch folder."""
        here, home, end = str(self._folder), str(self._home), self._ended
        return replace(end, reason=end.reason.replace(here, home), traceback=end.traceback.replace(here, home))

    def clear_up(self) -> None:
        self._thread.join()
        self._open.close()
