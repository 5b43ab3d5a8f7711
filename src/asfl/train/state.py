"""Where the numbers of a network lie in flat vectors: unit after unit, so that the two sides of a cut are slices.

A whole model is one vector of parameters [P] and one of running statistics [B] (what batch norm keeps besides: means,
variances, and how much of both is no longer what they started with). The client side at cut c is
`[:parameter_edges[c]]`, the server side the rest: averaging, re-splitting and comparing client sides are operations on
slices, and one optimiser step is a handful of vector operations.

`TrainingState` is what training remembers between two rounds; it also moves layers when the cut does (stage 1).
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from asfl.config.randomness import random_stream
from asfl.models.cuttable import Carry, CuttableModel, count_update
from asfl.train.optimizers import OptimizerState

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
COLUMNS_AT_ONCE = 1 << 14
"""Columns of [N, P] that fit the cache together with their deviations."""


@dataclass(frozen=True)
class Slot:
    """One tensor of one unit, and where it lies in its vector."""

    unit: int
    """Counted from 0."""
    module: str
    """Path of the owning module inside the model, as in `get_submodule`."""
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def key(self) -> str:
        """Its name in the model's `state_dict`."""
        return f"{self.module}.{self.name}"

    def view(self, vector: Tensor) -> Tensor:
        """The tensor as a view of the vector.

        Weights of convolutions lie there channels-last, which is the order the fast kernels want.
        """
        flat = vector[self.start : self.stop]
        if len(self.shape) == 4:
            outputs, inputs, height, width = self.shape
            return flat.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return flat.view(self.shape)


class Layout:
    """The slots of all parameters and of all floating-point buffers of a model, in the order of its units."""

    def __init__(self, model: CuttableModel) -> None:
        self.num_units = len(model.units)
        parameters = {f"units.{path}": tensor for path, tensor in model.units.named_parameters()}
        buffers = {f"units.{path}": t for path, t in model.units.named_buffers() if t.is_floating_point()}
        self.parameters, self.parameter_edges = _lay_out(parameters, self.num_units)
        self.statistics, self.statistic_edges = _lay_out(buffers, self.num_units)
        self.edges = self.parameter_edges, self.statistic_edges
        """[M+1] where units begin, among the parameters and among the statistics."""
        self.num_parameters, self.num_statistics = int(self.parameter_edges[-1]), int(self.statistic_edges[-1])

    def flatten(self, model: CuttableModel, device: torch.device, dtype: torch.dtype) -> "ModelVectors":
        """The model's numbers as new vectors."""
        vectors = ModelVectors.empty((), self.num_parameters, self.num_statistics, device, dtype)
        tensors = model.state_dict()
        with torch.no_grad():
            for slots, vector in ((self.parameters, vectors.parameters), (self.statistics, vectors.statistics)):
                for slot in slots:
                    slot.view(vector).copy_(tensors[slot.key])
        return vectors

    def front(self, vectors: "ModelVectors", units: int) -> "ModelVectors":
        """The first units, as views."""
        parameters, statistics = self.parameter_edges[units], self.statistic_edges[units]
        return ModelVectors(vectors.parameters[..., :parameters], vectors.statistics[..., :statistics])

    def behind(self, vectors: "ModelVectors", units: int) -> "ModelVectors":
        """All but the first units, as views."""
        parameters, statistics = self.parameter_edges[units], self.statistic_edges[units]
        return ModelVectors(vectors.parameters[..., parameters:], vectors.statistics[..., statistics:])

    def on_server(self, cuts: NDArray[np.int64], weights: Floats) -> Floats:
        """[M] of each layer, the weights [A] of the clients whose copy of it lies with the server."""
        return np.asarray((weights[:, None] * (cuts[:, None] <= np.arange(self.num_units))).sum(axis=0))

    def divide_(self, vector: Tensor, by_layer: Floats, start: int) -> None:
        """Divide what a vector of parameters has of layers start … M−1 by numbers [M] of theirs."""
        for first, last in runs(by_layer, start, self.num_units):
            vector[self.parameter_edges[first] : self.parameter_edges[last]].div_(float(by_layer[first]))

    def state_dict(self, vectors: "ModelVectors") -> dict[str, Tensor]:
        """Contiguous copies under the names of the model's `state_dict`, on the CPU."""
        pairs = ((self.parameters, vectors.parameters), (self.statistics, vectors.statistics))
        return {slot.key: slot.view(v).contiguous().cpu().clone() for slots, v in pairs for slot in slots}


@dataclass
class ModelVectors:
    """Numbers of a model or of its first units; leading axes, if any, are clients."""

    parameters: Tensor
    """[..., P]"""
    statistics: Tensor
    """[..., B]"""

    @classmethod
    def empty(
        cls, leading: tuple[int, ...], parameters: int, statistics: int, device: torch.device, dtype: torch.dtype
    ) -> "ModelVectors":
        return cls(
            torch.empty(*leading, parameters, device=device, dtype=dtype),
            torch.empty(*leading, statistics, device=device, dtype=dtype),
        )

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        return self.parameters, self.statistics

    def row(self, client: int) -> "ModelVectors":
        """One client's, as a view."""
        return ModelVectors(self.parameters[client], self.statistics[client])

    def clone(self) -> "ModelVectors":
        return ModelVectors(self.parameters.clone(), self.statistics.clone())

    def copy_(self, other: "ModelVectors") -> None:
        self.parameters.copy_(other.parameters)
        self.statistics.copy_(other.statistics)


