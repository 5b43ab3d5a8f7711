"""A model's layers as numbers: bits and FLOPs of every unit, which is all the radio side knows of a network.

A unit is what lies between two allowed cuts. `cut` is how many units the client holds, 1 … M−1. The profiles of
the named models ship with the package, so nothing here needs PyTorch; `asfl.models.measure` made them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from asfl.errors import AsflError, nearest
from asfl.registry import Registry

if TYPE_CHECKING:
    from asfl.models import CuttableModel

Architecture = Literal["cnn", "vgg11", "vgg16", "vgg19", "resnet18", "resnet50"]
"""The networks that ship; any other is somebody's own (`register_model`)."""
Norm = Literal["batch", "group", "none"]
Dataset = Literal["digits", "cifar10", "cifar100"]
"""The data sets that are known without looking at them; any other is somebody's own (`asfl.data.arrays`)."""


class _InputShapes(dict[str, tuple[int, int, int]]):
    def __missing__(self, dataset: str) -> tuple[int, int, int]:
        from asfl.data.arrays import own_data

        return own_data(dataset).input_shape


class _ClassCounts(dict[str, int]):
    def __missing__(self, dataset: str) -> int:
        from asfl.data.arrays import own_data

        return own_data(dataset).num_classes


INPUT_SHAPE: Mapping[str, tuple[int, int, int]] = _InputShapes(
    {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
)
"""Channels, height, width of one sample, by data set; own data is asked for its own."""

NUM_CLASSES: Mapping[str, int] = _ClassCounts({"digits": 10, "cifar10": 10, "cifar100": 100})

_NORM_TAG: dict[Norm, str] = {"batch": "", "group": "-gn", "none": "-nonorm"}
_COLUMNS = ("param_bits", "activation_bits", "forward_flops", "backward_flops")


@dataclass(frozen=True)
class ModelSpec:
    """Which network: written as `vgg19-cifar100`, `vgg19-w0.25-gn-cifar10`, `cnn-digits`, `cnn-mine.npz`."""

    architecture: str
    """One of `Architecture`, or a name given to `register_model`."""
    dataset: str
    """One of `Dataset`, the path of an `.npz` file, or a name given to `asfl.data.register_arrays`."""
    width: float = 1.0
    norm: Norm = "batch"

    @property
    def name(self) -> str:
        width = "" if self.width == 1 else f"-w{self.width:g}"
        return f"{self.architecture}{width}{_NORM_TAG[self.norm]}-{self.dataset}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The spec behind a profile name; the inverse of `name`. Without a data set it is CIFAR-100, the paper's."""
        from asfl.data.arrays import is_known, is_own_file, unknown_data_set

        name = name if is_own_file(name) else name.lower()  # paths tell small from capital letters
        # Names that are known may contain a "-" themselves, and the longest is meant.
        known = "|".join(map(re.escape, sorted(MODELS, key=len, reverse=True)))
        match = re.fullmatch(rf"({known}|[a-z0-9]+)(?:-w([0-9.]+))?(-gn|-nonorm)?(?:-([a-z0-9_]+|.+\.npz))?", name)
        if match is None:
            raise AsflError(f"unknown model '{name}': {nearest(name, shipped_profiles())}")
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
        if not multiplier > 0:
            raise AsflError(f"width '{width}' in '{name}' is not a number above 0")
        norm = {tag: norm for norm, tag in _NORM_TAG.items()}[norm_tag or ""]
        return cls(architecture, dataset, multiplier, norm)


Builder = Callable[[ModelSpec], "CuttableModel"]
MODELS: Registry[Builder | None] = Registry("architecture", dict.fromkeys(get_args(Architecture)))
"""What `model.architecture` may be, each with its builder; None: it ships, and `asfl.models` has the builder."""


def register_model(name: str, builder: Builder) -> None:
    """Make `model.architecture = name` mean the network that `builder(spec)` returns.

    Its profile is measured when it is first needed, which needs PyTorch.
    """
    if not callable(builder):
        raise AsflError(f"register_model('{name}'): {builder!r} is no function of a ModelSpec")
    MODELS.register(name, builder)


@dataclass(frozen=True, eq=False)
class ModelProfile:
    """Bits and FLOPs of each unit, for one sample. All arrays have shape [M]; FLOP = 2·MAC.

    `param_bits` is ψ, `activation_bits` is q (what crosses the link if the cut is behind this unit, skip tensors
    included), `forward_flops` and `backward_flops` are v^FP and v^BP.
    """

    param_bits: NDArray[np.float64]
    activation_bits: NDArray[np.float64]
    forward_flops: NDArray[np.float64]
    backward_flops: NDArray[np.float64]
    name: str = "custom"
    unit_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = set()
        for column in _COLUMNS:
            values = np.array(getattr(self, column), dtype=float)  # a copy: nobody changes a profile afterwards
            if values.ndim != 1 or len(values) < 2:
                raise AsflError(f"profile.{column} must list at least 2 layers; one layer can't be cut")
            if not np.isfinite(values).all() or (values < 0).any():
                where = int(np.flatnonzero(~(np.isfinite(values) & (values >= 0)))[0])
                raise AsflError(f"profile.{column}[{where}] = {values[where]} must be a finite number ≥ 0")
            values.flags.writeable = False
            object.__setattr__(self, column, values)
            lengths.add(len(values))
        if len(lengths) > 1:
            counts = ", ".join(f"{column} {len(getattr(self, column))}" for column in _COLUMNS)
            raise AsflError(f"profile: all columns need the same length M, but they have {counts}")
        if not self.unit_names:
            object.__setattr__(self, "unit_names", tuple(f"layer{m}" for m in range(1, self.num_layers + 1)))

    @property
    def num_layers(self) -> int:
        """M."""
        return len(self.param_bits)

    @property
    def cuts(self) -> NDArray[np.int64]:
        """Every allowed cut, 1 … M−1."""
        return np.arange(1, self.num_layers)

    # Prefix sums over the client side: index them with a cut c (0 … M) to get the sum over layers ≤ c.
    @cached_property
    def client_param_bits(self) -> NDArray[np.float64]:
        return _prefix_sums(self.param_bits)

    @cached_property
    def client_forward_flops(self) -> NDArray[np.float64]:
        """F_c."""
        return _prefix_sums(self.forward_flops)

    @cached_property
    def client_backward_flops(self) -> NDArray[np.float64]:
        """B_c."""
        return _prefix_sums(self.backward_flops)

    def to_json(self) -> dict[str, Any]:
        columns = {column: [int(value) for value in getattr(self, column)] for column in _COLUMNS}
        return {"name": self.name, "unit_names": list(self.unit_names), **columns}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        columns = {column: np.asarray(data[column], dtype=float) for column in _COLUMNS}
        return cls(**columns, name=data.get("name", "custom"), unit_names=tuple(data.get("unit_names", ())))


def shipped_profiles() -> Sequence[str]:
    """Names of the profiles that are usable without PyTorch."""
    folder = resources.files("asfl") / "profiles"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))


def load_profile(name: str | ModelSpec) -> ModelProfile:
    """The profile of a named model: shipped with the package, or measured now (needs `asfl[train]`)."""
    spec = name if isinstance(name, ModelSpec) else ModelSpec.parse(name)
    return _load(spec, INPUT_SHAPE[spec.dataset], NUM_CLASSES[spec.dataset], MODELS.named(spec.architecture))


@lru_cache(maxsize=32)  # a profile never changes, and every round file, world and job asks for one
def _load(
    spec: ModelSpec, input_shape: tuple[int, int, int], num_classes: int, builder: Builder | None
) -> ModelProfile:
    """Keyed also by what the images look like and by who builds: own data and models may change behind their names."""
    if spec.dataset in get_args(Dataset) and builder is None:
        file = resources.files("asfl") / "profiles" / f"{spec.name}.json"
        if file.is_file():
            return ModelProfile.from_json(json.loads(file.read_text("utf-8")))
    from asfl.models.measure import measure_profile  # PyTorch is needed only here

    return measure_profile(spec)


def _prefix_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(values)])
