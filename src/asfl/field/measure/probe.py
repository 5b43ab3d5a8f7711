"""First measurements, before the first round: how far away each client is, how fast its link, how fast it computes."""

import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.field.links import Exchange, Link, OpenRequest
from asfl.field.measure.clocks import Clocks
from asfl.field.protocol.messages import A, Ping, Probe, Request
from asfl.models.cuttable import Carry, CuttableModel, go_backward

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


PASSES = 4
"""The first is slow; of the others the fastest counts, layer by layer."""


def layer_seconds(model: CuttableModel, images: Tensor) -> NDArray[np.float64]:
    """[2, M] seconds of a mini-batch in each layer: forward, backward."""
    return np.asarray(np.min([_one_pass(model, images) for _ in range(PASSES)][1:], axis=0))


def _one_pass(model: CuttableModel, images: Tensor) -> NDArray[np.float64]:
    """Layer by layer: each begins from a copy of what the one before gave, as behind a cut, and goes back at once.

    So never more than one layer's activations and gradients are there. Which gradients go back doesn't matter.
    """
    carry: Carry = (images,)
    taken: list[tuple[float, float]] = []
    for unit in model.units:
        carry = tuple(tensor.detach().requires_grad_(bool(taken)) for tensor in carry)
        began = time.perf_counter()
        out = unit(carry)
        between = time.perf_counter()
        go_backward(out, tuple(torch.ones_like(tensor) for tensor in out))
        taken.append((between - began, time.perf_counter() - between))
        unit.zero_grad()
        carry = out
    return np.array(taken).T
