"""Where the numbers of a network lie in flat vectors: unit after unit, so that the two sides of a cut are slices.

A whole model is one vector of parameters [P] and one of running statistics [B] (what batch norm keeps besides: means,
variances, and how much of both is no longer what they started with). The client side at cut c is
`[:parameter_edges[c]]`, the server side the rest: averaging, re-splitting and comparing client sides are operations on
slices, and one optimiser step is a handful of vector operations.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from asfl.models.cuttable import Carry, CuttableModel
from asfl.models.layers import count_update

Floats = NDArray[np.float64]
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

    @property
    def num_parameters(self) -> int:
        return int(self.parameter_edges[-1])

    @property
    def num_statistics(self) -> int:
        return int(self.statistic_edges[-1])

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

    @property
    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where units begin, among the parameters and among the statistics."""
        return self.parameter_edges, self.statistic_edges

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

    def run(self, carry: Carry, start: int, stop: int) -> Carry:
        """Through units start … stop−1, counted from 0."""
        return self.model.run(carry, start, stop)


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
