"""What one sample of a data set looks like: known for those that ship, looked up for anybody's own."""

from collections.abc import Mapping

from asfl.data.arrays import own_data


class _InputShapes(dict[str, tuple[int, int, int]]):
    def __missing__(self, dataset: str) -> tuple[int, int, int]:
        return own_data(dataset).input_shape


class _ClassCounts(dict[str, int]):
    def __missing__(self, dataset: str) -> int:
        return own_data(dataset).num_classes


INPUT_SHAPE: Mapping[str, tuple[int, int, int]] = _InputShapes(
    {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
)
"""Channels, height, width of one sample, by data set."""

NUM_CLASSES: Mapping[str, int] = _ClassCounts({"digits": 10, "cifar10": 10, "cifar100": 100})
