"""All schemes in the same world: many runs side by side in processes, in one folder, resumable as a whole.

    compare.json          the resolved configuration, all schemes and seeds so far, versions
    <scheme>-seed<k>/     a run folder each
    summary.json, table.csv, *.png

Each process trains one run after the other and talks to the parent through a pipe of its own, so that one that is
killed takes nothing down but its run. Whatever arrives in the pipe during a run, the end of the pipe included, means:
finish the round, write a checkpoint, leave. So no run outlives the comparison by more than a round.
"""

import json
import multiprocessing
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from multiprocessing.connection import Connection, wait
from pathlib import Path
from platform import python_version

from pydantic import ValidationError

from asfl._version import __version__
from asfl.budgets import Budgets
from asfl.config import Config
from asfl.errors import AsflError
from asfl.files import write_whole
from asfl.play import leave_ctrl_c_to_the_parent, seeded
from asfl.records import RoundRecord, read_records
from asfl.run import check_training, first_difference, is_finished, read_manifest, run, usual_threads
from asfl.schemes import scheme_named
from asfl.summary import Run

COMPARE_FILE = "compare.json"
FORMAT = 1
SLOWEST = ("sl", "asfl-joint")
"""Clients in sequence; the costlier solver. Started first, so that no long run is left over at the end."""


@dataclass(frozen=True)
class Job:
    """One run to be trained."""

    scheme: str
    seed: int
    config: Config
    budgets: Budgets
    folder: Path
    data_dir: Path | None = None
    threads: int = 1
    point: str = ""
    """Which point of a sweep it belongs to, if any."""

    @property
    def name(self) -> str:
        return f"{self.point} {self.scheme} seed {self.seed}".lstrip()


@dataclass(frozen=True)
class Ended:
    """How a job ended: finished, stopped on demand (neither finished nor a reason), or failed for a reason."""

    finished: bool
    reason: str = ""
    traceback: str = ""
    """Empty for mistakes the user can mend."""


Event = RoundRecord | Ended
Train = Callable[[Job, Callable[[RoundRecord], None], Callable[[], bool]], bool]
"""Trains a job: told whom to report rounds to and whom to ask whether to stop; whether all rounds are done."""


def train(job: Job, on_round: Callable[[RoundRecord], None], should_stop: Callable[[], bool]) -> bool:
    return run(
        job.config,
        job.scheme,
        job.folder,
        data_dir=job.data_dir,
        budgets=job.budgets,
        on_round=on_round,
        should_stop=should_stop,
        threads=job.threads,
    )


@dataclass(frozen=True)
class Comparison:
    """A folder of runs: every scheme with every seed. The seed of the configuration has no meaning here."""

    folder: Path
    config: Config
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]

    def run_folder(self, scheme: str, seed: int) -> Path:
        return self.folder / f"{scheme}-seed{seed}"

    def jobs(self, data_dir: Path | None = None) -> list[Job]:
        """What is left to do: seed after seed, so that all schemes can soon be compared; slow schemes first."""
        order = sorted(self.schemes, key=lambda scheme: scheme not in SLOWEST)
        open_ = {seed: [s for s in order if not is_finished(self.run_folder(s, seed))] for seed in self.seeds}
        return [
            Job(scheme, config.scenario.seed, config, budgets, self.run_folder(scheme, config.scenario.seed), data_dir)
            for config, budgets in seeded(self.config, [seed for seed in self.seeds if open_[seed]])
            for scheme in open_[config.scenario.seed]
        ]

    def finished_runs(self) -> list[Run]:
        """In the order of schemes, then seeds."""
        folders = {(scheme, seed): self.run_folder(scheme, seed) for scheme in self.schemes for seed in self.seeds}
        return [
            Run(scheme, seed, read_records(folder), read_manifest(folder).budgets)
            for (scheme, seed), folder in folders.items()
            if is_finished(folder)
        ]

    def remember(self) -> None:
        """Write down what this comparison is, beside what was asked for in earlier calls."""
        before = read_comparison(self.folder) if (self.folder / COMPARE_FILE).exists() else self
        data = {
            "format": FORMAT,
            "schemes": list(dict.fromkeys([*before.schemes, *self.schemes])),
            "seeds": sorted({*before.seeds, *self.seeds}),
            "versions": _versions(),
            "config": before.config.model_dump(mode="json"),
        }
        write_whole(self.folder / COMPARE_FILE, json.dumps(data, indent=2).encode())


