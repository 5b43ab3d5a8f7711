"""`asfl join`: be a device; and what a service says while it runs."""

import json
import logging
import re
import signal
import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from asfl.config.errors import AsflError

LogJson = Annotated[bool, typer.Option("--log-json", help="Logs as JSON, a line each.")]


def join(
    server: Annotated[
        str | None, typer.Argument(metavar="SERVER", help="host:port, as asfl serve printed it: enrol there.")
    ] = None,
    on_the_command_line: Annotated[str | None, typer.Argument(hidden=True, metavar="")] = None,
    code: Annotated[
        str,
        typer.Option(
            "--code",
            metavar="FILE",
            help="A file with the code that asfl serve printed. -: standard input, or asked for.",
        ),
    ] = "-",
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="This device's own images: a folder, a file .npz, or file.py:function. Remembered.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="What the server calls this device. Default: the machine's name.")
    ] = None,
    home: Annotated[
        Path, typer.Option("--home", metavar="DIR", envvar="ASFL_DEVICE", help="This device's key and certificate.")
    ] = Path("asfl-device"),
    meter: Annotated[
        str, typer.Option("--meter", help="How the device knows what it consumes (docs/field.md).")
    ] = "none",
    once: Annotated[bool, typer.Option("--once", help="Leave after one run.")] = False,
    log_json: LogJson = False,
) -> None:
    """Enrol at a server, then take part in every run; without SERVER, go on as the device it is."""
    if on_the_command_line is not None:
        raise AsflError(
            "every user of this machine can read a code on the command line; leave it out, and it is asked for "
            "(or give it on standard input, or as --code FILE)"
        )
    log_to_stderr(as_json=log_json)
    from asfl.field.membership import Membership, enrol
    from asfl.field.stream import work

    member = Membership.read(home)
    if server is not None:
        machine = re.sub(r"[^a-z0-9-]", "-", socket.gethostname().lower()).strip("-")[:40]
        member = enrol(home, server, _code(code), name or machine or "device", _absolute(data) or "")
        print(f"enrolled as {member.name}; from now on: asfl join --home {home}", flush=True)
    if member is None:
        raise AsflError(f"{home} holds no device yet; type the line that asfl serve printed: asfl join SERVER")
    if data is not None:
        member = replace(member, data=_absolute(data) or "")
        member.write(home)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    work(home, member, meter=meter, once=once)


def _code(file: str) -> str:
    try:
        if file != "-":
            return Path(file).read_text("utf-8")
        return getpass("code: ") if sys.stdin.isatty() else sys.stdin.readline()
    except (EOFError, UnicodeDecodeError):
        return ""  # not whole
    except OSError as error:
        raise AsflError(f"--code {file}: can't be read: {error.strerror or error}") from None


def _absolute(data: str | None) -> str | None:
    """So that it means the same from another folder."""
    if data is None:
        return None
    file, colon, function = data.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{Path(file).expanduser().absolute()}:{function}"
    return str(Path(data).expanduser().absolute())


# ---------------------------------------------------------------------- logs
class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts)


def log_to_stderr(*, as_json: bool) -> None:
    """Everything of asfl from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson() if as_json else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("asfl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
