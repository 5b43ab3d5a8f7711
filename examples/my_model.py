"""A model: a small MLP-Mixer (Tolstikhin et al. 2021) that can be cut behind every block.

asfl --plugin examples/my_model.py run demo --set model.architecture=mixer
"""

from torch import Tensor, nn

import asfl
from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
from asfl.models.cuttable import Carry, CuttableModel, scaled

GRID, CHANNELS, BLOCKS = 4, 64, 4  # GRID² patches of an image, features of a patch at width 1, mixer blocks


class Embed(nn.Module):
    """Image -> [batch, patches, channels]. What crosses a cut is a tuple of tensors, here always one."""

    def __init__(self, shape: tuple[int, int, int], channels: int) -> None:
        super().__init__()
        patch = (shape[1] // GRID, shape[2] // GRID)
        self.conv = nn.Conv2d(shape[0], channels, kernel_size=patch, stride=patch)

    def forward(self, carry: Carry) -> Carry:
        return (self.conv(carry[0])[..., :GRID, :GRID].flatten(2).transpose(1, 2),)


class Mixer(nn.Module):
    """Mixes over patches, then over channels, each beside a skip; both skips end inside the unit."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.over_patches, self.over_channels = _two_layers(patches), _two_layers(channels)

    def forward(self, carry: Carry) -> Carry:
        (x,) = carry
        x = x + self.over_patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return (x + self.over_channels(self.norms[1](x)),)


class Head(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(channels), nn.Linear(channels, classes)

    def forward(self, carry: Carry) -> tuple[Tensor]:
        return (self.out(self.norm(carry[0]).mean(dim=1)),)


def _two_layers(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))


def build(spec: asfl.ModelSpec) -> CuttableModel:
    """`model.width` multiplies the channels; `model.norm` has no meaning here, a mixer has layer norm."""
    channels = scaled(CHANNELS, spec.width)
    blocks = {f"mixer{number}": Mixer(GRID**2, channels) for number in range(1, BLOCKS + 1)}
    head = Head(channels, NUM_CLASSES[spec.dataset])
    return CuttableModel({"embed": Embed(INPUT_SHAPE[spec.dataset], channels), **blocks, "head": head})


asfl.register_model("mixer", build)
