"""The networks that are trained, each one a chain of units that may be cut between any two, and their profiles.

A new model is one function here that builds a `CuttableModel`, one line in the table below, and its name in
`asfl.config.names.Architecture`; or one file anywhere and `asfl.register_model`.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from asfl.config.errors import AsflError
from asfl.config.names import MODELS, ModelSpec, Norm, Precision
from asfl.config.units import BITS_PER_VALUE
from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
from asfl.models.cuttable import Carry, CuttableModel, GlobalAveragePool, Plain, Unit, conv_norm, scaled
from asfl.models.profile import ModelProfile

# ---------------------------------------------------------------------- small networks
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


# ---------------------------------------------------------------------- VGG
_VGG_CHANNELS = (64, 128, 256, 512, 512)
_VGG_CONVS: dict[str, tuple[int, ...]] = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
"""Convolutions per stage; every stage ends in a 2×2 pool."""

_VGG_HIDDEN = 512


def build_vgg(spec: ModelSpec) -> CuttableModel:
    """VGG for 32×32 images (Simonyan & Zisserman): one unit per convolution, then three fully connected units.

    ReLU, pooling and norm go with the convolution before them, since the paper cuts only before a convolution or a
    fully connected layer (section V). The original's head for 224×224 images, 4096 wide, becomes 512 wide, and there
    is no dropout: it would make a split step depend on who draws the random numbers.
    """
    channels, height, width = INPUT_SHAPE[spec.dataset]
    shrink = 2 ** len(_VGG_CHANNELS)
    if min(height, width) < shrink:
        raise AsflError(
            f"{spec.architecture} halves the image {len(_VGG_CHANNELS)} times and needs at least "
            f"{shrink}×{shrink} pixels, but '{spec.dataset}' has {height}×{width}; use cnn or a resnet"
        )

    units: dict[str, nn.Module] = {}
    convs = _VGG_CONVS[spec.architecture]
    for stage, (base, depth) in enumerate(zip(_VGG_CHANNELS, convs, strict=True), start=1):
        for position in range(1, depth + 1):
            layers = [*conv_norm(channels, scaled(base, spec.width), spec.norm), nn.ReLU()]
            if position == depth:
                layers.append(nn.MaxPool2d(2))
                if stage == len(convs):
                    layers.append(nn.Flatten())
            units[f"conv{len(units) + 1}"] = Plain(*layers)
            channels = scaled(base, spec.width)

    features = channels * (height // shrink) * (width // shrink)
    hidden = scaled(_VGG_HIDDEN, spec.width)
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


# ---------------------------------------------------------------------- ResNet
_RESNET_CHANNELS = (64, 128, 256, 512)
_RESNET_BLOCKS: dict[str, tuple[int, ...]] = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
_EXPANSION: dict[str, int] = {"resnet18": 1, "resnet50": 4}
"""A block's output channels per inner channel; above 1 the block is a bottleneck."""