def runs(values: Floats | NDArray[np.int64], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """[first, last) of neighbours with the same value."""
    first = start
    for last in range(start + 1, stop + 1):
        if last == stop or values[last] != values[first]:
            yield first, last
            first = last


def _lay_out(tensors: Mapping[str, Tensor], num_units: int) -> tuple[tuple[Slot, ...], NDArray[np.int64]]:
    """Slots in the order given (units come in order), and the edges [M+1] of the units in the vector."""
    slots: list[Slot] = []
    sizes = np.zeros(num_units + 1, dtype=np.int64)
    position = 0
    for path, tensor in tensors.items():
        module, _, name = path.rpartition(".")
        unit = int(path.split(".")[1])
        slots.append(Slot(unit, module, name, tuple(tensor.shape), position, position + tensor.numel()))
        position += tensor.numel()
        sizes[unit + 1] += tensor.numel()
    return tuple(slots), np.cumsum(sizes)


def layer_spreads(
    layout: Layout, sides: Tensor, columns: NDArray[np.int64] | None = None, weights: Floats | None = None
) -> Floats:
    """[M] (1/N) Σ_n ‖w̄_m − w_{n,m}‖² of client sides [N, P_c], or of these columns of them; 0 for other layers.

    With weights [N], both means are by them.

    Deviations from the mean are squared, not Σ‖w‖² − N‖w̄‖²: in single precision that difference cancels.
    """
    by_column = torch.empty(sides.shape[1], dtype=torch.float64)
    weights = np.ones(len(sides)) if weights is None else weights
    for start in range(0, len(by_column), COLUMNS_AT_ONCE):
        here = slice(start, start + COLUMNS_AT_ONCE)
        block = sides[:, here]
        by_column[here] = weighted_mean((block - weighted_mean(block, weights)).square_(), weights)
    edges = layout.parameter_edges if columns is None else np.searchsorted(columns, layout.parameter_edges)
    sums = np.concatenate([[0.0], np.cumsum(by_column.numpy())])
    return np.asarray(np.diff(sums[np.minimum(edges, len(by_column))]))


def weighted_mean(rows: Tensor, weights: Floats) -> Tensor:
    """Σ w_n row_n / Σ w_n; with equal weights the plain mean, to the bit."""
    if (weights == weights[0]).all():
        return rows.mean(0)
    by_row = torch.from_numpy(weights / weights.sum()).to(rows)
    return (rows * by_row.view(-1, *[1] * (rows.dim() - 1))).sum(0)


# ---------------------------------------------------------------------- the network's code
class Replica:
    """A network's code without numbers of its own: bound to vectors, it computes with them, and nothing is copied.

    Units `start` … `stop` run forward and backward with the vectors they are bound to.
    """

    def __init__(
        self, model: CuttableModel, layout: Layout, device: torch.device, dtype: torch.dtype, *, server: bool = False
    ) -> None:
        """`model` is only looked at; `server`: batch norm treats a batch of several clients client by client."""
        self._layout = layout
        with torch.device("meta"):
            self.model = deepcopy(model).to("meta")
        self._parameters = [self._new_parameter(slot, device, dtype) for slot in layout.parameters]
        self._buffers = [(self.model.get_submodule(slot.module)._buffers, slot) for slot in layout.statistics]
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):
                module.num_batches_tracked = None  # a counter that nothing here reads
        self.batch_norms = _norm_by_client(self.model) if server else []

    def _new_parameter(self, slot: Slot, device: torch.device, dtype: torch.dtype) -> nn.Parameter:
        parameter = nn.Parameter(torch.empty(0, device=device, dtype=dtype))
        self.model.get_submodule(slot.module)._parameters[slot.name] = parameter
        return parameter

    def bind(self, vectors: ModelVectors, gradient: Tensor | None, start: int, stop: int) -> None:
        """Let units start … stop−1 compute with these vectors, and add their gradients to `gradient`.

        The vectors begin with the first unit of the model, and may end with unit `stop`. Only between a backward and
        the next forward pass: a graph remembers the parameters themselves.
        """
        for slot, parameter in zip(self._layout.parameters, self._parameters, strict=True):
            if start <= slot.unit < stop:
                parameter.grad = None
                parameter.data = slot.view(vectors.parameters)
                if gradient is not None:
                    parameter.grad = slot.view(gradient)
        for buffers, slot in self._buffers:
            if start <= slot.unit < stop:
                buffers[slot.name] = slot.view(vectors.statistics)

    def bind_statistics(self, by_client: Sequence[Tensor | None]) -> None:
        """On the server: the running statistics [B] of each client in the coming batch; None: keep none."""
        position = {(slot.module, slot.name): slot for slot in self._layout.statistics}
        for path, norm in self.batch_norms:
            slots = [position.get((path, name)) for name in ("running_mean", "running_var", "running_weight")]
            norm.by_client = [
                [None if vector is None or slot is None else slot.view(vector) for slot in slots]
                for vector in by_client
            ]


