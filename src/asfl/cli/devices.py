"""`asfl devices`: who there is, and who is out."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from asfl.cli import options
from asfl.cli.output import console, print_json, table
from asfl.cli.serve import Home, say_invitations
from asfl.config.errors import AsflError
from asfl.config.units import format_si, percent

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def devices(context: typer.Context, home: Home = Path("asfl-server"), as_json: options.Json = False) -> None:
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


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The device.")],
    home: Home = Path("asfl-server"),
) -> None:
    """Let a device in no more; if it is taking part, it is out within seconds."""
    from asfl.field.membership import Registry

    _check_home(home)
    Registry(home).revoke(name)
    print(f"{name} is out; its place is free for another device (asfl devices invite)")


@app.command()
def invite(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where devices enrol: the server's port + 1.")],
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many codes.")] = 1,
    hours: Annotated[float, typer.Option("--code-hours", min=0.01, max=8760, help="How long they are valid.")] = 24.0,
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
