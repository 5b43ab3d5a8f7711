"""`asfl.run`, `asfl.compare`, `asfl.Simulation`: from a configuration to results, or to its rounds, in one call."""

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asfl.api.progress import RunsProgress
from asfl.api.results import Results
from asfl.config import Config, by_name, load_config, preset_names
from asfl.config.errors import AsflError, short
from asfl.config.load import ConfigLike
from asfl.data import load_data
from asfl.runs.comparison import Comparison, plan_comparison
from asfl.runs.files import writing
from asfl.runs.folder import is_finished
from asfl.runs.jobs import Ended, Engine, Job, OnEvent, Train, attempt, train
from asfl.runs.manifest import comparable
from asfl.runs.run import ShouldStop, check_training, run as run_in
from asfl.runs.this_process import stopping_on_ctrl_c, usual_threads
from asfl.runs.training import ThreadsARun, engine_named, rounds_left, train_left
from asfl.schemes import check_scheme_settings, scheme_named, usual_schemes

if TYPE_CHECKING:
    from asfl.runs import simulation

_NOT_IN_NAMES = ("training.rounds", "scenario.seed")
"""A run can be given more rounds, and its seed is in its name anyway."""


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
    wanted = configuration(config, rounds, seed, settings)
    name = scheme_named(scheme).name
    folder = _folder_for(config, wanted, f"{{}}-{name}-seed{wanted.scenario.seed}", out)
    job = Job(name, wanted.scenario.seed, wanted, folder)
    was_finished, left = is_finished(folder, wanted.training.rounds), {job.name: wanted.training.rounds}
    with stopping_on_ctrl_c() as stop, RunsProgress(left, 1, shown=progress and not was_finished) as display:
        tell = partial(display.show, job)
        finished = run_in(wanted, name, folder, data_dir=_path(data_dir), on_round=tell, should_stop=stop)
        tell(Ended(finished))
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
    progress: bool = True,
    **settings: Any,
) -> Results:
    """Train schemes in the same world, as `asfl compare` does: `asfl.compare(["asfl", "sfl"], "demo", rounds=20)`.

    `schemes`: all but variants, if none are named. With one worker everything happens in this process, which knows what
    you registered; more are processes of their own, which know only plugins, and whose script needs
    `if __name__ == "__main__":`.
    """
    if isinstance(schemes, str):
        hint = f"asfl.compare(['asfl', 'sfl'], '{schemes}')" if schemes in preset_names() else f"['{schemes}']"
        raise AsflError(f"asfl.compare: schemes = '{schemes}' must be a list of names: {hint}")
    for name, value in (("seeds", seeds), ("workers", workers)):
        if not isinstance(value, int) or value < 1:
            raise AsflError(f"asfl.compare: {name} = {short(value)} must be a whole number ≥ 1")
    names = usual_schemes() if schemes is None else [scheme_named(name).name for name in schemes]
    wanted = configuration(config, rounds, seed, settings)
    first, folder = wanted.scenario.seed, _folder_for(config, wanted, "compare-{}", out)
    comparison = plan_comparison(wanted, names, range(first, first + seeds), folder, _path(data_dir))
    engine, threads_a_run = engine_named("processes", workers, None)
    if workers == 1:
        engine, threads_a_run = one_by_one, lambda runs: usual_threads()
    with writing(folder):
        failed, stopped = train_shown([comparison], _path(data_dir), engine, threads_a_run, shown=progress)
    return Results(folder, not stopped, failed)


def train_shown(
    comparisons: Sequence[Comparison],
    data_dir: Path | None,
    engine: Engine,
    threads_a_run: ThreadsARun,
    *,
    shown: bool = True,
) -> tuple[dict[str, str], int]:
    """Train what is left of comparisons: why runs failed, by name, and how many Ctrl-C left unfinished."""
    every = sum(one.num_runs for one in comparisons)
    with stopping_on_ctrl_c() as stop, RunsProgress(rounds_left(comparisons), every, shown=shown) as display:
        failed, unfinished = train_left(comparisons, data_dir, engine, threads_a_run, display.show, stop)
    return failed, unfinished - len(failed)


def Simulation(  # noqa: N802 (called like the class it makes)
    config: ConfigLike = "demo",
    scheme: str = "asfl",
    *,
    rounds: int | None = None,
    seed: int | None = None,
    data_dir: str | Path | None = None,
    **settings: Any,
) -> "simulation.Simulation":
    """One scheme, round by round: `for record in asfl.Simulation("demo", rounds=20): print(record.accuracy)`.

    Nothing is written. Between two rounds everything is there to look at: `state`, `trainer`, `evaluate()`,
    `average_model()`. Arguments as in `asfl.run`.
    """
    chosen = scheme_named(scheme)
    wanted = configuration(config, rounds, seed, settings).for_scheme(chosen.name)
    check_training(wanted, _path(data_dir))
    from asfl.runs import simulation  # needs PyTorch

    return simulation.Simulation(wanted, chosen, load_data(wanted, _path(data_dir)))


def configuration(base: ConfigLike, rounds: int | None, seed: int | None, settings: dict[str, Any]) -> Config:
    """As the command line resolves it, and with its sentences for what is wrong."""
    short_forms = {"training.rounds": rounds, "scenario.seed": seed}
    given = {**settings, **{name: value for name, value in short_forms.items() if value is not None}}
    config = load_config(base, given).config
    check_scheme_settings(config)
    return config


def _folder_for(base: ConfigLike, config: Config, name: str, out: str | Path | None) -> Path:
    """The folder asked for; else one below `runs` that the same call finds again, and no other call does."""
    if out is not None:
        return Path(out)
    named = isinstance(base, str | Path)
    stem = Path(str(base)).stem if named else "own"
    changed = _result_fields(config)
    if named:
        plain = _result_fields(load_config(base).config)
        changed = {field: value for field, value in changed.items() if plain.get(field) != value}
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
    return Path("runs") / (name.format(stem) + (f"-{digest}" if changed else ""))


def _result_fields(config: Config) -> dict[str, Any]:
    return {field: value for field, value in by_name(comparable(config)).items() if field not in _NOT_IN_NAMES}


def one_by_one(
    jobs: Sequence[Job],
    *,
    on_event: OnEvent = lambda job, event: None,
    should_stop: ShouldStop = lambda: False,
    train: Train = train,
    workers: int | None = None,
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
