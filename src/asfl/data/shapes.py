"""What one sample of a data set looks like: known for those that ship, looked up for anybody's own.

Of images that clients keep to themselves nothing else is known: it is in the name.
"""

from collections.abc import Mapping

from asfl.config.names import private_shape
from asfl.data.arrays import own_data


class _InputShapes(dict[str, tuple[int, int, int]]):
    def __missing__(self, dataset: str) -> tuple[int, int, int]:
        private = private_shape(dataset)
        return own_data(dataset).input_shape if private is None else private[:3]


class _ClassCounts(dict[str, int]):
    def __missing__(self, dataset: str) -> int:
        private = private_shape(dataset)
        return own_data(dataset).num_classes if private is None else private[3]


INPUT_SHAPE: Mapping[str, tuple[int, int, int]] = _InputShapes(
    {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
)
"""Channels, height, width of one sample, by data set."""

NUM_CLASSES: Mapping[str, int] = _ClassCounts({"digits": 10, "cifar10": 10, "cifar100": 100})
