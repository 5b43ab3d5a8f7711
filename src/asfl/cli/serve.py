"""`asfl serve`: let devices in, and train with them; `asfl fleet`: the same with devices in processes on this machine,
over the streams and with the certificates that devices elsewhere have; `asfl devices`: list, invite and revoke them.
"""

import json
import logging
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from asfl.api.progress import RunsProgress
from asfl.cli import options
from asfl.cli.join import LogJson, log_to_stderr
from asfl.cli.output import console, print_json, table
from asfl.cli.run import conclude
from asfl.config.errors import AsflError
from asfl.config.units import format_si, percent
from asfl.runs.files import lock_in, write_whole
from asfl.runs.folder import is_finished, where_to_go_on
from asfl.runs.jobs import Job
from asfl.runs.manifest import run_to_go_on_with
from asfl.runs.records import RoundRecord, records_so_far
from asfl.runs.run import check_training
from asfl.runs.this_process import stopping_on_ctrl_c, usual_threads
from asfl.schemes import scheme_named

_log = logging.getLogger(__name__)
Home = Annotated[
    Path,
    typer.Option(
        "--home",
        metavar="DIR",
        envvar="ASFL_HOME",
        help="The server's authority, its devices and its audit log; whoever can write there is the operator.",
    ),
]
CodeHours = Annotated[float, typer.Option("--code-hours", min=0.01, max=8760, help="How long a printed code is valid.")]


def serve(
    preset: options.Preset = "demo",
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, max=1000, help="How many take part. Default: scenario.clients.")
    ] = None,
    scheme: options.Scheme = "asfl",
    overrides: options.Set = None,
    out: options.Out = None,
    home: Home = Path("asfl-server"),
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Where to listen; devices enrol at the next port. 0.0.0.0:7400 lets other machines in.",
        ),
    ] = "127.0.0.1:7400",
    host: Annotated[
        str | None, typer.Option("--host", metavar="NAME", help="This machine's name or address, as devices reach it.")
    ] = None,
    hours: CodeHours = 24.0,
    codes: Annotated[
        Path | None,
        typer.Option("--codes", metavar="FILE", help="Also write the codes to this file, one in each line."),
    ] = None,
    wait_s: Annotated[
        float, typer.Option("--wait-s", help="Give up if devices are still missing after this time.")
    ] = float("inf"),
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Show /health and /metrics (Prometheus) there.")
    ] = None,
    log_json: LogJson = False,
    as_json: options.Json = False,
) -> None:
    """Train with devices: prints a code for each, waits for them, and trains; the same command goes on."""
    wished = [] if devices is None else [f"scenario.clients={devices}"]
    config = options.configuration(preset, [*(overrides or []), *wished]).config
    scheme_named(scheme)
    log_to_stderr(as_json=log_json)
    from asfl.field.serve import Listening, Waiting, serve_run

    listen_host, port = _host_and_port("--address", address)
    folder = options.run_folder(out, preset, scheme, config.scenario.seed)
    shown = host or (socket.gethostname() if listen_host in ("0.0.0.0", "[::]") else listen_host)
    page = None if metrics is None else _host_and_port("--metrics", metrics)

    def listening(waiting: Waiting) -> None:
        if waiting.codes:
            say_invitations(waiting.enrolment, waiting.codes, hours)
            if codes is not None:
                write_whole(codes, "".join(f"{code}\n" for code in waiting.codes).encode(), mode=0o600)

    def played(record: RoundRecord) -> None:
        accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.3f}"
        there = f"{record.arrived_count} of {len(record.arrived)} devices"
        _log.info("round %d: cut %s, %s%s", record.round, record.cut, there, accuracy)

    with stopping_on_ctrl_c() as stop:
        finished = serve_run(
            config,
            scheme,
            folder,
            home,
            Listening(listen_host, port, shown, page),
            code_hours=hours,
            wait_s=wait_s,
            on_listening=listening,
            on_waiting=lambda there, wanted: _log.info("%d of %d devices are here", there, wanted),
            on_round=played,
            should_stop=stop,
        )
    if not finished:
        print("stopped; the same command goes on")
        raise typer.Exit(options.STOPPED)
    conclude(folder, finished, as_json)


def say_invitations(where: str, codes: Sequence[str], hours: float) -> None:
    print(f"on each device, run `asfl join {where}` and paste one of these codes (valid for {hours:g} hours):")
    print("".join(f"  {code}\n" for code in codes), end="", flush=True)


