"""A network's code without numbers of its own: bound to vectors, it computes with them, and nothing is copied."""

from collections.abc import Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from asfl.models.cuttable import Carry, CuttableModel
from asfl.models.layers import count_update
from asfl.train.layout import Layout, ModelVectors, Slot


class Replica:
    """Units `start` … `stop` run forward and backward with the vectors they are bound to."""

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
