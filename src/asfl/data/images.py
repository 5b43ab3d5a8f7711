"""A set of labelled images, ready to be learnt."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_PIXELS_AT_ONCE = 1 << 22
"""Counting pixels needs 8 bytes for each; a block of this many keeps that below 40 MB."""


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images [S, C, H, W] and labels [S], training and test apart. Nobody changes the arrays; they are shared."""

    name: str
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    num_classes: int
    mean: tuple[float, ...]
    """Per channel, of pixel / scale over all training images."""
    std: tuple[float, ...]
    """Likewise; 1 for a channel that is the same everywhere, so that dividing by it is harmless."""
    scale: float = 255.0
    """The pixel value that means 1."""
    train_groups: NDArray[np.int64] | None = None
    """[S] to which group each training sample belongs, such as who wrote it; None: nobody said."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of one image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width

    @cached_property
    def digest(self) -> str:
        """Of all that is learnt from: the same data set again."""
        content = hashlib.sha256()
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            content.update(np.ascontiguousarray(array).data)
        whole = hashlib.sha256(f"{content.hexdigest()} {self.num_classes} {self.scale!r}".encode())
        if self.train_groups is not None:
            whole.update(np.ascontiguousarray(self.train_groups).data)
        return whole.hexdigest()

    def held_out(self, share: float, rng: np.random.Generator) -> "ImageData":
        """A share of the training images, drawn by `rng`, in place of the test images: nothing is trained with them."""
        order = rng.permutation(len(self.train_labels))
        count = round(share * len(order))
        kept, used = order[:count], np.sort(order[count:])
        return replace(
            self,
            train_images=self.train_images[used],
            train_labels=self.train_labels[used],
            train_groups=None if self.train_groups is None else self.train_groups[used],
            test_images=self.train_images[kept],
            test_labels=self.train_labels[kept],
        )


def with_statistics(
    name: str,
    train: tuple[NDArray[np.uint8], NDArray[np.int64]],
    test: tuple[NDArray[np.uint8], NDArray[np.int64]],
    num_classes: int,
    scale: float = 255.0,
) -> ImageData:
    """The data set of these (images, labels), with mean and spread of its training images."""
    mean, std = channel_statistics(train[0], scale)
    return ImageData(name, *train, *test, num_classes, mean, std, scale)


def channel_statistics(images: NDArray[np.uint8], scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of pixel / scale per channel of images [S, C, H, W].

    A pixel has only 256 values, so how often each occurs says it all: exact, and no copy of the images in floats.
    """
    count, channels, height, width = images.shape
    occurrences = np.zeros((channels, 256), dtype=np.int64)
    step = max(1, _PIXELS_AT_ONCE // (height * width))
    for start in range(0, count, step):
        block = images[start : start + step]
        for channel in range(channels):
            occurrences[channel] += np.bincount(block[:, channel].reshape(-1), minlength=256)
    share = occurrences / (count * height * width)
    value = np.arange(256) / scale
    mean = share @ value
    std = np.sqrt((share * (value - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
