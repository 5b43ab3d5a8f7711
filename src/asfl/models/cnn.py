"""A small CNN for smoke runs: 6 convolutions and 1 fully connected layer, for images from 4×4 up."""

from torch import nn

from asfl.config.names import ModelSpec
from asfl.data.shapes import INPUT_SHAPE, NUM_CLASSES
from asfl.models.cuttable import CuttableModel
from asfl.models.layers import GlobalAveragePool, Plain, conv_norm, scaled

_CHANNELS = (32, 32, 64, 64, 128, 128)


def build_cnn(spec: ModelSpec) -> CuttableModel:
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
