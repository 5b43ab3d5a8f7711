"""`asfl serve`: let devices in, and train with them."""

import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.logs import log_to_stderr
from asfl.cli.run import conclude
from asfl.config.errors import AsflError
from asfl.runs.files import write_whole
from asfl.runs.records import RoundRecord
from asfl.runs.this_process import stopping_on_ctrl_c
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


def serve(
    preset: options.Preset = "demo",
    devices: Annotated[
        int | None,
        typer.Option("--devices", min=1, max=1000, help="How many take part. Default: scenario.clients."),
    ] = None,
    scheme: options.Scheme = "asfl",
    overrides: options.Set = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The run folder. Default: runs/PRESET-SCHEME-seedK."),
    ] = None,
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
        str | None,
        typer.Option("--host", metavar="NAME", help="This machine's name or address, as devices reach it."),
    ] = None,
    hours: Annotated[
        float, typer.Option("--code-hours", min=0.01, max=8760, help="How long a printed code is valid.")
    ] = 24.0,
    codes: Annotated[
        Path | None,
        typer.Option("--codes", metavar="FILE", help="Also write the codes to this file, one in each line."),
    ] = None,
    wait_s: Annotated[
        float, typer.Option("--wait-s", help="Give up if devices are still missing after this time.")
    ] = float("inf"),
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Show /health and /metrics (Prometheus) there."),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Logs as JSON, a line each.")] = False,
    as_json: options.Json = False,
) -> None:
    """Train with devices: prints a code for each, waits for them, and trains; the same command goes on."""
    wished = [] if devices is None else [f"scenario.clients={devices}"]
    config = options.configuration(preset, [*(overrides or []), *wished]).config
    scheme_named(scheme)
    log_to_stderr(as_json=log_json)
    from asfl.field.serve import Listening, Waiting, serve_run

    listen_host, port = _host_and_port("--address", address)
    folder = out or Path("runs") / f"{Path(preset).stem}-{scheme}-seed{config.scenario.seed}"
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