def _host_and_port(name: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65534:
        raise AsflError(f"{name} {text}: write it as host:port, for example 127.0.0.1:7400")
    return host, int(port)


# ---------------------------------------------------------------------- on this machine
def fleet(
    preset: options.Preset = "demo",
    clients: Annotated[
        int, typer.Option("--clients", min=1, max=1000, help="How many, each in a process of its own.")
    ] = 4,
    scheme: options.Scheme = "asfl",
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    overrides: options.Set = None,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Train with real clients on this machine: `asfl serve`, and an `asfl join` for each client."""
    import asfl.field.stream  # noqa: F401  (is gRPC installed? before anything else)

    for text in overrides or []:
        if text.partition("=")[0].strip() == "scenario.clients":
            raise AsflError(f"--set {text} doesn't count here: --clients says how many there are")
    wished = [*(overrides or []), f"scenario.clients={clients}"]
    config = options.configuration(preset, wished, rounds=rounds, seed=seed).config.for_scheme(scheme)
    scheme_named(scheme)
    folder = out or Path(f"{options.run_folder(None, preset, scheme, config.scenario.seed)}-fleet{clients}")
    # What would be refused is refused before anything is started.
    begun = run_to_go_on_with(folder, config, scheme)
    held, words = lock_in(folder)
    if held:
        raise AsflError(f"{folder} is in use: {words}; wait for it, or give another --out")
    if is_finished(folder, config.training.rounds):
        conclude(folder, True, as_json)
        return
    if begun is not None:
        where_to_go_on(folder, begun)
    check_training(config, data_dir, real_clients=True)
    devices_folder = folder.with_name(f"{folder.name}-devices")

    from asfl.field.fleet import data_folder
    from asfl.field.serve import Listening, LocalDevices, serve_run

    print(f"starting {clients} clients on this machine", file=sys.stderr, flush=True)
    job = Job(scheme, config.scenario.seed, config, folder)
    left = {job.name: config.training.rounds - len(records_so_far(folder))}
    with ExitStack() as open_:
        stop = open_.enter_context(stopping_on_ctrl_c())
        progress = open_.enter_context(RunsProgress(left, 1))
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
            on_round=partial(progress.show, job),
            should_stop=should_stop,
            data_dir=data_dir,
            threads=max(usual_threads() // clients, 1),  # all compute at the same time, on the same cores
        )
    if not finished:
        print(f"stopped after round {len(records_so_far(folder))}; the same command goes on")
        raise typer.Exit(options.STOPPED)
    shutil.rmtree(devices_folder, ignore_errors=True)
    conclude(folder, True, as_json)


# ---------------------------------------------------------------------- which devices there are
devices_ = typer.Typer(add_completion=False, rich_markup_mode=None)


@devices_.callback(invoke_without_command=True)
def list_devices(context: typer.Context, home: Home = Path("asfl-server"), as_json: options.Json = False) -> None:
    """Which devices there are; invite and revoke them."""
    if context.invoked_subcommand is not None:
        return
    found = _devices(home)
    if as_json:
        print_json({"devices": found})
        return
    header = (
        "device",
        "state",
        "last seen",
        "client",
        "uplink",
        "downlink",
        "speed",
        "images",
        "accuracy",
        "faults",
    )
    rows = []
    for one in found:
        known = partial(_known, one)
        row = [one["name"], one["state"], str(one.get("last_seen") or "–"), str(one["client"])]
        row += [known(way, lambda bps: format_si(bps, "bit/s")) for way in ("uplink_bps", "downlink_bps")]
        row += [known("client_flops", lambda speed: format_si(speed, "FLOP/s"))]
        row += [f"{one['images']:,}" if one.get("images") else "–"]
        rows.append([*row, known("accuracy", lambda share: percent(share, 1)), f"{one.get('faults', 0):g}"])
    console().print(table(header, rows, words=3, title=f"devices of {home}"))


def _known(device: dict[str, Any], key: str, words: Callable[[float], str]) -> str:
    return "–" if device.get(key) is None else words(device[key])


@devices_.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The device.")],
    home: Home = Path("asfl-server"),
) -> None:
    """Let a device in no more; if it is taking part, it is out within seconds."""
    from asfl.field.membership import Registry

    _check_home(home)
    Registry(home).revoke(name)
    print(f"{name} is out; its place is free for another device (asfl devices invite)")


@devices_.command()
def invite(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where devices enrol: the server's port + 1.")],
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many codes.")] = 1,
    hours: CodeHours = 24.0,
    home: Home = Path("asfl-server"),
) -> None:
    """More codes; each lets one device in."""
    from asfl.field.certificates import Authority
    from asfl.field.membership import Registry, pasted_code

    _check_home(home)
    shown = Authority.of(home).fingerprint
    say_invitations(server, [pasted_code(shown, code) for code in Registry(home).invite(count, hours)], hours)


def _check_home(home: Path) -> None:
    if not (home / "authority.pem").exists():
        raise AsflError(f"{home} is no server's folder; asfl serve --home {home} makes one")


def _devices(home: Path) -> list[dict[str, Any]]:
    from asfl.field.membership import Registry
    from asfl.field.serve import STATUS_FILE

    _check_home(home)
    try:
        status = json.loads((home / STATUS_FILE).read_text("utf-8")).get("devices", {})
    except (OSError, ValueError):
        status = {}
    found = []
    for device in Registry(home).read().devices:
        now = {} if device.revoked_at else status.get(device.name, {})
        state = "revoked" if device.revoked_at else "here" if now.get("connected") else "away"
        found.append({**now, "name": device.name, "client": device.number, "state": state, "images": device.images})
    return found
