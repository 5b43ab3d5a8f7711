"""First measurements, before the first round: how far away each client is, how fast its link, how fast it computes."""

from collections.abc import Sequence
from contextlib import suppress

import torch

from asfl.errors import AsflError
from asfl.field.asked import ask
from asfl.field.links import Link
from asfl.field.watch import Watch
from asfl.field.wire import Message

PROBE_BYTES = 1 << 17
"""Up and down: a second at 1 Mbit/s, and more than buffers on the way can hide."""


def probe(links: Sequence[Link], watch: Watch, deadline_s: float) -> None:
    """Ask everybody who is there; of who doesn't answer nothing is known until its first round."""
    payload = torch.zeros(PROBE_BYTES, dtype=torch.uint8)
    _ask_all(links, Message("ping"), watch, deadline_s)
    _ask_all(links, Message("probe", {"answer": 0, "compute": 0}, {"data": payload}), watch, deadline_s)
    _ask_all(links, Message("probe", {"answer": PROBE_BYTES, "compute": 0}), watch, deadline_s)
    seconds = {}
    for client, answer in _ask_all(links, Message("probe", {"answer": 0, "compute": 1}), watch, deadline_s):
        with suppress(AsflError):  # from a client one can't trust, or a broken clock
            seconds[client] = answer.tensor("seconds", (2, watch.profile.num_layers), torch.float64).numpy()
    watch.layers_take(seconds)


def _ask_all(links: Sequence[Link], request: Message, watch: Watch, deadline_s: float) -> list[tuple[int, Message]]:
    """Everybody at once; what they answered."""
    there = [(client, link) for client, link in enumerate(links) if link.trouble is None]
    answers: list[tuple[int, Message]] = []
    for asked in [ask(link, client, "probe", request, deadline_s) for client, link in there]:
        try:
            answer = asked.result()
            if answer.op == asked.op:
                watch.exchanged(asked.exchange(answer))
                answers.append((asked.client, answer))
        except (TimeoutError, AsflError):
            continue
    return answers
