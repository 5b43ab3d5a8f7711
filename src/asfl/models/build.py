"""The networks that are trained, each one a chain of units that may be cut between any two.

A new model is one file here that builds a `CuttableModel`, one line in the table below, and its name in
`asfl.config.names.Architecture`; or one file anywhere and `asfl.register_model`.
"""

import math
from collections.abc import Callable

from torch import nn

from asfl.config.errors import AsflError
from asfl.config.names import MODELS, ModelSpec, Precision
from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
from asfl.models.cuttable import CuttableModel
from asfl.models.layers import GlobalAveragePool, Plain, conv_norm, scaled
from asfl.models.resnet import build_resnet
from asfl.models.vgg import build_vgg

_CHANNELS = (32, 32, 64, 64, 128, 128)


def build_cnn(spec: ModelSpec) -> CuttableModel:
    """A small CNN for quick runs: 6 convolutions and 1 fully connected layer, for images from 4×4 up."""
    after: dict[int, nn.Module] = {2: nn.MaxPool2d(2), 4: nn.MaxPool2d(2), 6: GlobalAveragePool()}
    units: dict[str, nn.Module] = {}
    channels = INPUT_SHAPE[spec.dataset][0]
    for number, base in enumerate(_CHANNELS, start=1):
        layers = [*conv_norm(channels, scaled(base, spec.width), spec.norm), nn.ReLU()]
        if number in after:
            layers.append(after[number])
        units[f"conv{number}"] = Plain(*layers)
        channels = scaled(base, spec.width)
    units["fc"] = Plain(nn.Linear(channels, NUM_CLASSES[spec.dataset]))
    return CuttableModel(units)


_HIDDEN = (256, 256, 128, 128)


def build_mlp(spec: ModelSpec) -> CuttableModel:
    """A few dense layers, for vectors and short sequences; images are taken pixel by pixel.

    `model.width` multiplies the units of a layer; `model.norm` has no meaning here.
    """
    units: dict[str, nn.Module] = {}
    features = math.prod(INPUT_SHAPE[spec.dataset])
    for number, base in enumerate(_HIDDEN, start=1):
        layer = nn.Linear(features, scaled(base, spec.width))
        units[f"dense{number}"] = Plain(*([nn.Flatten()] if number == 1 else []), layer, nn.ReLU())
        features = layer.out_features
    units["out"] = Plain(nn.Linear(features, NUM_CLASSES[spec.dataset]))
    return CuttableModel(units)


_BUILDERS: dict[str, Callable[..., CuttableModel]] = {
    "cnn": build_cnn,
    "mlp": build_mlp,
    "vgg11": build_vgg,
    "vgg16": build_vgg,
    "vgg19": build_vgg,
    "resnet18": build_resnet,
    "resnet50": build_resnet,
}


def build_model(spec: ModelSpec, precision: Precision = "float32") -> CuttableModel:
    """The network `spec` names, freshly initialised from PyTorch's global random stream."""
    build = MODELS.named(spec.architecture) or _BUILDERS[spec.architecture]
    model = build(spec, **MODELS.settings(spec.architecture, dict(spec.own)))
    if not isinstance(model, CuttableModel) or len(model.units) < 2:
        raise AsflError(
            f"model '{spec.architecture}': its builder must return a CuttableModel of at least 2 units, "
            f"not {type(model).__name__}" + (f" of {len(model.units)}" if isinstance(model, CuttableModel) else "")
        )
    model.precision = precision
    return model