class BatchNormByClient(nn.Module):
    """Batch norm of a batch that holds the mini-batches of several clients, one after the other.

    Each client is normalised by itself, with running statistics of its own, as if it had a copy of the server side.
    """

    def __init__(self, inner: _BatchNorm) -> None:
        super().__init__()
        self.inner = inner
        self.by_client: list[list[Tensor | None]] = []
        """Running mean, variance and weight of each client; None: keep none."""

    def forward(self, x: Tensor) -> Tensor:
        inner, parts = self.inner, []
        for part, (mean, variance, weight) in zip(x.chunk(len(self.by_client)), self.by_client, strict=True):
            momentum = inner.momentum or 0.0
            parts.append(F.batch_norm(part, mean, variance, inner.weight, inner.bias, True, momentum, inner.eps))
            if weight is not None:
                count_update(weight, momentum)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _norm_by_client(model: CuttableModel) -> list[tuple[str, BatchNormByClient]]:
    replaced = []
    for path, module in list(model.named_modules()):
        if isinstance(module, _BatchNorm):
            parent, _, name = path.rpartition(".")
            norm = BatchNormByClient(module)
            model.get_submodule(parent)._modules[name] = norm
            replaced.append((path, norm))
    return replaced


# ---------------------------------------------------------------------- between two rounds
Average = Literal["mean", "median"]


@dataclass(frozen=True)
class Combining:
    """How rows [A, P], one per client, become one [P]: their mean by samples, or one that no client alone can move far.

    `mean` counts every client by its samples. `median` (of each number by itself) counts all clients once: no client
    gains weight by saying that it has many images (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018).
    Before either, updates that are longer than `clip` times the median length are shortened to that.
    """

    rule: Average = "mean"
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
        cut = (count - 1) // 2  # leaves one, or the two in the middle
        return ordered[cut : count - cut].mean(0)


@dataclass
class Auxiliary:
    """What clients need to train on a loss of their own (`ExchangeRules.local_loss`): a small head for each cut.

    A head is the mean over positions, if there are any, and a linear layer. A client gets it with the client model and
    steps it with an optimiser of its own; then heads are averaged as client models are.
    """

    edges: NDArray[np.int64] = field(metadata={"fixed": True})
    """[M] The head at cut c is `heads[edges[c - 1]:edges[c]]`: weights [classes, features], then biases."""
    classes: int = field(metadata={"fixed": True})
    heads: Tensor
    """[Q]"""
    moments: Tensor
    """[N, S, Q]"""
    steps: NDArray[np.int64]
    """[N, M − 1]"""
    sent: NDArray[np.int64]
    """[N] how many mini-batches of each client the server has the activations of, where it trains alone in the end."""

    @classmethod
    def fresh(
        cls,
        model: CuttableModel,
        image_shape: Sequence[int],
        initial: Tensor,
        num_clients: int,
        moments: int,
        seed: int,
    ) -> "Auxiliary":
        """`initial`: a tensor of the type and on the device of heads. They begin as PyTorch's layers do."""
        model, units = deepcopy(model).eval(), len(model.units)
        carry: Carry = (torch.zeros(1, *image_shape, dtype=next(model.parameters()).dtype),)
        features = list[int]()
        with torch.no_grad():
            for unit in range(units):
                carry = model.run(carry, unit, unit + 1)
                features.append(sum(tensor.shape[1] for tensor in carry))
        classes, random = features.pop(), random_stream(seed, "auxiliary heads")
        drawn = [random.uniform(-1, 1, classes * (size + 1)) / np.sqrt(size) for size in features]
        heads = torch.from_numpy(np.concatenate(drawn)).to(initial)
        return cls(
            np.cumsum([0, *map(len, drawn)]),
            classes,
            heads,
            heads.new_zeros(num_clients, moments, len(heads)),
            np.zeros((num_clients, units - 1), dtype=np.int64),
            np.zeros(num_clients, dtype=np.int64),
        )

    def at(self, cut: int) -> slice:
        return slice(int(self.edges[cut - 1]), int(self.edges[cut]))

    def loss(self, head: Tensor, carry: Carry, labels: Tensor) -> Tensor:
        features = torch.cat([tensor.flatten(2).mean(2) if tensor.dim() > 2 else tensor for tensor in carry], dim=1)
        weight = head[: -self.classes].view(self.classes, -1)
        return F.cross_entropy(F.linear(features, weight, head[-self.classes :]), labels)

    def client_optimizer(self, client: int) -> OptimizerState:
        return OptimizerState(self.moments[client], self.steps[client])


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
    auxiliary: Auxiliary | None = None
    """In schemes whose clients train on a loss of their own."""

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
