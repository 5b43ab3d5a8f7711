"""Whole networks, copied and averaged: what `plain` is made of.

A client or the server has a network of which only the layers on its side of the cut mean something, and one optimiser
per layer, which stays where it is when the layer moves.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from asfl.models.cuttable import Carry, CuttableModel
from asfl.train.optimizers import Name
from asfl.train.state import Combining, Layout, Slot

Kind = Literal["parameters", "statistics"]


@dataclass
class Holder:
    """A client or the server: a network, and one optimiser per unit that has parameters."""

    model: CuttableModel
    optimizers: list[Optimizer | None]

    @classmethod
    def of(cls, model: CuttableModel, name: Name, learning_rate: float) -> "Holder":
        model = deepcopy(model)
        make: dict[Name, Callable[[list[nn.Parameter]], Optimizer]] = {
            "sgd": lambda parameters: SGD(parameters, learning_rate),
            "momentum": lambda parameters: SGD(parameters, learning_rate, momentum=0.9),
            "adam": lambda parameters: Adam(parameters, learning_rate),
        }
        of_units = [list(unit.parameters()) for unit in model.units]
        return cls(model, [make[name](parameters) if parameters else None for parameters in of_units])

    def forward(self, carry: Carry, units: range) -> Carry:
        return self.model.run(carry, units.start, units.stop)

    def forward_joined(self, sent: Mapping[int, Carry], cuts: Mapping[int, int]) -> dict[int, Tensor]:
        """One pass to the end, as one batch, which each client joins at its own cut; each client's logits."""
        inside: list[int] = []
        carry: Carry = ()
        for unit in range(min(cuts.values()), len(self.model.units)):
            joining = [client for client in sent if cuts[client] == unit]
            batches = [carry] * bool(inside) + [sent[client] for client in joining]
            carry = self.forward(tuple(map(torch.cat, zip(*batches, strict=True))), range(unit, unit + 1))
            inside += joining
        (logits,) = carry
        return dict(zip(inside, logits.chunk(len(inside)), strict=True))

    def step(self, units: range) -> None:
        for unit in units:
            optimizer = self.optimizers[unit]
            if optimizer is not None:
                optimizer.step()
        self.model.zero_grad()

    def values(self, units: Iterable[int]) -> Tensor:
        of_units = [p.detach().flatten() for unit in units for p in self.model.units[unit].parameters()]
        return torch.cat([torch.zeros(0), *of_units])


# ---------------------------------------------------------------------- many become one
def combined(rows: Sequence[Tensor], samples: Tensor, known: Tensor, how: Combining) -> Tensor:
    """What many clients' vectors become, as docs/security.md says; `known` is what all had before."""
    if how.clip:
        lengths = [float((row - known).norm()) for row in rows]
        most = how.clip * float(np.median(lengths))
        rows = [
            known + (row - known) * (most / length) if length > most else row
            for row, length in zip(rows, lengths, strict=True)
        ]
    if how.rule == "mean":
        return weighted(rows, samples)
    numbers = torch.stack(list(rows)).numpy()
    return torch.from_numpy(np.median(numbers, axis=0))


def weighted(tensors: Sequence[Tensor], samples: Tensor) -> Tensor:
    """Σ D_n x_n / Σ D_n."""
    return sum((x * (d / samples.sum()).to(x) for x, d in zip(tensors, samples, strict=True)), torch.zeros(()))


def combine_states(server: Holder, copies: Sequence[Holder], unit: int, samples: Tensor) -> None:
    """Mean of the optimiser states of one unit."""
    optimizer = server.optimizers[unit]
    if optimizer is None:
        return
    states = []
    for copy in copies:
        other = copy.optimizers[unit]
        assert other is not None
        states.append(other.state_dict())
    mean = deepcopy(states[0])
    for parameter, state in mean["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                state[key] = weighted([one["state"][parameter][key] for one in states], samples)
    optimizer.load_state_dict(mean)


# ---------------------------------------------------------------------- layers as vectors, in the order of `Layout`
def numbers_of(model: CuttableModel, units: range, kind: Kind = "parameters") -> Tensor:
    """Parameters, or running statistics, of these layers; a copy."""
    tensors = model.state_dict()
    return _flat(model, units, kind, lambda slot: tensors[slot.key])


def put_numbers(model: CuttableModel, units: range, values: Tensor, kind: Kind = "parameters") -> None:
    """The other way round."""
    tensors = model.state_dict()
    for slot in _slots(model, units, kind):
        tensors[slot.key].copy_(slot.view(values))


def gradient_of(model: CuttableModel, units: range) -> Tensor:
    """0 where there is none."""

    def of(slot: Slot) -> Tensor:
        parameter = model.get_parameter(slot.key)
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    return _flat(model, units, "parameters", of)


def put_gradient(model: CuttableModel, units: range, gradient: Tensor) -> None:
    for slot in _slots(model, units, "parameters"):
        model.get_parameter(slot.key).grad = slot.view(gradient).clone()


def copy_unit(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def _flat(model: CuttableModel, units: range, kind: Kind, tensor_of: Callable[[Slot], Tensor]) -> Tensor:
    slots = _slots(model, units, kind)
    vector = torch.zeros(slots[-1].stop if slots else 0, dtype=torch.float64)
    for slot in slots:
        slot.view(vector).copy_(tensor_of(slot).detach())
    return vector


def _slots(model: CuttableModel, units: range, kind: Kind) -> list[Slot]:
    """Of these layers, where they lie in a vector of their own."""
    layout = Layout(model)
    edge = (layout.parameter_edges if kind == "parameters" else layout.statistic_edges)[units.start]
    every = layout.parameters if kind == "parameters" else layout.statistics
    moved = (
        Slot(slot.unit, slot.module, slot.name, slot.shape, int(slot.start - edge), int(slot.stop - edge))
        for slot in every
        if slot.unit in units
    )
    return list(moved)
