"""VGG for 32×32 images (Simonyan & Zisserman): one unit per convolution, then three fully connected units.

ReLU, pooling and norm go with the convolution before them, since the paper cuts only before a convolution or a
fully connected layer (section V). The original's head for 224×224 images, 4096 wide, becomes 512 wide, and there
is no dropout: it would make a split step depend on who draws the random numbers.
"""

from torch import nn

from asfl.config.errors import AsflError
from asfl.config.names import ModelSpec, Norm
from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
from asfl.models.cuttable import CuttableModel
from asfl.models.layers import Plain, conv_norm, scaled

_STAGE_CHANNELS = (64, 128, 256, 512, 512)
_STAGE_CONVS: dict[str, tuple[int, ...]] = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
"""Convolutions per stage; every stage ends in a 2×2 pool."""

_HIDDEN = 512


def build_vgg(spec: ModelSpec) -> CuttableModel:
    channels, height, width = INPUT_SHAPE[spec.dataset]
    shrink = 2 ** len(_STAGE_CHANNELS)
    if min(height, width) < shrink:
        raise AsflError(
            f"{spec.architecture} halves the image {len(_STAGE_CHANNELS)} times and needs at least "
            f"{shrink}×{shrink} pixels, but '{spec.dataset}' has {height}×{width}; use cnn or a resnet"
        )

    units: dict[str, nn.Module] = {}
    convs = _STAGE_CONVS[spec.architecture]
    for stage, (base, depth) in enumerate(zip(_STAGE_CHANNELS, convs, strict=True), start=1):
        for position in range(1, depth + 1):
            layers = [*conv_norm(channels, scaled(base, spec.width), spec.norm), nn.ReLU()]
            if position == depth:
                layers.append(nn.MaxPool2d(2))
                if stage == len(convs):
                    layers.append(nn.Flatten())
            units[f"conv{len(units) + 1}"] = Plain(*layers)
            channels = scaled(base, spec.width)

    features = channels * (height // shrink) * (width // shrink)
    hidden = scaled(_HIDDEN, spec.width)
    units["fc1"] = Plain(_hidden_layer(features, hidden, spec.norm), nn.ReLU())
    units["fc2"] = Plain(_hidden_layer(hidden, hidden, spec.norm), nn.ReLU())
    units["fc3"] = Plain(nn.Linear(hidden, NUM_CLASSES[spec.dataset]))
    return CuttableModel(units)


def _hidden_layer(inputs: int, outputs: int, norm: Norm) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    if norm == "none":
        # PyTorch's default shrinks the variance about sixfold per layer. Behind a norm that does no harm; without
        # one, and after 16 convolutions, the logits hardly depend on the image and SGD stays where it began.
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
    return linear
