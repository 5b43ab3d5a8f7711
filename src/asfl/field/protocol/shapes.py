"""What may cross between server and clients of one network: shapes at every cut, and the largest message."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from asfl.config import Config
from asfl.costs.crossing import REPORTED_NUMBERS
from asfl.costs.decision import MOST_BATCHES
from asfl.data.shapes import INPUT_SHAPE
from asfl.field.protocol.kinds import MOST_WEIGHT, Tensors
from asfl.field.protocol.messages import Activations, Codes, Memory, Projected, Share, Uploaded
from asfl.field.protocol.wire import DTYPE_NAMES, HEADER_LIMIT, WireError
from asfl.models.build import build_model
from asfl.models.cuttable import Carry, CuttableModel
from asfl.train.fleet import FirstLayers, Packet
from asfl.train.layout import Layout, ModelVectors
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
from asfl.train.reports import Projections

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

    def check_layers(self, layers: ModelVectors | None, first: int, last: int) -> ModelVectors:
        """Layers first … last−1, as they came."""
        if layers is None:
            raise WireError("layers are missing")
        a = self.layout.parameter_edges
        parameters = self.check("parameters", layers.parameters, (int(a[last] - a[first]),))
        return ModelVectors(parameters, self._check_statistics(layers.statistics, first, last))

    def _check_statistics(self, statistics: Tensor, first: int, last: int) -> Tensor:
        b = self.layout.statistic_edges
        checked = self.check("statistics", statistics, (int(b[last] - b[first]),))
        if (statistics.cpu()[self._never_negative[b[first] : b[last]]] < 0).any():
            raise WireError("statistics has a negative variance or weight")
        return checked

    @cached_property
    def _never_negative(self) -> Tensor:
        """[B] which running statistics of batch norms are variances or weights."""
        squares = torch.zeros(self.layout.num_statistics, dtype=torch.bool)
        for slot in self.layout.statistics:
            squares[slot.start : slot.stop] = slot.name in ("running_var", "running_weight")
        return squares

    def check_side(self, side: ModelVectors | None, codes: Codes | None, cut: int, bits: int) -> FirstLayers:
        """A client side as it came: as codes if bits are few."""
        if side is None:
            raise WireError("layers are missing")
        parameters = side.parameters if codes is None or len(side.parameters) else None
        return self.check_first(Uploaded(side.statistics, parameters, codes), cut, bits)

    def check_memory(self, memory: Memory | None) -> OptimizerState:
        if memory is None:
            raise WireError("what the optimiser remembers is missing")
        width = memory.moments.shape[1]
        if width not in self.layout.parameter_edges:
            raise WireError(f"moments of {width} parameters, which is no whole number of layers")
        steps = self.check("steps", memory.steps, (self.layout.num_units,))
        return OptimizerState(self.check("moments", memory.moments, (self.num_moments, width)), steps.cpu().numpy())

    def check_crossing(
        self, name: str, carry: Tensors, codes: Sequence[Codes], cut: int, bits: int, batch: int | None = None
    ) -> Crossing:
        """Activations, or their gradients: with as many bits as was agreed on, as codes if those are few."""
        shapes, few = [(batch or shape[0], *shape[1:]) for shape in self.carries[cut]], bits != UNQUANTISED
        wanted = (0, len(shapes)) if few else (len(shapes), 0)
        if (len(carry), len(codes)) != wanted:
            found = f"{len(carry)} tensors and codes of {len(codes)}"
            raise WireError(f"{name}: {found}, not {wanted[0]} and {wanted[1]} as at {bits} bits")
        if few:
            sizes = [(math.prod(shape), num_groups(shape)) for shape in shapes]
            parts = [self._check_codes(f"codes.{i}", sent, *sizes[i], bits) for i, sent in enumerate(codes)]
            return tuple(Quantised(*of_tensor, bits, shape) for of_tensor, shape in zip(parts, shapes, strict=True))
        return tuple(self.check(f"{name}.{i}", tensor, shapes[i]) for i, tensor in enumerate(carry))

    def check_first(self, layers: Uploaded | Share, depth: int, bits: int) -> FirstLayers:
        """The first layers, for an average: as codes if bits are few."""
        count = int(self.layout.parameter_edges[depth])
        statistics = self._check_statistics(layers.statistics, 0, depth)
        few = bits != UNQUANTISED and count > 0
        if (layers.parameters is None) != few or (layers.codes is None) == few:
            raise WireError(f"{'codes' if few else 'parameters'} must come at {bits} bits, and nothing else")
        if layers.codes is not None:
            sizes = group_sizes(self.layout, depth)
            codes = self._check_codes("codes", layers.codes, count, len(sizes), bits)
            return FirstLayers(QuantisedLayers(*codes, bits, sizes.to(self.device)), statistics)
        assert layers.parameters is not None
        return FirstLayers(self.check("parameters", layers.parameters, (count,)), statistics)

    def _check_codes(self, name: str, sent: Codes, count: int, groups: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
        codes = self.check(f"{name}.codes", sent.codes, (num_code_bytes(count, bits),))
        low, step = self.check(f"{name}.low", sent.low, (groups,)), self.check(f"{name}.step", sent.step, (groups,))
        if (step < 0).any() or (low + step * (2**bits - 1) > MOST_WEIGHT).any():
            raise WireError(f"{name}.step must not be negative, nor any number that is meant above {MOST_WEIGHT:g}")
        return codes, low, step

    @property
    def num_classes(self) -> int:
        return self.carries[-1][0][-1]

    def check_batch(self, batch: int | None) -> None:
        """What a client can be asked for."""
        most = MOST_BATCHES * self.carries[0][0][0]
        if batch is not None and batch > most:
            raise WireError(f"batch = {batch} must be at most {most}")

    def check_activations(self, answer: Activations, cut: int, bits: int, batch: int | None = None) -> Packet:
        batch_size, classes = batch or self.carries[0][0][0], self.num_classes
        carry = self.check_crossing("carry", answer.carry, answer.codes, cut, bits, batch)
        if (answer.error is None) != (bits == UNQUANTISED):
            raise WireError("error must come with codes, and only with them")
        labels = self.check("labels", answer.labels, (batch_size,))
        if labels.min() < 0 or labels.max() >= classes:
            raise WireError(f"labels must be 0 … {classes - 1}")
        return Packet(carry, labels.long(), answer.error)

    def check_projections(self, answer: Projected, layers: int) -> Projections:
        codes = self.check("codes", answer.codes, (2 * layers * REPORTED_NUMBERS,))
        step = self.check("step", answer.step, (layers,))
        if (step < 0).any():
            raise WireError("step must not be negative")
        return Projections(codes.view(torch.int16).view(layers, REPORTED_NUMBERS), step)

    def check(self, name: str, tensor: Tensor, shape: Shape) -> Tensor:
        if tuple(tensor.shape) != shape:
            dtype = DTYPE_NAMES[tensor.dtype]
            raise WireError(f"{name} is {dtype} {list(tensor.shape)}, not {dtype} {list(shape)}")
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
