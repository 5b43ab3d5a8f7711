"""`asfl fleet`: a server and its devices in processes on this machine, over the streams and with the certificates that
devices elsewhere have.
"""

import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.progress import RunProgress
from asfl.cli.run import conclude
from asfl.config.errors import AsflError
from asfl.runs.files import lock_in
from asfl.runs.folder import is_finished
from asfl.runs.manifest import run_to_go_on_with
from asfl.runs.records import records_so_far
from asfl.runs.run import check_training
from asfl.runs.this_process import stopping_on_ctrl_c, usual_threads
from asfl.schemes import scheme_named


def fleet(
    preset: options.Preset = "demo",
    clients: Annotated[
        int, typer.Option("--clients", min=1, max=1000, help="How many, each in a process of its own.")
    ] = 4,
    scheme: options.Scheme = "asfl",
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    overrides: options.Set = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The run folder. Default: runs/PRESET-SCHEME-seedK-fleetN."),
    ] = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Train with real clients on this machine: `asfl serve`, and an `asfl join` for each client."""
    import asfl.field.stream  # noqa: F401  (is gRPC installed? before anything else)

    for text in overrides or []:
        if text.partition("=")[0].strip() == "scenario.clients":
            raise AsflError(f"--set {text} doesn't count here: --clients says how many there are")
    wished = [*options.with_shorthands(overrides, rounds=rounds, seed=seed), f"scenario.clients={clients}"]
    config = options.configuration(preset, wished).config.for_scheme(scheme)
    scheme_named(scheme)
    name = f"{Path(preset).stem}-{scheme}-seed{config.scenario.seed}-fleet{clients}"
    folder = out or Path("runs") / name
    # What would be refused is refused before anything is started.
    begun = run_to_go_on_with(folder, config, scheme)
    held, words = lock_in(folder)
    if held:
        raise AsflError(f"{folder} is in use: {words}; wait for it, or give another --out")
    if is_finished(folder, config.training.rounds):
        conclude(folder, True, as_json)
        return
    if begun is not None:
        from asfl.runs.folder import where_to_go_on

        where_to_go_on(folder, begun)
    check_training(config, data_dir, real_clients=True)
    devices_folder = folder.with_name(f"{folder.name}-devices")
    for needed in (folder, devices_folder):
        _check_writable(needed)

    from asfl.field.engine import data_folder
    from asfl.field.local_devices import LocalDevices
    from asfl.field.serve import Listening, serve_run

    print(f"starting {clients} clients on this machine", file=sys.stderr, flush=True)
    with ExitStack() as open_:
        stop = open_.enter_context(stopping_on_ctrl_c())
        progress = open_.enter_context(RunProgress(config.training.rounds, records_so_far(folder)))
        devices = open_.enter_context(LocalDevices(devices_folder, clients, data_folder(config, data_dir) or ""))

        def should_stop() -> bool:
            devices.check()
            return stop()

        finished = serve_run(
            config,
            scheme,
            folder,
            devices.server_home,
            Listening(port=0),
            on_listening=devices.begin,
            on_round=progress,
            should_stop=should_stop,
            data_dir=data_dir,
            threads=max(usual_threads() // clients, 1),  # all compute at the same time, on the same cores
        )
    if not finished:
        print(f"stopped after round {len(records_so_far(folder))}; the same command goes on")
        raise typer.Exit(options.STOPPED)
    shutil.rmtree(devices_folder, ignore_errors=True)
    conclude(folder, True, as_json)


def _check_writable(folder: Path) -> None:
    """Refuse a folder that can't be made or written, by making something there: permissions alone don't tell."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".asfl-"):
            pass
    except OSError as error:
        raise AsflError(f"can't write {folder}: {error.strerror or error}; give another --out") from None
