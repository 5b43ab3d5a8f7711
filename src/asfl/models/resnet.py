"""ResNet for small images (He et al.): a stem, one unit per convolution of its blocks, a fully connected unit.

The stem is a 3×3 convolution of stride 1 without max pool, as usual for CIFAR; a bottleneck strides in its
3×3 convolution. Inside a block the carry is (main, skip), because the server can't finish the block without the
block's input; so a cut there sends both (section II of the paper speaks of a plain chain and leaves this open). The
down-sampling convolution of the skip goes with the block's last unit, where its result is needed.
"""

import torch
from torch import Tensor, nn

from asfl.config.names import ModelSpec, Norm
from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
from asfl.models.cuttable import Carry, CuttableModel
from asfl.models.layers import GlobalAveragePool, Plain, Unit, conv_norm, scaled

_STAGE_CHANNELS = (64, 128, 256, 512)
_STAGE_BLOCKS: dict[str, tuple[int, ...]] = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
_EXPANSION: dict[str, int] = {"resnet18": 1, "resnet50": 4}
"""A block's output channels per inner channel; above 1 the block is a bottleneck."""


def build_resnet(spec: ModelSpec) -> CuttableModel:
    channels = scaled(_STAGE_CHANNELS[0], spec.width)
    stem = conv_norm(INPUT_SHAPE[spec.dataset][0], channels, spec.norm)
    units: dict[str, nn.Module] = {"stem": Plain(*stem, nn.ReLU())}

    expansion = _EXPANSION[spec.architecture]
    block_counts = _STAGE_BLOCKS[spec.architecture]
    for stage, (base, count) in enumerate(zip(_STAGE_CHANNELS, block_counts, strict=True), start=1):
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
