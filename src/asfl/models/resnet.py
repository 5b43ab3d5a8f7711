"""ResNet for small images (He et al.): a stem, one unit per convolution of the blocks, one fully connected unit.

The stem is a 3×3 convolution of stride 1 without max pool, as usual for CIFAR; a bottleneck strides in its 3×3
convolution. Inside a block the carry is (main, skip), because the server can't finish the block without the block's
input; so a cut there sends both (section II of the paper speaks of a plain chain and leaves this open). The
down-sampling convolution of the skip goes with the block's last unit, where its result is needed.
"""

import torch
from torch import nn

from asfl.models.cuttable import Carry, CuttableModel
from asfl.models.layers import GlobalAveragePool, Plain, conv_norm, scaled
from asfl.profile import INPUT_SHAPE, NUM_CLASSES, Architecture, ModelSpec, Norm

_STAGE_CHANNELS = (64, 128, 256, 512)
_STAGE_BLOCKS: dict[Architecture, tuple[int, ...]] = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
_EXPANSION: dict[Architecture, int] = {"resnet18": 1, "resnet50": 4}
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
        # Every block adds its branch to the sum. A norm would shrink the branches; here their first scale has to,
        # or the sum doubles its variance block by block and ResNet-50 diverges at once.
        with torch.no_grad():
            for unit in units.values():
                if isinstance(unit, BlockLast):
                    for parameter in unit.main.parameters():
                        parameter.mul_(sum(block_counts) ** -0.5)

    units["fc"] = Plain(nn.Linear(channels, NUM_CLASSES[spec.dataset]))
    return CuttableModel(units)


def _block(
    channels: int, inner: int, expansion: int, stride: int, norm: Norm, tail: nn.Module
) -> list[nn.Module]:
    """The units of one residual block, `channels` wide where it begins and inner · expansion where it ends."""
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
        shortcut = nn.Sequential(*conv_norm(channels, outer, norm, kernel=1, stride=stride))
    first, *middle, last = convs
    return [
        BlockFirst(*first, nn.ReLU()),
        *(BlockMiddle(*layers, nn.ReLU()) for layers in middle),
        BlockLast(nn.Sequential(*last), shortcut, tail),
    ]


class BlockFirst(nn.Sequential):
    """Opens a block: (x,) -> (main, x)."""

    def forward(self, carry: Carry) -> Carry:
        (x,) = carry
        return super().forward(x), x


class BlockMiddle(nn.Sequential):
    """Inside a block: (main, skip) -> (main, skip)."""

    def forward(self, carry: Carry) -> Carry:
        main, skip = carry
        return super().forward(main), skip


class BlockLast(nn.Module):
    """Closes a block: (main, skip) -> (x,), where x = tail(ReLU(main + shortcut of skip))."""

    def __init__(self, main: nn.Module, shortcut: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.main = main
        self.shortcut = shortcut
        self.relu = nn.ReLU()
        self.tail = tail

    def forward(self, carry: Carry) -> Carry:
        main, skip = carry
        return (self.tail(self.relu(self.main(main) + self.shortcut(skip))),)
