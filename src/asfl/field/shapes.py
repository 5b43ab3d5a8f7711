"""What may cross between server and clients of one network: shapes at every cut, and the largest message.

Shapes, element types and bits are checked here, once, against what was asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from asfl.config import Config
from asfl.costs.modelled import REPORTED_NUMBERS
from asfl.costs.round import MOST_BATCHES
from asfl.data.arrays import INPUT_SHAPE
from asfl.field.wire import DTYPE_NAMES, HEADER_LIMIT, MOST_WEIGHT, WireError
from asfl.models.build import build_model
from asfl.models.cuttable import Carry, CuttableModel
from asfl.train.fleet import FirstLayers, Packet, Projections
from asfl.train.optimizers import OptimizerState, rule_named
from asfl.train.quantise import (
    UNQUANTISED,
    Crossing,
    Quantised,
    QuantisedLayers,
    group_sizes,
    num_code_bytes,
    num_groups,
)
from asfl.train.signals import Task
from asfl.train.state import Layout, ModelVectors

Shape = tuple[int, ...]
_MARGIN = 1 << 16
"""Bytes for what lies between tensors, step counts and single numbers."""


@dataclass(frozen=True, eq=False)
class Shapes:
    """Of one network. What is checked comes back on the wished device; what doesn't fit is a `WireError`."""

    layout: Layout
    carries: list[tuple[Shape, ...]]
    """Of a mini-batch at every cut 0 … M."""
    num_moments: int
    """Of the optimiser."""
    device: torch.device

    @classmethod
    def of(
        cls, model: CuttableModel, image: Sequence[int], batch_size: int, num_moments: int, device: torch.device
    ) -> "Shapes":
        """From a single sample sent through the model, which is as before then."""
        trains = model.training
        with torch.no_grad():
            carry: Carry = (torch.zeros(1, *image, dtype=next(model.parameters()).dtype),)
            carries = [carry] + [carry := unit(carry) for unit in model.eval().units]
        model.train(trains)
        shapes = [tuple((batch_size, *tensor.shape[1:]) for tensor in carry) for carry in carries]
        return cls(Layout(model), shapes, num_moments, device)

    def layers(self, vectors: ModelVectors, first: int, last: int) -> ModelVectors:
        """Layers first … last−1 of a whole model, as views."""
        a, b = self.layout.parameter_edges, self.layout.statistic_edges
        return ModelVectors(vectors.parameters[a[first] : a[last]], vectors.statistics[b[first] : b[last]])

    # ------------------------------------------------------------------ layers
    def check_vectors(self, layers: ModelVectors, first: int, last: int) -> ModelVectors:
        """Layers first … last−1, as they came."""
        a, b = self.layout.parameter_edges, self.layout.statistic_edges
        parameters = self.check("parameters", layers.parameters, (int(a[last] - a[first]),))
        statistics = self.check("statistics", layers.statistics, (int(b[last] - b[first]),))
        if (statistics.cpu()[self._never_negative[b[first] : b[last]]] < 0).any():
            raise WireError("statistics has a negative variance or weight")
        return ModelVectors(parameters, statistics)

    @cached_property
    def _never_negative(self) -> Tensor:
        """[B] which running statistics of batch norms are variances or weights."""
        squares = torch.zeros(self.layout.num_statistics, dtype=torch.bool)
        for slot in self.layout.statistics:
            squares[slot.start : slot.stop] = slot.name in ("running_var", "running_weight")
        return squares

    def check_layers(self, layers: FirstLayers | None, cut: int, bits: int, first: int = 0) -> FirstLayers:
        """Layers first … cut−1 with so many bits a parameter."""
        if layers is None:
            raise WireError("layers are missing")
        count = int(self.layout.parameter_edges[cut] - self.layout.parameter_edges[first])
        sent = layers.parameters
        if isinstance(sent, Tensor) != (bits == UNQUANTISED or count == 0):
            raise WireError(f"parameters must come with {bits} bits")
        if isinstance(sent, Tensor):
            found = self.check_vectors(ModelVectors(sent, layers.statistics), first, cut)
            return FirstLayers(found.parameters, found.statistics)
        sizes = group_sizes(self.layout, cut)
        self._check_codes("parameters", sent, count, len(sizes), bits)
        codes, low, step = (tensor.to(self.device) for tensor in (sent.codes, sent.low, sent.step))
        unsent = ModelVectors(layers.statistics.new_zeros(count), layers.statistics)
        statistics = self.check_vectors(unsent, first, cut).statistics
        return FirstLayers(QuantisedLayers(codes, low, step, bits, sizes.to(self.device)), statistics)

    def check_memory(self, memory: OptimizerState | None) -> OptimizerState:
        if memory is None:
            raise WireError("what the optimiser remembers is missing")
        width = memory.moments.shape[-1]
        if memory.moments.dim() != 2 or width not in self.layout.parameter_edges:
            raise WireError(f"moments of {width} parameters, which is no whole number of layers")
        self.check("steps", torch.from_numpy(memory.steps), (self.layout.num_units,), torch.int64)
        return OptimizerState(self.check("moments", memory.moments, (self.num_moments, width)), memory.steps)

    # ------------------------------------------------------------------ what crosses a cut
    def check_crossing(self, name: str, crossing: Crossing, task: Task) -> Crossing:
        """Activations, or their gradients, with the bits and the mini-batch of the task."""
        shapes = [(task.batch or shape[0], *shape[1:]) for shape in self.carries[task.cut]]
        if len(crossing) != len(shapes):
            raise WireError(f"{name} has {len(crossing)} tensors, not {len(shapes)}")
        places = enumerate(zip(crossing, shapes, strict=True))
        return tuple(self._check_crossed(f"{name}.{i}", sent, shape, task.bits) for i, (sent, shape) in places)

    def _check_crossed(self, name: str, sent: Tensor | Quantised, shape: Shape, bits: int) -> Tensor | Quantised:
        if isinstance(sent, Tensor) != (bits == UNQUANTISED):
            raise WireError(f"{name} must come with {bits} bits")
        if isinstance(sent, Tensor):
            return self.check(name, sent, shape)
        if sent.shape != shape:
            raise WireError(f"{name} has shape {list(sent.shape)}, not {list(shape)}")
        self._check_codes(name, sent, torch.Size(shape).numel(), num_groups(shape), bits)
        codes, low, step = (tensor.to(self.device) for tensor in (sent.codes, sent.low, sent.step))
        return replace(sent, codes=codes, low=low, step=step)

    def _check_codes(self, name: str, sent: Quantised | QuantisedLayers, count: int, groups: int, bits: int) -> None:
        if sent.bits != bits:
            raise WireError(f"{name} must come with {bits} bits")
        self.check(f"{name}.codes", sent.codes, (num_code_bytes(count, bits),), torch.uint8)
        self.check(f"{name}.low", sent.low, (groups,))
        self.check(f"{name}.step", sent.step, (groups,))
        if (sent.low + sent.step * (2**bits - 1) > MOST_WEIGHT).any():
            raise WireError(f"{name}.step must not be so large that a number is above {MOST_WEIGHT:g}")

    @property
    def num_classes(self) -> int:
        return self.carries[-1][0][-1]

    def check_packet(self, packet: Packet, task: Task) -> Packet:
        carry = self.check_crossing("carry", packet.carry, task)
        if (packet.error is None) != (task.bits == UNQUANTISED):
            raise WireError("error must come with codes, and only with them")
        if packet.error is not None:
            self.check("error", packet.error, ())
        dtype = torch.uint8 if self.num_classes <= 256 else torch.int64
        labels = self.check("labels", packet.labels, (task.batch or self.carries[0][0][0],), dtype)
        if labels.max() >= self.num_classes:
            raise WireError(f"labels must be 0 … {self.num_classes - 1}")
        return Packet(carry, labels.long(), packet.error)

    def check_projections(self, sent: Projections, layers: int) -> Projections:
        codes = self.check("codes", sent.codes, (layers, REPORTED_NUMBERS), torch.int16)
        return Projections(codes, self.check("step", sent.step, (layers,)))

    def check(self, name: str, tensor: Tensor, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            found = f"{DTYPE_NAMES[tensor.dtype]} {list(tensor.shape)}"
            raise WireError(f"{name} is {found}, not {DTYPE_NAMES[dtype]} {list(shape)}")
        return tensor.to(self.device)


@dataclass(frozen=True, eq=False)
class Blueprint:
    """The network of a configuration without its numbers."""

    model: CuttableModel
    """Takes no memory."""
    shapes: Shapes
    largest_message: int
    """Bytes: activations and labels of a mini-batch, or a whole client with its optimiser. More is refused."""

    @classmethod
    def of(cls, config: Config, device: torch.device = torch.device("cpu")) -> "Blueprint":  # noqa: B008
        training, batches = config.training, MOST_BATCHES
        # Built with numbers and emptied then: drawing them on the device "meta" would import PyTorch's compiler.
        with torch.random.fork_rng(devices=[]):
            model = build_model(config.model_spec, config.training.precision)
        moments = rule_named(training.optimizer, training.learning_rate).num_moments
        shapes = Shapes.of(model, INPUT_SHAPE[config.data.name], training.batch_size, moments, device)
        activations = max(sum(torch.Size(shape).numel() for shape in carry) for carry in shapes.carries) * batches
        layout = shapes.layout
        client = layout.num_parameters * (1 + moments) + layout.num_statistics
        labels_and_steps = (training.batch_size * batches + layout.num_units) * torch.int64.itemsize
        largest = max(activations, client) * torch.float32.itemsize + labels_and_steps + HEADER_LIMIT + _MARGIN
        return cls(model.to("meta"), shapes, largest)
