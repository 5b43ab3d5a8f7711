"""`asfl fleet`: a federation of real processes on this machine, from the certificates to the result."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asfl.cli import options
from asfl.cli.progress import RunProgress
from asfl.cli.run import conclude
from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.config.show import as_toml, toml_value
from asfl.runs.folder import is_finished
from asfl.runs.lock import writer_of
from asfl.runs.manifest import run_to_go_on_with
from asfl.runs.records import RECORDS_FILE, RoundRecord, records_so_far
from asfl.runs.run import check_training
from asfl.runs.this_process import stopping_on_ctrl_c, usual_threads
from asfl.schemes import scheme_named

if TYPE_CHECKING:
    from asfl.field.emulate.namespaces import Namespaces
    from asfl.field.emulate.shaping import ShapedLink
    from asfl.field.flower.federation import Federation
    from asfl.field.flower.run_config import Value

_POLL_S = 0.1


class NetworkKind(StrEnum):
    """How clients reach the server."""

    AUTO, PRIVATE, LOOPBACK, NAMESPACES = "auto", "private", "loopback", "namespaces"


def fleet(
    preset: options.Preset = "demo",
    clients: Annotated[
        int, typer.Option("--clients", min=1, max=1000, help="How many, each in processes of its own.")
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
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Flower's simulation, on Ray, instead of a SuperNode for each client.")
    ] = False,
    network: Annotated[
        NetworkKind,
        typer.Option(
            help="Everybody in one network that nobody else on this machine reaches (private), on this machine's "
            "loopback address, or each client in a network namespace of its own (needs root). auto: namespaces if "
            "field.shaping is set and they can be made, else private if that can be."
        ),
    ] = NetworkKind.AUTO,
    lose_rounds: options.LoseRounds = False,
    as_json: options.Json = False,
) -> None:
    """Train with Flower on this machine: a SuperLink, a SuperNode for each client, new keys and certificates."""
    import asfl.field.flower  # noqa: F401  (is it installed? before anything else)
    from asfl.field.emulate.namespaces import namespaces

    for text in overrides or []:
        if text.partition("=")[0].strip() == "scenario.clients":
            raise AsflError(f"--set {text} doesn't count here: --clients says how many there are")
    wished = [*options.with_shorthands(overrides, rounds=rounds, seed=seed), f"scenario.clients={clients}"]
    given = options.configuration(preset, wished).config
    in_namespaces, profile = _shaping(given, network, simulation)
    resolved = load_config(preset, [*wished, *_for_other_processes(given, in_namespaces)])
    config = resolved.config.for_scheme(scheme)
    scheme_named(scheme)
    name = f"{Path(preset).stem}-{scheme}-seed{config.scenario.seed}-fleet{clients}"
    folder = out or Path(config.output.folder) / name
    # What would be refused is refused before anything is started.
    begun = run_to_go_on_with(folder, config, scheme)
    if (holder := writer_of(folder)) is not None:
        raise AsflError(f"{folder} is in use: {holder}; wait for it, or give another --out")
    done, rounds = records_so_far(folder), config.training.rounds
    if not is_finished(folder, rounds):
        if begun is not None:
            from asfl.runs.folder import where_to_go_on

            where_to_go_on(folder, begun, lose_rounds=lose_rounds)
        check_training(config, data_dir, real_clients=True)
        for needed in (folder, _logs(folder)):
            _check_writable(needed)
        threads = max(usual_threads() // clients, 1)  # everybody computes at the same time, on the same cores
        run_config: dict[str, Value] = {"scheme": scheme, "out": str(folder.absolute()), "threads": threads}
        if lose_rounds:
            run_config["lose-rounds"] = True
        if data_dir is not None:
            run_config["data-dir"] = str(data_dir.absolute())
        with (
            stopping_on_ctrl_c() as stop,
            namespaces(clients, profile) if in_namespaces else nullcontext() as made,
            _private_network(config, network, in_namespaces) as private,
        ):
            if made is not None:
                run_config["address"] = f"{made.server}:0"
            _train(as_toml(resolved), run_config, folder, config, simulation, made, private, done, stop)
        if not is_finished(folder, rounds):
            print(f"stopped after round {len(records_so_far(folder))}; the same command goes on")
            raise typer.Exit(options.STOPPED)
    conclude(folder, True, as_json)


def _logs(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-fleet-logs")


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


def _shaping(config: Config, wished: NetworkKind, simulated: bool) -> "tuple[bool, tuple[ShapedLink, ...]]":
    """Whether every client gets a namespace of its own, and what its links are to be like."""
    from asfl.field.emulate.namespaces import can_delay, why_not
    from asfl.field.emulate.shaping import read_profile

    profile = read_profile(config.field.shaping, config.scenario.clients) if config.field.shaping else ()
    if simulated or wished is NetworkKind.LOOPBACK:
        if simulated and wished is NetworkKind.NAMESPACES:
            raise AsflError("--network namespaces: not with --simulation, which has no process for each client")
        return False, profile
    if wished is NetworkKind.NAMESPACES:
        return True, profile
    delays = any(link.latency_s for link in profile)
    return bool(profile) and why_not() is None and (not delays or can_delay()), profile


@contextmanager
def _private_network(config: Config, wished: NetworkKind, in_namespaces: bool) -> Iterator[int]:
    """The process that holds a private network, or 0 after a warning in words."""
    from asfl.field.flower.processes import private_network

    why = ""
    if in_namespaces or wished is NetworkKind.LOOPBACK:
        why = f"--network {NetworkKind.NAMESPACES if in_namespaces else NetworkKind.LOOPBACK}"
    elif wished is NetworkKind.AUTO and _tracked_elsewhere(config):
        why = "a tracker needs this machine's network"
    with nullcontext((0, why)) if why else private_network() as (holder, reason):
        if not holder:
            if wished is NetworkKind.PRIVATE:
                raise AsflError(f"--network private: {reason}")
            print(
                "warning: while this runs, every user of this machine can start code as you: Flower's control API "
                f"needs no key, and the fleet is not in a private network ({reason})",
                file=sys.stderr,
                flush=True,
            )
        yield holder


def _tracked_elsewhere(config: Config) -> bool:
    track, uri = config.output.track, os.environ.get("MLFLOW_TRACKING_URI", "")
    return ("wandb" in track and os.environ.get("WANDB_MODE") == "online") or (track != "none" and "://" in uri)


def _for_other_processes(config: Config, in_namespaces: bool) -> list[str]:
    """Files by their whole names; and a profile that the network keeps to is none of the clients' business."""
    names = {"field.shaping": config.field.shaping, "scenario.channel.trace_file": config.scenario.channel.trace_file}
    if in_namespaces:
        names["field.shaping"] = ""
    return [f"{name}={toml_value(str(Path(file).absolute()) if file else '')}" for name, file in names.items()]


