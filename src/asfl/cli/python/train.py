"""`asfl.run` and `asfl.compare`: from a configuration to results in one call."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from asfl.cli.python.asked import configuration, folder_for
from asfl.cli.python.results import Results
from asfl.cli.python.watched import stopping, watching
from asfl.cli.training import engine_named, rounds_left, train_left
from asfl.config import preset_names
from asfl.config.errors import AsflError, short
from asfl.config.load import ConfigLike
from asfl.runs.comparison import plan_comparison, plan_front
from asfl.runs.files import writing
from asfl.runs.folder import is_finished
from asfl.runs.jobs import Ended, Job, OnEvent, attempt, train
from asfl.runs.run import ShouldStop, run as run_in
from asfl.runs.this_process import usual_threads
from asfl.schemes import scheme_named, usual_schemes


def run(
    config: ConfigLike = "demo",
    scheme: str = "asfl",
    *,
    rounds: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Results:
    """Train one scheme, as `asfl run` does.

    `config` is a preset's name, a TOML file or a dictionary; fields are changed by their names:
    `asfl.run("demo", rounds=20, **{"training.batch_size": 32})`. The same call again trains nothing, or goes on where
    it was stopped; with more rounds it goes on longer. Ctrl-C stops after the round.
    """
    asked = configuration(config, rounds, seed, settings)
    name = scheme_named(scheme).name
    folder = folder_for(config, asked, f"{{}}-{name}-seed{asked.scenario.seed}", out)
    job = Job(name, asked.scenario.seed, asked, folder)
    left = {} if is_finished(folder, asked.training.rounds) else {job.name: asked.training.rounds}
    with stopping() as stop, watching(left, 1, progress=progress) as tell:
        finished = run_in(
            asked,
            name,
            folder,
            data_dir=_path(data_dir),
            on_round=lambda record: tell(job, record),
            should_stop=stop,
        )
        if left:
            tell(job, Ended(finished))
    return Results(folder, finished)


def compare(
    schemes: Sequence[str] | None = None,
    config: ConfigLike = "demo",
    *,
    seeds: int = 1,
    rounds: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    workers: int = 1,
    front: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Results:
    """Train schemes in the same world, as `asfl compare` does: `asfl.compare(["asfl", "sfl"], "demo", rounds=20)`.

    `schemes`: all but variants, if none are named. `front`: those that price energy also at other prices. With one
    worker everything happens in this process, which knows what you registered; more are processes of their own, which
    know only plugins, and whose script needs `if __name__ == "__main__":`.
    """
    if isinstance(schemes, str):
        hint = f"asfl.compare(['asfl', 'sfl'], '{schemes}')" if schemes in preset_names() else f"['{schemes}']"
        raise AsflError(f"asfl.compare: schemes = '{schemes}' must be a list of names: {hint}")
    for name, value in (("seeds", seeds), ("workers", workers)):
        if not isinstance(value, int) or value < 1:
            raise AsflError(f"asfl.compare: {name} = {short(value)} must be a whole number ≥ 1")
    names = usual_schemes() if schemes is None else [scheme_named(name).name for name in schemes]
    asked = configuration(config, rounds, seed, settings)
    first, folder = asked.scenario.seed, folder_for(config, asked, "compare-{}", out)
    comparison = plan_comparison(asked, names, range(first, first + seeds), folder, _path(data_dir))
    comparisons = [comparison, *(plan_front(comparison, _path(data_dir)) if front else [])]
    engine, threads_a_run = engine_named("processes", workers, None)
    if workers == 1:
        engine, threads_a_run = _one_by_one, lambda runs: usual_threads()
    left, every = rounds_left(comparisons), sum(one.num_runs for one in comparisons)
    with writing(folder), stopping() as stop, watching(left, every, progress=progress) as tell:
        failed, unfinished = train_left(comparisons, _path(data_dir), engine, threads_a_run, tell, stop)
    return Results(folder, not (stop() and unfinished), failed)


def _one_by_one(
    jobs: Sequence[Job], *, on_event: OnEvent = lambda job, event: None, should_stop: ShouldStop = lambda: False
) -> dict[str, Ended]:
    """An `Engine` in this process."""
    ended = {}
    for job in jobs:
        if should_stop():
            break
        ended[job.name] = attempt(train, job, partial(on_event, job), should_stop)
        on_event(job, ended[job.name])
    return ended


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