def build_resnet(spec: ModelSpec) -> CuttableModel:
    """ResNet for small images (He et al.): a stem, one unit per convolution of its blocks, a fully connected unit.

    The stem is a 3×3 convolution of stride 1 without max pool, as usual for CIFAR; a bottleneck strides in its
    3×3 convolution. Inside a block the carry is (main, skip), because the server can't finish the block without the
    block's input; so a cut there sends both (section II of the paper speaks of a plain chain and leaves this open). The
    down-sampling convolution of the skip goes with the block's last unit, where its result is needed.
    """
    channels = scaled(_RESNET_CHANNELS[0], spec.width)
    stem = conv_norm(INPUT_SHAPE[spec.dataset][0], channels, spec.norm)
    units: dict[str, nn.Module] = {"stem": Plain(*stem, nn.ReLU())}

    expansion = _EXPANSION[spec.architecture]
    block_counts = _RESNET_BLOCKS[spec.architecture]
    for stage, (base, count) in enumerate(zip(_RESNET_CHANNELS, block_counts, strict=True), start=1):
        inner = scaled(base, spec.width)
        for block in range(1, count + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            is_end = stage == len(block_counts) and block == count
            tail = GlobalAveragePool() if is_end else nn.Identity()
            block_units = _block(channels, inner, expansion, stride, spec.norm, tail)
            for number, unit in enumerate(block_units, start=1):
                units[f"stage{stage}.block{block}.conv{number}"] = unit
            channels = inner * expansion

    if spec.norm == "none":
        # Every block adds its branch to the sum, and nothing but the branches' initial scale keeps the sum small:
        # left alone its variance doubles block by block, and ResNet-50 diverges at once.
        with torch.no_grad():
            for unit in units.values():
                if isinstance(unit, BlockLast):
                    for parameter in unit.main.parameters():
                        parameter.mul_(sum(block_counts) ** -0.5)

    units["fc"] = Plain(nn.Linear(channels, NUM_CLASSES[spec.dataset]))
    return CuttableModel(units)


def _block(channels: int, inner: int, expansion: int, stride: int, norm: Norm, tail: nn.Module) -> list[nn.Module]:
    """The units of one residual block: `channels` come in, inner · expansion go out."""
    outer = inner * expansion
    if expansion == 1:
        convs = [conv_norm(channels, inner, norm, stride=stride), conv_norm(inner, outer, norm)]
    else:
        convs = [
            conv_norm(channels, inner, norm, kernel=1),
            conv_norm(inner, inner, norm, stride=stride),
            conv_norm(inner, outer, norm, kernel=1),
        ]
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or channels != outer:
        shortcut = nn.Sequential(Subsample(stride), *conv_norm(channels, outer, norm, kernel=1))
    first, *middle, last = convs
    return [
        BlockFirst(*first, nn.ReLU()),
        *(BlockMiddle(*layers, nn.ReLU()) for layers in middle),
        BlockLast(*last, shortcut=shortcut, tail=tail),
    ]


class BlockFirst(Unit):
    """Opens a block: (x,) -> (main, x)."""

    def forward(self, carry: Carry) -> Carry:
        (x,) = carry
        return self.main(x), x


class BlockMiddle(Unit):
    """Inside a block: (main, skip) -> (main, skip)."""

    def forward(self, carry: Carry) -> Carry:
        main, skip = carry
        return self.main(main), skip


class BlockLast(Unit):
    """Closes a block: (main, skip) -> (x,), where x = tail(ReLU(main + shortcut of skip))."""

    def __init__(self, *layers: nn.Module, shortcut: nn.Module, tail: nn.Module) -> None:
        super().__init__(*layers)
        self.shortcut = shortcut
        self.relu = nn.ReLU()
        self.tail = tail

    def forward(self, carry: Carry) -> Carry:
        main, skip = carry
        return (self.tail(self.relu(self.main(main) + self.shortcut(skip))),)


class Subsample(nn.Module):
    """Every `stride`-th pixel: before a 1×1 convolution the same as a stride in it, in value and in FLOPs.

    Kept apart because oneDNN's strided 1×1 convolution writes out of bounds in the backward pass when the input is
    channels-last and has few channels (uxlfoundation/oneDNN#6035): a crash, or wrong gradients.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, :: self.stride, :: self.stride]


# ---------------------------------------------------------------------- all networks, and what they measure
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


_BATCH = 2
"""Batch norm can't train on a single value per channel; every count is proportional to the batch."""


def measure_profile(spec: ModelSpec) -> ModelProfile:
    """ψ, q, v^FP and v^BP of every unit (section II of the paper), for one sample; all are whole numbers.

    - `param_bits`: the unit's parameters; `statistic_bits`: its running statistics, which are none.
    - `activation_bits`: the whole carry behind the unit, a skip tensor included.
    - `forward_flops`: 2·MAC of its convolutions and matrix products, all that PyTorch's counter counts; norm,
      activation, pooling, bias and the addition of the skip are left out.
    - `backward_flops`: the same for the gradients of the parameters and of the unit's input. The first unit's
      input is the image, which needs no gradient: its backward pass costs 1×, all others 2× the forward pass.
    - groups: as `asfl.train.quantise` makes them.
    """
    from torch.utils.flop_counter import FlopCounterMode  # it imports SymPy, which devices do without

    with torch.device("meta"):
        model = build_model(spec)
        carry: Carry = (torch.empty(_BATCH, *INPUT_SHAPE[spec.dataset]),)

    rows: list[tuple[int, ...]] = []
    for index, unit in enumerate(model.units):
        # Cut off from the unit before it: the gradient flows into this unit's input, and no further.
        carry = tuple(tensor.detach().requires_grad_(index > 0) for tensor in carry)
        with FlopCounterMode(display=False) as forward:
            carry = unit(carry)
        with FlopCounterMode(display=False) as backward:
            torch.autograd.backward(carry, [torch.ones_like(tensor) for tensor in carry])
        rows.append(
            (
                BITS_PER_VALUE * sum(parameter.numel() for parameter in unit.parameters()),
                BITS_PER_VALUE * sum(tensor[0].numel() for tensor in carry),
                forward.get_total_flops() // _BATCH,
                backward.get_total_flops() // _BATCH,
                sum(len(parameter) if parameter.dim() > 1 else 1 for parameter in unit.parameters()),
                sum(tensor.shape[1] for tensor in carry if tensor[0, 0].numel() > 1),
                sum(tensor[0, 0].numel() == 1 for tensor in carry),
                BITS_PER_VALUE * sum(own.numel() for own in unit.buffers() if own.is_floating_point()),
            )
        )
    shapes, wanted = [tuple(tensor.shape[1:]) for tensor in carry], (NUM_CLASSES[spec.dataset],)
    if shapes != [wanted]:
        raise AsflError(f"model {spec.name}: its last unit must give one tensor {wanted} a sample, but gives {shapes}")
    param_bits, activation_bits, forward_flops, backward_flops, *beside = np.array(rows, dtype=float).T
    return ModelProfile(
        param_bits, activation_bits, forward_flops, backward_flops, spec.name, model.unit_names, *beside
    )  # fmt: skip
