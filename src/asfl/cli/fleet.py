"""`asfl fleet`: a federation of real processes on this machine, from the certificates to the result."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from asfl.cli.options import STOPPED, DataDirOption, JsonOption, PresetArgument, SetOption
from asfl.cli.progress import RunProgress, stopping_on_ctrl_c
from asfl.cli.run import conclude
from asfl.config import Config, load_config
from asfl.config.show import as_toml
from asfl.errors import AsflError
from asfl.records import RECORDS_FILE, RoundRecord, records_so_far
from asfl.run import check_training, is_finished, run_to_go_on_with, usual_threads
from asfl.schemes import scheme_named

if TYPE_CHECKING:
    from asfl.field.flower.federation import Federation
    from asfl.field.flower.run_config import Value
    from asfl.field.namespaces import Namespaces
    from asfl.field.shaping import ShapedLink

_POLL_S = 0.1


class NetworkKind(StrEnum):
    """How clients reach the server."""

    AUTO, LOOPBACK, NAMESPACES = "auto", "loopback", "namespaces"


def fleet(
    preset: PresetArgument = "demo",
    clients: Annotated[int, typer.Option("--clients", min=1, help="How many, each in processes of its own.")] = 4,
    scheme: Annotated[str, typer.Option(help="Which scheme to train.")] = "asfl",
    overrides: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The run folder. Default: runs/PRESET-SCHEME-seedK-fleetN."),
    ] = None,
    data_dir: DataDirOption = None,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Flower's simulation, on Ray, instead of a SuperNode for each client.")
    ] = False,
    network: Annotated[
        NetworkKind,
        typer.Option(
            help="Clients on this machine's loopback address, or each in a network namespace of its own (needs root); "
            "auto: namespaces if field.shaping is set and they can be made."
        ),
    ] = NetworkKind.AUTO,
    as_json: JsonOption = False,
) -> None:
    """Train with Flower on this machine: a SuperLink, a SuperNode for each client, new keys and certificates."""
    import asfl.field.flower  # noqa: F401  (is it installed? before anything else)

    wished = [*(overrides or []), f"scenario.clients={clients}"]
    given = load_config(preset, wished).config
    in_namespaces, profile = _shaping(given, network, simulation)
    resolved = load_config(preset, [*wished, *_for_other_processes(given, in_namespaces)])
    config = resolved.config
    scheme_named(scheme)
    name = f"{Path(preset).stem}-{scheme}-seed{config.scenario.seed}-fleet{clients}"
    folder = out or Path(config.output.folder) / name
    run_to_go_on_with(folder, config, scheme)  # what would be refused is refused before anything is started
    done = records_so_far(folder)
    if not is_finished(folder):
        check_training(config, data_dir, real_clients=True)
        threads = max(usual_threads() // clients, 1)  # everybody computes at the same time, on the same cores
        run_config: dict[str, Value] = {"scheme": scheme, "out": str(folder.absolute()), "threads": threads}
        if data_dir is not None:
            run_config["data-dir"] = str(data_dir.absolute())
        with _stopping() as stop, _network(clients, profile) if in_namespaces else nullcontext() as made:
            if made is not None:
                run_config["address"] = f"{made.server}:0"
            _train(as_toml(resolved), run_config, folder, config, simulation, made, done, stop)
        if not is_finished(folder):
            print(f"stopped after round {len(records_so_far(folder))}; the same command goes on")
            raise typer.Exit(STOPPED)
    conclude(folder, True, as_json)


def _shaping(config: Config, wished: NetworkKind, simulated: bool) -> "tuple[bool, tuple[ShapedLink, ...]]":
    """Whether every client gets a namespace of its own, and what its links are to be like."""
    from asfl.field.namespaces import can_delay, why_not
    from asfl.field.shaping import read_profile

    profile = read_profile(config.field.shaping, config.scenario.clients) if config.field.shaping else ()
    if simulated or wished is NetworkKind.LOOPBACK:
        if simulated and wished is NetworkKind.NAMESPACES:
            raise AsflError("--network namespaces: not with --simulation, which has no process for each client")
        return False, profile
    if wished is NetworkKind.NAMESPACES:
        return True, profile
    delays = any(link.latency_s for link in profile)
    return bool(profile) and why_not() is None and (not delays or can_delay()), profile


def _for_other_processes(config: Config, in_namespaces: bool) -> list[str]:
    """Files by their whole names; and a profile that the network keeps to is none of the clients' business."""
    names = {"field.shaping": config.field.shaping, "scenario.channel.trace_file": config.scenario.channel.trace_file}
    if in_namespaces:
        names["field.shaping"] = ""
    return [f"{name}={json.dumps(str(Path(file).absolute()) if file else '')}" for name, file in names.items()]


