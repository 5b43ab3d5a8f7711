"""What may cross between server and clients of one network: the shapes of activations, and the largest message."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch

from asfl.config import Config
from asfl.field.wire import HEADER_LIMIT
from asfl.models import Carry, CuttableModel, build_model
from asfl.profile import INPUT_SHAPE
from asfl.train.layout import Layout
from asfl.train.optimizers import rule_named

Shape = tuple[int, ...]
_MARGIN = 1 << 16
"""Bytes for what lies between tensors, step counts and single numbers."""


def carry_shapes(model: CuttableModel, image: Sequence[int], batch_size: int) -> list[tuple[Shape, ...]]:
    """Shapes of what crosses cut 0 … M for a mini-batch, from a single sample sent through a copy."""
    with torch.no_grad():
        carry: Carry = (torch.zeros(1, *image, dtype=next(model.parameters()).dtype),)
        carries = [carry] + [carry := unit(carry) for unit in deepcopy(model).eval().units]
    return [tuple((batch_size, *tensor.shape[1:]) for tensor in carry) for carry in carries]


@dataclass(frozen=True, eq=False)
class Blueprint:
    """The network of a configuration without its numbers."""

    model: CuttableModel
    """Takes no memory."""
    layout: Layout
    carries: list[tuple[Shape, ...]]
    """At every cut 0 … M."""
    largest_message: int
    """Bytes: activations and labels of a mini-batch, or a whole client with its optimiser. More is refused."""

    @classmethod
    def of(cls, config: Config) -> "Blueprint":
        training = config.training
        # Built with numbers and emptied then: drawing them on the device "meta" would import PyTorch's compiler.
        with torch.random.fork_rng(devices=[]):
            model = build_model(config.model_spec)
        layout = Layout(model)
        carries = carry_shapes(model, INPUT_SHAPE[config.data.name], training.batch_size)
        activations = max(sum(torch.Size(shape).numel() for shape in carry) for carry in carries)
        moments = rule_named(training.optimizer, training.learning_rate).num_moments
        client = layout.num_parameters * (1 + moments) + layout.num_statistics
        labels_and_steps = (training.batch_size + layout.num_units) * torch.int64.itemsize
        largest = max(activations, client) * torch.float32.itemsize + labels_and_steps + HEADER_LIMIT + _MARGIN
        return cls(model.to("meta"), layout, carries, largest)