def read_comparison(folder: Path) -> Comparison:
    """The comparison of a folder, with all schemes and seeds it ever had; a clear error for anything else."""
    file = folder / COMPARE_FILE
    if not file.is_file():
        raise AsflError(f"{folder} is not the folder of a comparison: it has no {COMPARE_FILE}")
    try:
        data = json.loads(file.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise AsflError(f"{file}: format {data['format']}, but this asfl ({__version__}) reads format {FORMAT}")
        config = Config.model_validate(data["config"])
        return Comparison(folder, config, tuple(map(str, data["schemes"])), tuple(map(int, data["seeds"])))
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        text = str(error).partition("\n")[0]
        raise AsflError(f"{file} doesn't describe a comparison ({type(error).__name__}: {text})") from None


def plan_comparison(
    config: Config, schemes: Sequence[str], seeds: Sequence[int], folder: Path, data_dir: Path | None = None
) -> Comparison:
    """Check everything that can be checked before the first process starts; write nothing."""
    for name in schemes:
        scheme_named(name)
    if folder.exists() and not folder.is_dir():
        raise AsflError(f"{folder} is a file; give --out the name of a folder")
    if (folder / COMPARE_FILE).exists():
        before = read_comparison(folder)
        shared = before.config.scenario.model_copy(update={"seed": config.scenario.seed})
        difference = first_difference(before.config.model_copy(update={"scenario": shared}), config)
        if difference is not None:
            raise AsflError(f"{folder} holds a comparison in another world ({difference}); give another --out")
    elif folder.is_dir() and any(folder.iterdir()):
        raise AsflError(f"{folder} isn't empty and isn't a comparison; give --out the name of a new folder")
    comparison = Comparison(folder, config, tuple(dict.fromkeys(schemes)), tuple(dict.fromkeys(seeds)))
    if any(not is_finished(comparison.run_folder(name, seed)) for name in schemes for seed in seeds):
        check_training(config, data_dir)
    return comparison


def train_all(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    on_event: Callable[[Job, Event], None] = lambda job, event: None,
    should_stop: Callable[[], bool] = lambda: False,
    train: Train = train,
) -> dict[str, Ended]:
    """Train every job in one of `workers` processes (default: as many as cores), which share the cores.

    `should_stop` is asked a few times a second; once it says so, nothing new is started and what runs is stopped.
    The result says, by name, how each job ended that was started.
    """
    cores = usual_threads()
    workers = max(1, min(workers or cores, len(jobs)))
    waiting = deque(replace(job, threads=max(1, cores // workers)) for job in jobs)
    busy: dict[Connection, _Worker] = {}
    ended: dict[str, Ended] = {}
    stopping = False
    try:
        while waiting or busy:
            if not stopping and should_stop():
                stopping = True
                waiting.clear()
                for worker in busy.values():
                    worker.stop()
            while waiting and len(busy) < workers:
                worker = _Worker(train)
                worker.begin(waiting.popleft())
                busy[worker.pipe] = worker
            for pipe in wait(list(busy), timeout=0.2):
                worker = busy[pipe]  # type: ignore[index]
                event, job = worker.hear(), worker.job
                on_event(job, event)
                if isinstance(event, RoundRecord):
                    continue
                ended[job.name] = event
                if waiting and worker.alive:
                    worker.begin(waiting.popleft())
                else:
                    worker.leave()
                    del busy[worker.pipe]
    finally:
        for worker in busy.values():  # only after an exception, such as a second Ctrl-C
            worker.process.terminate()
    return ended


class _Worker:
    """A process that trains jobs, seen from the parent."""

    job: Job

    def __init__(self, train: Train) -> None:
        context = multiprocessing.get_context("spawn")  # PyTorch's threads don't survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, train), daemon=True)
        with _deaf_to_ctrl_c():
            self.process.start()
        theirs.close()
        self.alive = True

    def begin(self, job: Job) -> None:
        self.job = job
        self._tell(job)

    def stop(self) -> None:
        self._tell(None)

    def leave(self) -> None:
        self._tell(None)
        self.process.join(timeout=10)
        self.pipe.close()

    def hear(self) -> Event:
        """What the worker has to say; of one that died, that its job failed."""
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join(timeout=10)
            return Ended(False, _cause_of_death(self.process.exitcode))
        return event

    def _tell(self, message: Job | None) -> None:
        with suppress(OSError):  # that it has died is noticed when we listen
            self.pipe.send(message)


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"its process ended unexpectedly (exit code {exit_code})"
    name = signal.Signals(-exit_code).name
    return f"its process was killed ({name})" + ("; out of memory?" if name == "SIGKILL" else "")


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process started now ignores Ctrl-C from its first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _work(pipe: Connection, train: Train) -> None:
    """Train the jobs that come out of the pipe until None does, or the parent is gone."""
    leave_ctrl_c_to_the_parent()

    def tell(event: Event) -> None:
        with suppress(OSError):  # without a parent, `pipe.poll` says stop
            pipe.send(event)

    with suppress(EOFError, OSError):
        while (job := pipe.recv()) is not None:
            try:
                tell(Ended(train(job, tell, pipe.poll)))
            except AsflError as error:
                tell(Ended(False, str(error)))
            except Exception as error:
                tell(Ended(False, f"{type(error).__name__}: {error}", traceback.format_exc()))


def _versions() -> dict[str, str]:
    found = {"asfl": __version__, "python": python_version()}
    for package in ("torch", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
