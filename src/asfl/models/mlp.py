"""A few dense layers, for vectors and short sequences; images are taken pixel by pixel."""

import math

from torch import nn

from asfl.config.names import ModelSpec
from asfl.data.shapes import INPUT_SHAPE, NUM_CLASSES
from asfl.models.cuttable import CuttableModel
from asfl.models.layers import Plain, scaled

_HIDDEN = (256, 256, 128, 128)


def build_mlp(spec: ModelSpec) -> CuttableModel:
    """`model.width` multiplies the units of a layer; `model.norm` has no meaning here."""
    units: dict[str, nn.Module] = {}
    features = math.prod(INPUT_SHAPE[spec.dataset])
    for number, base in enumerate(_HIDDEN, start=1):
        layer = nn.Linear(features, scaled(base, spec.width))
        units[f"dense{number}"] = Plain(*([nn.Flatten()] if number == 1 else []), layer, nn.ReLU())
        features = layer.out_features
    units["out"] = Plain(nn.Linear(features, NUM_CLASSES[spec.dataset]))
    return CuttableModel(units)
