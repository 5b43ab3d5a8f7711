"""An average of client sides: the first layers of all clients become equal again, for what it costs to send them."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from asfl.train.fleet import FirstLayers, Fleet
from asfl.train.layout import Layout, ModelVectors, layer_spreads
from asfl.train.quantise import EVERYBODY, layers_to_send, rounding
from asfl.train.state import TrainingState
from asfl.train.trainer import Floats, RoundPlan


def average_sides(
    plan: RoundPlan, clients: Sequence[int], state: TrainingState, server: ModelVectors, fleet: Fleet, seed: int
) -> Floats | None:
    """The first layers of everybody's side become their mean over these clients; [M] how far they were apart.

    A client holds its layers up to its cut; behind it, what the `server` trained for it counts as its own. What comes
    down is one difference for all, with as many bits as the most precise of those that went up. Whoever is elsewhere
    gets it now or when it takes part again; that is a matter of costs. None, and nothing changes, if nobody's layers
    came.
    """
    depth, layout = plan.synced, state.layout
    asked = [replace(task, cut=min(task.cut, depth)) for task in map(plan.task, clients)]
    sent = fleet.upload(asked)
    if not sent:
        return None
    tasks = [task for task in asked if task.client in sent]
    shared, bits = layout.front(state.server, depth).parameters, max(task.bits for task in tasks)
    sides = [
        _with_server(
            layout, sent[task.client].received(layout.front(state.server, task.cut).parameters), server, task.cut, depth
        )
        for task in tasks
    ]
    parameters = torch.stack([side.parameters for side in sides])
    rng = rounding(seed, "layers", plan.index, EVERYBODY)
    senders = [task.client for task in tasks]
    crossing = layers_to_send(layout, state.average(parameters, shared, senders), shared, depth, bits, rng)
    statistics = torch.stack([side.statistics for side in sides])
    known = layout.front(state.server, depth).statistics
    average = FirstLayers(crossing, state.average(statistics, known, senders))
    spread = layer_spreads(layout, parameters, weights=state.weights[senders])
    fleet.share(depth, average)
    state.share(depth, average.received(shared))
    return spread


def _with_server(layout: Layout, side: ModelVectors, server: ModelVectors, own: int, depth: int) -> ModelVectors:
    """A client's own layers, and the server's behind them up to `depth`."""
    if own == depth:
        return side
    behind = layout.front(server, depth)
    rest = (whole[edge[own] :] for whole, edge in zip(behind.both, layout.edges, strict=True))
    return ModelVectors(*(torch.cat(parts) for parts in zip(side.both, rest, strict=True)))
