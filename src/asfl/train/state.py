"""What training remembers between two rounds, and how layers move when the cut does (stage 1 of the round)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.train.layout import Floats, Layout, ModelVectors, weighted_mean
from asfl.train.optimizers import OptimizerState

Bools = NDArray[np.bool_]
Average = Literal["mean", "median", "trimmed"]


@dataclass(frozen=True)
class Combining:
    """How rows [A, P], one per client, become one [P]: their mean by samples, or one that no client alone can move far.

    `mean` counts every client by its samples. `median` (of each number by itself) and `trimmed` (the mean without the
    largest and the smallest share of each number) count all clients once: no client gains weight by saying that it has
    many images (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018). Before either, updates that are longer
    than `clip` times the median length are shortened to that.
    """

    rule: Average = "mean"
    trim: float = 0.2
    """Share of the clients that is left out on either side, if trimmed."""
    clip: float = 0.0
    """In median lengths; 0: updates are as long as they are."""

    @property
    def plain(self) -> bool:
        """Whether it is a mean and nothing else, so that sums can be added up as they come."""
        return self.rule == "mean" and self.clip == 0

    def mean(self, rows: Tensor, weights: Floats, reference: Tensor) -> Tensor:
        """Updates are what rows differ by from what all had before, `reference` [P]; 0 for gradients."""
        if self.clip:
            moved = rows - reference
            lengths = torch.linalg.vector_norm(moved, dim=1)
            most = self.clip * lengths.quantile(0.5)
            if bool((lengths > most).any()):  # else not a bit changes
                shorter = torch.where(lengths > most, most / lengths, torch.ones_like(lengths))
                rows = reference + moved * shorter[:, None]
        if self.rule == "mean":
            return weighted_mean(rows, weights)
        ordered, count = rows.sort(dim=0).values, len(rows)
        cut = (count - 1) // 2 if self.rule == "median" else min(int(self.trim * count), (count - 1) // 2)
        return ordered[cut : count - cut].mean(0)


@dataclass
class TrainingState:
    """One server-side model, one client side per client, and the optimiser state of each.

    `server` has room for the whole model. Schemes that average the client sides every round keep the whole average
    there; schemes that keep them apart have their values in `clients`, and what `server` has for layers ≤ cut is old.
    """

    layout: Layout = field(metadata={"fixed": True})
    server: ModelVectors
    """[P], [B]"""
    clients: ModelVectors
    """[N, client side at `cut`]; no columns while there is no cut."""
    cut: int
    """0 before the first round, and in schemes that average the client sides."""
    server_optimizer: OptimizerState
    """[S, P]"""
    client_moments: Tensor
    """[N, S, P'], P' being the client side at the highest cut so far."""
    client_steps: NDArray[np.int64]
    """[N, M]"""
    samples: Floats
    """[N] how many each client has; all averages are by them. 1 where all have as many."""
    combining: Combining = field(default_factory=Combining, metadata={"fixed": True})
    """What averages are."""

    @classmethod
    def fresh(cls, layout: Layout, initial: ModelVectors, num_clients: int, num_moments: int) -> "TrainingState":
        p = initial.parameters
        return cls(
            layout=layout,
            server=initial,
            clients=ModelVectors.empty((num_clients,), 0, 0, p.device, p.dtype),
            cut=0,
            server_optimizer=OptimizerState(
                p.new_zeros(num_moments, p.numel()), np.zeros(layout.num_units, dtype=np.int64)
            ),
            client_moments=p.new_zeros(num_clients, num_moments, 0),
            client_steps=np.zeros((num_clients, layout.num_units), dtype=np.int64),
            samples=np.ones(num_clients),
        )

    @property
    def num_clients(self) -> int:
        return len(self.client_steps)

    @property
    def weights(self) -> Floats:
        """[N] of clients in averages, 1 on average; exactly 1 where all have as many samples."""
        return np.asarray(self.samples / self.samples.mean())

    def average(self, rows: Tensor, reference: Tensor, clients: Sequence[int] | None = None) -> Tensor:
        """Of these clients' models, or of all, [A, …]; `reference` is what all had in common before."""
        weights = self.weights if clients is None else self.weights[list(clients)]
        return self.combining.mean(rows, weights, reference)

    def client_optimizer(self, client: int) -> OptimizerState:
        """As a view: stepping it changes this state."""
        return OptimizerState(self.client_moments[client], self.client_steps[client])

    def put_client_optimizer(self, client: int, memory: OptimizerState) -> None:
        """What a client's optimiser remembers, of the layers it has stepped."""
        width = memory.moments.shape[1]
        self.make_room(int(np.searchsorted(self.layout.parameter_edges, width)))
        self.client_moments[client, :, :width] = memory.moments
        self.client_moments[client, :, width:] = 0
        self.client_steps[client] = memory.steps

    def make_room(self, cut: int) -> None:
        """Let every client have optimiser state up to this cut; new layers start from nothing."""
        wanted, had = int(self.layout.parameter_edges[cut]), self.client_moments.shape[-1]
        if wanted > had:
            clients, slots, _ = self.client_moments.shape
            moments = self.client_moments.new_zeros(clients, slots, wanted)
            moments[..., :had] = self.client_moments
            self.client_moments = moments

    def resplit(self, cut: int, scheduled: Bools) -> float:
        """Stage 1. Returns how far the average model moved, ‖w̄_after − w̄_before‖².

        The cut grows: every client gets the server's values of the new layers. It shrinks: the server averages the
        layers of the clients that have a resource block, on receipt, by their samples. The average model moves if
        somebody without a block is left out of that mean.
        """
        before, moved = self.cut, 0.0
        if cut == before:
            return moved
        edges = self.layout.edges
        if cut > before:
            grown = []
            for edge, server, rows in zip(edges, self.server.both, self.clients.both, strict=True):
                new = rows.new_empty(self.num_clients, int(edge[cut]))
                new[:, : edge[before]] = rows
                new[:, edge[before] :] = server[edge[before] : edge[cut]]
                grown.append(new)
            self.clients = ModelVectors(*grown)
            self.make_room(cut)
        else:
            senders = np.flatnonzero(scheduled).tolist()
            for edge, server, rows in zip(edges, self.server.both, self.clients.both, strict=True):
                arriving = rows[:, edge[cut] :]
                had = server[edge[cut] : edge[before]]
                received = self.average(arriving if scheduled.all() else arriving[senders], had, senders)
                if edge is self.layout.parameter_edges and not scheduled.all():
                    moved = float((received - self.average(arriving, had)).square().sum())
                had.copy_(received)
            self.clients = ModelVectors(
                *(rows[:, : edge[cut]].clone() for edge, rows in zip(edges, self.clients.both, strict=True))
            )
        self.cut = cut
        return moved

    def share(self, depth: int, average: ModelVectors) -> None:
        """Layers 1 … `depth` of all client sides become this average, and the server keeps what all share."""
        for holder in (self.server, self.clients):
            for mine, new in zip(self.layout.front(holder, depth).both, average.both, strict=True):
                mine.copy_(new)

    def average_model(self) -> ModelVectors:
        """The average of the client sides with the server side behind it; running statistics too."""
        if self.cut == 0:
            return self.server
        parts = [
            torch.cat([self.average(rows, server[: rows.shape[1]]), server[rows.shape[1] :]])
            for rows, server in zip(self.clients.both, self.server.both, strict=True)
        ]
        return ModelVectors(*parts)

    def client_model(self, client: int) -> ModelVectors:
        """A client's own side with the server side behind it."""
        own = self.clients.row(client)
        parts = [
            torch.cat([side, server[len(side) :]]) for side, server in zip(own.both, self.server.both, strict=True)
        ]
        return ModelVectors(*parts)