def _train(
    configuration: str,
    run_config: "dict[str, Value]",
    folder: Path,
    config: Config,
    simulated: bool,
    network: "Namespaces | None",
    private: int,
    done: list[RoundRecord],
    stop: Callable[[], bool],
) -> None:
    from asfl.field.flower.federation import StoppedError, federation

    logs = _logs(folder).absolute()
    node_config = {name: value for name, value in run_config.items() if name == "data-dir"}
    clients = config.scenario.clients

    def show(record: RoundRecord) -> None:
        progress(record)
        if network is not None:
            network.round_begins(record.round + 1)

    try:
        with federation(logs, clients, stop, simulated=simulated, network=network, private=private) as started:
            where = ", each in a network namespace of its own" if network is not None else ""
            where = ", in a private network" if private else where
            print(f"starting a federation of {clients} clients{where}", file=sys.stderr, flush=True)
            if network is not None:
                network.round_begins(len(done) + 1)
            with suppress(StoppedError):
                started.begin(configuration, run_config, node_config)
                with RunProgress(config.training.rounds, done) as progress:
                    stopped = _follow(started, _new_rounds(folder, len(done)), show, stop)
                if not stopped and not is_finished(folder, config.training.rounds):
                    raise AsflError(started.error() or "the run ended before its last round")
    except AsflError as error:
        raise AsflError(f"{error} (logs: {logs})") from None


def _follow(
    started: "Federation",
    rounds: Iterator[list[RoundRecord]],
    show: Callable[[RoundRecord], None],
    stop: Callable[[], bool],
) -> bool:
    """Show rounds until the run is over; whether it was stopped."""
    asked, running = False, True
    while running:
        try:
            if running := started.running:
                started.check()
        except AsflError:  # once it was asked to stop, things may end in any order
            if not asked:
                raise
            running = False
        for record in next(rounds):
            show(record)
        if stop() and not asked:
            asked = True
            running = running and started.stop_after_the_round()
        time.sleep(_POLL_S)
    return asked


def _new_rounds(folder: Path, known: int) -> Iterator[list[RoundRecord]]:
    """Again and again, the rounds that another process has added to the records since the last time."""
    inode, offset = -1, 0
    while True:
        added = b""
        with suppress(OSError), (folder / RECORDS_FILE).open("rb") as file:
            if (now := os.fstat(file.fileno()).st_ino) != inode:  # a run that goes on begins with another file
                inode, offset = now, 0
            file.seek(offset)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        offset += len(whole)
        try:
            records = [RoundRecord.from_line(line) for line in whole.splitlines()]
        except ValueError as error:
            raise AsflError(f"{folder / RECORDS_FILE}: not the records of rounds ({error})") from None
        new = [record for record in records if record.round > known]
        known = max([known, *(record.round for record in new)])
        yield new
