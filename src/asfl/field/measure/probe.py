"""First measurements, before the first round: how far away each client is, how fast its link, how fast it computes."""

from collections.abc import Sequence
from contextlib import suppress

import torch

from asfl.config.errors import AsflError
from asfl.field.links import Exchange, Link, OpenRequest
from asfl.field.measure.clocks import Clocks
from asfl.field.protocol.messages import A, Ping, Probe, Request

PROBE_BYTES = 1 << 17
"""Up and down: a second at 1 Mbit/s, and more than buffers on the way can hide."""


def probe(links: Sequence[Link], clocks: Clocks, deadline_s: float) -> None:
    """Ask everybody who is there. A client that doesn't answer stays unknown until its first round."""
    _ask_all(links, Ping(), clocks, deadline_s)
    _ask_all(links, Probe(data=torch.zeros(PROBE_BYTES, dtype=torch.uint8)), clocks, deadline_s)
    _ask_all(links, Probe(answer_bytes=PROBE_BYTES), clocks, deadline_s)
    timed = _ask_all(links, Probe(compute=True), clocks, deadline_s)
    found = {}
    for one in timed:
        seconds, waited_s = one.answer.seconds, one.answered_at - one.sent_at
        if seconds is not None and seconds.shape == (2, clocks.profile.num_layers) and seconds.sum() <= waited_s:
            found[one.client] = seconds.numpy()
    clocks.layers_take(found)


def _ask_all(links: Sequence[Link], request: Request[A], clocks: Clocks, deadline_s: float) -> list[Exchange[A]]:
    """Everybody at once; what they answered."""
    there = [(client, link) for client, link in enumerate(links) if link.trouble is None]
    found: list[Exchange[A]] = []
    for asked in [OpenRequest(link, client, request, deadline_s) for client, link in there]:
        with suppress(TimeoutError, AsflError):
            found.append(asked.exchange())
            clocks.exchanged(found[-1])
    return found
