"""A small network inside this machine: every client in a network namespace of its own, on a link of the wished rate.

The links are real ones to whoever uses them: `tc` lets through as many bits a second as the profile says, up and down.
It needs Linux, root, `ip` and `tc`; without them a client paces itself (`asfl.field.emulate.shaping.Pace`).

     server ── bridge ─┬─ veth ── [namespace of client 0] eth0
    10.x.y.1           ├─ veth ── [namespace of client 1] eth0
                       …
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from asfl.config.errors import AsflError
from asfl.field.emulate.shaping import ShapedLink, link_at, links_of

MOST_CLIENTS = 250
_LEAST_BURST_BYTES, _BURST_S = 4096, 0.002
"""What may pass at once: a few packets, or 2 ms at the rate. With much more, small messages wouldn't feel the rate."""
_QUEUE_MS = 400
_UNLIMITED_BPS = 1e10


def why_not() -> str | None:
    """What is missing for such a network here; None: nothing."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here"
    if os.geteuid() != 0:
        return "it needs root"
    name = f"asfl-try-{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"namespaces can't be made here ({tried.stderr.strip()})"
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return None


def can_delay() -> bool:
    """Whether packets can also be delayed here, not only slowed down."""
    name = f"asfl-try-{secrets.token_hex(3)}"
    try:
        _call("ip", "netns", "add", name)
        _call("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except AsflError:
        return False
    finally:
        _try("ip", "netns", "delete", name)
    return True


@dataclass(eq=False)
class Namespaces:
    """The network, while it is there."""

    server: str
    """The server's address, which only the namespaces reach."""
    _names: list[str]
    _outer: list[str]
    _profile: Sequence[ShapedLink]
    _now: dict[int, ShapedLink] = field(default_factory=dict)

    def inside(self, client: int) -> list[str]:
        """What to put before a command that is to run where this client is."""
        return ["ip", "netns", "exec", self._names[client]]

    def round_begins(self, number: int) -> None:
        """Make every link what it is from this round on (counted from 1)."""
        for client, name in enumerate(self._names):
            link = link_at(number, links_of(client, self._profile))
            if self._now.get(client) != link:
                _shape(["ip", "netns", "exec", name, "tc"], "eth0", link.uplink_bps, link.latency_s / 2)
                _shape(["tc"], self._outer[client], link.downlink_bps, link.latency_s / 2)
                self._now[client] = link


@contextmanager
def namespaces(clients: int, profile: Sequence[ShapedLink] = ()) -> Iterator[Namespaces]:
    """A network of this many clients; gone without a trace in the end, with whatever still runs in it."""
    reason = why_not()
    if reason is not None:
        raise AsflError(f"a network of namespaces can't be made: {reason}")
    if clients > MOST_CLIENTS:
        raise AsflError(f"{clients} clients, but a network of namespaces has at most {MOST_CLIENTS}")
    tag = secrets.token_hex(3)
    bridge, subnet = f"asfl{tag}", f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}"
    names, outer = [f"asfl-{tag}-{n}" for n in range(clients)], [f"as{tag}.{n}" for n in range(clients)]
    with ExitStack() as undo:
        _call("ip", "link", "add", bridge, "type", "bridge")
        undo.callback(_try, "ip", "link", "delete", bridge)
        _call("ip", "address", "add", f"{subnet}.1/24", "dev", bridge)
        _call("ip", "link", "set", bridge, "up")
        for client, (name, end) in enumerate(zip(names, outer, strict=True)):
            _call("ip", "netns", "add", name)
            undo.callback(_remove, name, end)
            _call("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name)
            _call("ip", "link", "set", end, "master", bridge)
            _call("ip", "link", "set", end, "up")
            _call("ip", "-n", name, "address", "add", f"{subnet}.{client + 2}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _call("ip", "-n", name, "link", "set", device, "up")
        network = Namespaces(f"{subnet}.1", names, outer, profile)
        network.round_begins(1)
        yield network


def _shape(tc: list[str], device: str, rate_bps: float | None, delay_s: float) -> None:
    rate = rate_bps or _UNLIMITED_BPS
    burst = max(_LEAST_BURST_BYTES, round(_BURST_S * rate / 8))
    _call(
        *tc, "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf",
        "rate", f"{rate:.0f}bit", "burst", str(burst), "latency", f"{_QUEUE_MS}ms",
    )  # fmt: skip
    if delay_s <= 0:
        return
    delayed = ["qdisc", "replace", "dev", device, "parent", "1:1", "handle", "10:", "netem", "delay"]
    try:
        _call(*tc, *delayed, f"{1e6 * delay_s:.0f}us")
    except AsflError as error:
        raise AsflError(
            f"latency_s = {2 * delay_s:g}: this kernel can't delay packets (no netem); leave it out ({error})"
        ) from None


def _remove(name: str, outer: str) -> None:
    running = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for process in running.stdout.split():
        _try("kill", "-9", process)
    _try("ip", "link", "delete", outer)
    _try("ip", "netns", "delete", name)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AsflError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def _try(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)
