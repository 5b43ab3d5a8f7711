"""Kinds of values that cross: each has a type, and a range in which it can be true of a network that still learns."""

from typing import Annotated

import torch
from pydantic import AfterValidator, Field, Strict
from torch import Tensor

from asfl.costs.decision import wrong_bits
from asfl.field.protocol.codec import check_numbers, numbers
from asfl.field.protocol.wire import LARGEST
from asfl.train.layout import ModelVectors

MOST_SAMPLES = 10**9
"""Of one client."""
MOST_WEIGHT, MOST_SQUARE = 1e6, 1e12
"""Sizes that parameters, activations and gradients, and squares of such, never have while anything is learnt."""
MOST_SECONDS = 1e6
"""Eleven days: nothing that is asked takes so long."""
WEIGHTS, SQUARES, NATURALS = (-MOST_WEIGHT, MOST_WEIGHT), (-MOST_SQUARE, MOST_SQUARE), (0.0, float(LARGEST))


def _check_bits(bits: int) -> int:
    if wrong := wrong_bits(bits):
        raise ValueError(wrong)
    return bits


def _check_layers(layers: ModelVectors) -> ModelVectors:
    for name, within in (("parameters", WEIGHTS), ("statistics", SQUARES)):
        try:
            check_numbers(getattr(layers, name), (torch.float32,), axes=1, within=within)
        except ValueError as error:
            raise ValueError(f"({name}) {error}") from None
    return layers


Natural = Annotated[int, Strict(), Field(ge=0, le=LARGEST)]
Size = Annotated[int, Strict(), Field(ge=1, le=LARGEST)]
Amount = Annotated[float, Strict(), Field(ge=0, le=LARGEST)]
Seconds = Annotated[float, Strict(), Field(ge=0, le=MOST_SECONDS)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
Bits = Annotated[int, Strict(), AfterValidator(_check_bits)]
Square = Annotated[Tensor, numbers(torch.float32, axes=0, within=(0.0, MOST_SQUARE))]
Loss = Annotated[Tensor, numbers(torch.float32, axes=0, within=(0.0, MOST_WEIGHT))]
Vector = Annotated[Tensor, numbers(torch.float32, axes=1, within=WEIGHTS)]
Statistics = Annotated[Tensor, numbers(torch.float32, axes=1, within=SQUARES)]
Labels = Annotated[Tensor, numbers(torch.uint8, torch.int64, axes=1)]
"""A byte each, or eight where there are more than 256 classes."""
Steps = Annotated[Tensor, numbers(torch.int64, axes=1, within=NATURALS)]
Octets = Annotated[Tensor, numbers(torch.uint8, axes=1)]
Tensors = tuple[Annotated[Tensor, numbers(torch.float32, within=WEIGHTS)], ...]
Layers = Annotated[ModelVectors, AfterValidator(_check_layers)]
"""Parameters and running statistics of consecutive layers."""
