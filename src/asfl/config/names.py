"""The names a configuration may use for networks, data sets and channels: those that ship, and those people register.

What a name stands for is known further on: `models.build`, `data.arrays` and `radio.channel` look theirs up here.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from asfl.config.errors import AsflError, nearest, short
from asfl.config.plugins import Registry, with_own

Architecture = Literal["cnn", "mlp", "vgg11", "vgg16", "vgg19", "resnet18", "resnet50"]
"""The networks that ship; any other is somebody's own (`asfl.register_model`)."""
Norm = Literal["batch", "group", "none"]
Precision = Literal["float32", "bfloat16"]
Dataset = Literal["digits", "cifar10", "cifar100"]
"""The data sets that ship or can be fetched; any other is somebody's own (`asfl.register_arrays`)."""

CHANNELS: Registry[Any] = Registry(
    "channel", dict.fromkeys(("rayleigh", "trace", "3gpp")), own="scenario.channel.own", arguments=2
)
"""What `scenario.channel.kind` may be, with the factory of a registered one."""
MODELS: Registry[Any] = Registry("architecture", dict.fromkeys(get_args(Architecture)), own="model.own", arguments=1)
"""What `model.architecture` may be, with the builder of a registered one."""
DATASETS: Registry[Any] = Registry("data set", dict.fromkeys(get_args(Dataset)))
"""What `data.name` may be besides the path of an `.npz` file, with the images of a registered one."""

MAX_WIDTH = 100.0
"""Of a network: a hundred times the channels are ten thousand times the parameters."""

_NORM_TAG: dict[Norm, str] = {"batch": "", "group": "-gn", "none": "-nonorm"}


def is_own_file(name: str) -> bool:
    """Whether a data set's name is the path of an NPZ file."""
    return name.lower().endswith(".npz")


def is_own_folder(name: str) -> bool:
    """Whether a data set's name is a folder that Hugging Face's `datasets` saved."""
    return "\0" not in name and (Path(name).expanduser() / "dataset_dict.json").is_file()


_PRIVATE = re.compile(r"private_([1-4])x([1-9][0-9]{0,3})x([1-9][0-9]{0,3})_([1-9][0-9]{0,4})")


def private_shape(name: str) -> tuple[int, int, int, int] | None:
    """Channels, height, width and classes of images that clients keep to themselves: `private_3x32x32_10`."""
    match = _PRIVATE.fullmatch(name)
    if match is None or int(match[4]) < 2:
        return None
    channels, height, width, classes = map(int, match.groups())
    return channels, height, width, classes


def is_known(name: str) -> bool:
    """Whether `name` can be a data set; whether the file it may name exists and is right shows when it is read."""
    known = name in DATASETS or is_own_file(name) or is_own_folder(name)
    return known or private_shape(name) is not None


def unknown_data_set(name: str, inside: str = "") -> str:
    """What is wrong with a name that isn't known, where it was found, and what would be right."""
    hint = nearest(name, DATASETS)
    own = ", private_3x32x32_10 (channels, height, width, classes), or the path of an .npz file"
    own = own if hint.startswith("valid") else ""
    return f"unknown data set {short(name)}{inside}: {with_own(hint + own)}"


@dataclass(frozen=True)
class ModelSpec:
    """Which network: written as `vgg19-cifar100`, `vgg19-w0.25-gn-cifar10`, `cnn-digits`, `cnn-mine.npz`."""

    architecture: str
    """One of `Architecture`, or a name given to `register_model`."""
    dataset: str
    """One of `Dataset`, the path of an `.npz` file, a name given to `asfl.data.register_arrays`, or what images look
    like that nobody but their owners has (`private_shape`)."""
    width: float = 1.0
    norm: Norm = "batch"
    own: tuple[tuple[str, Any], ...] = ()
    """What `[model.own]` says, for a network of somebody's own."""

    @property
    def name(self) -> str:
        width = "" if self.width == 1 else f"-w{self.width:g}"
        return f"{self.architecture}{width}{_NORM_TAG[self.norm]}-{self.dataset}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The spec behind a profile name; the inverse of `name`. Without a data set it is CIFAR-100, the paper's."""
        name = name if is_own_file(name) else name.lower()  # paths tell small from capital letters
        # Names that are known may contain a "-" themselves, and the longest is meant.
        known = "|".join(map(re.escape, sorted(MODELS, key=len, reverse=True)))
        match = re.fullmatch(rf"({known}|[a-z0-9]+)(?:-w([0-9.]+))?(-gn|-nonorm)?(?:-([a-z0-9_]+|.+\.npz))?", name)
        if match is None:
            valid = (f"{model}-{data}" for model in MODELS for data in DATASETS)
            raise AsflError(f"unknown model {short(name)}: {nearest(name, valid)}")
        architecture, width, norm_tag, dataset = match.groups()
        dataset = dataset or "cifar100"
        if architecture not in MODELS:
            raise AsflError(MODELS.unknown(architecture, f" in '{name}'"))
        if not is_known(dataset):
            raise AsflError(unknown_data_set(dataset, f" in '{name}'"))
        try:
            multiplier = float(width or 1)
        except ValueError:
            multiplier = 0.0
        if not 0 < multiplier <= MAX_WIDTH:
            raise AsflError(f"width {short(width)} in {short(name)} is not a number above 0 and at most {MAX_WIDTH:g}")
        norm = {tag: norm for norm, tag in _NORM_TAG.items()}[norm_tag or ""]
        return cls(architecture, dataset, multiplier, norm)