def _network(clients: int, profile: "Sequence[ShapedLink]") -> "AbstractContextManager[Namespaces]":
    from asfl.field.namespaces import namespaces

    return namespaces(clients, profile)


def _train(
    configuration: str,
    run_config: "dict[str, Value]",
    folder: Path,
    config: Config,
    simulated: bool,
    network: "Namespaces | None",
    done: list[RoundRecord],
    stop: Callable[[], bool],
) -> None:
    from asfl.field.flower.federation import StoppedError, federation

    logs = folder.with_name(f"{folder.name}-fleet-logs").absolute()
    node_config = {name: value for name, value in run_config.items() if name == "data-dir"}
    clients = config.scenario.clients
    try:
        with federation(logs, clients, stop, simulated=simulated, network=network) as started:
            where = "" if network is None else ", each in a network namespace of its own"
            print(f"starting a federation of {clients} clients{where}", file=sys.stderr, flush=True)
            try:
                started.begin(configuration, run_config, node_config)
            except StoppedError:
                return
            with _shown(config, done, network) as show:
                stopped = _follow(started, _NewRounds(folder, len(done)), show, stop)
            if not stopped and not is_finished(folder):
                raise AsflError(started.error() or "the run ended before its last round")
    except AsflError as error:
        raise AsflError(f"{error} (logs: {logs})") from None


@contextmanager
def _shown(
    config: Config, done: list[RoundRecord], network: "Namespaces | None"
) -> Iterator[Callable[[RoundRecord], None]]:
    """Progress from the first round on: starting everybody says nothing about how long rounds take."""
    if network is not None:
        network.round_begins(len(done) + 1)
    with ExitStack() as stack:
        displays: list[RunProgress] = []

        def show(record: RoundRecord) -> None:
            if not displays:
                display = RunProgress(config.training.rounds, done)
                displays.append(stack.enter_context(display))
            displays[0](record)
            if network is not None:
                network.round_begins(record.round + 1)

        yield show


def _follow(
    started: "Federation", rounds: "_NewRounds", show: Callable[[RoundRecord], None], stop: Callable[[], bool]
) -> bool:
    """Show rounds until the run is over; whether it was stopped."""
    asked = False
    try:
        while started.running:
            started.check()
            for record in rounds.read():
                show(record)
            if stop() and not asked:
                asked = True
                if not started.stop_after_the_round():
                    return True
            time.sleep(_POLL_S)
    except AsflError:
        if not asked:
            raise
    for record in rounds.read():
        show(record)
    return asked


class _NewRounds:
    """What is added to the records of a run by somebody else."""

    def __init__(self, folder: Path, known: int) -> None:
        self._file, self._known = folder / RECORDS_FILE, known
        self._inode, self._offset = -1, 0

    def read(self) -> Iterator[RoundRecord]:
        """The rounds after those known before."""
        try:
            with self._file.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # a run that goes on begins with another file
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                added = file.read()
        except OSError:
            return
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            record = RoundRecord.from_line(line)
            if record.round > self._known:
                self._known = record.round
                yield record


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, and what else asks a process to end, stop the run after the round."""

    def as_ctrl_c(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    with stopping_on_ctrl_c() as stop:
        before = [signal.signal(number, as_ctrl_c) for number in numbers]
        try:
            yield stop
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
