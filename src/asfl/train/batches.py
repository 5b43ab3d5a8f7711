"""Mini-batches: which samples each client takes in which round, and how they become network input.

Everything is drawn from streams keyed by seed and step, never from what happened before: all schemes see the same
mini-batches, and a resumed run sees the ones it would have seen. A client goes through its samples in a new order each
epoch; the clock of epochs is the round, also for a client that sits out.

Clients that bring images of their own don't know what others have: then every one draws by itself, and may have more or
fewer images than others.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config import Config
from asfl.config.randomness import random_stream
from asfl.data import ImageData


class Batches:
    """The training images of all clients, as bytes in memory; a mini-batch is normalised when it is asked for."""

    def __init__(
        self,
        data: ImageData,
        parts: Sequence[NDArray[np.int64]] | NDArray[np.int64],
        *,
        batch_size: int,
        local_steps: int = 1,
        seed: int,
        augment: bool,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        alone: bool = False,
    ) -> None:
        """`parts` [N][samples] says who holds which training images; as many each, unless each draws `alone`.

        Of clients that are elsewhere it may have none.
        """
        self._parts, self._alone = [np.asarray(part) for part in parts], alone
        sizes = [len(part) for part in self._parts if len(part)]
        self.batch_size = min([batch_size, *sizes])
        self.samples = np.array([len(part) for part in self._parts], float) if alone and sizes else np.ones(len(parts))
        """[N] what each client counts by in averages; 1 where all have as many."""
        self.local_steps = local_steps
        self.seed = seed
        """Of all that is drawn in training."""
        self._dtype, self._device = dtype, device
        self.image_shape = data.input_shape
        self._size = self.image_shape[1:]
        self._margin = max(self._size[0] // 8, 1) if augment else 0
        self._pixels = torch.from_numpy(_channels_last(data.train_images, self._margin)).to(device)
        self._windows = _windows(self._pixels, *self._size)
        self._labels = torch.from_numpy(data.train_labels).to(device)
        self._to_input = Normaliser(data, device, dtype)
        self._order: tuple[object, NDArray[np.int64]] = (None, np.zeros(0, dtype=np.int64))
        self._crops: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, dtype=np.int64))

    @classmethod
    def of(
        cls,
        data: ImageData,
        parts: Sequence[NDArray[np.int64]] | NDArray[np.int64],
        config: Config,
        device: torch.device,
        local_steps: int | None = None,
    ) -> "Batches":
        """As a configuration has them."""
        return cls(
            data,
            parts,
            batch_size=config.training.batch_size,
            local_steps=local_steps or config.training.local_steps,
            seed=config.scenario.seed,
            augment=config.data.augment and config.data.name != "digits" and min(data.input_shape[1:]) > 1,
            device=device,
            alone=config.data.uneven,
        )

    def batch(self, round_index: int, client: int, step: int = 0, size: int | None = None) -> tuple[Tensor, Tensor]:
        """Images [b, C, H, W] (channels-last in memory) and labels [b] of a client's step in a round.

        `size`: another number of samples than the configured one. As that may change from round to round, there are no
        epochs then: samples are drawn anew, without repetition as long as there are enough.
        """
        now = round_index * self.local_steps + step
        if size is None or size == self.batch_size:
            chosen, crops = self._samples(now, client), self._crops_at(now, client) if self._margin else None
        else:
            random, own = random_stream(self.seed, f"batches: client {client}", now), self._parts[client]
            chosen = own[random.choice(len(own), size, replace=size > len(own))]
            crops = self._draw_crops(random, (size,)) if self._margin else None
        samples = torch.from_numpy(chosen).to(self._device)
        images = self._pixels[samples] if crops is None else self._crop(samples, crops)
        return self._to_input(images.permute(0, 3, 1, 2)), self._labels[samples]

    def in_epoch(self, client: int) -> int:
        """Mini-batches of a client before one of its samples is drawn again."""
        return len(self._parts[client]) // self.batch_size

    def for_calibration(self, at_least: int) -> Iterator[Tensor]:
        """Images of the same mini-batches whenever it is asked, not augmented.

        As many of each client, so that there are `at_least` so many; fewer if the clients don't have them.
        """
        wanted = math.ceil(at_least / len(self._parts))
        for client, part in enumerate(self._parts):
            order = self._permuted("calibration", 0, client)
            count = min(wanted, len(part) // self.batch_size)
            for samples in order[: count * self.batch_size].reshape(-1, self.batch_size):
                chosen = torch.from_numpy(samples).to(self._device)
                yield self._to_input(self._windows[chosen, self._margin, self._margin].permute(0, 3, 1, 2))

    def for_gradients(self, round_index: int, client: int) -> list[tuple[Tensor, Tensor]]:
        """Two parts, of half a mini-batch each, drawn apart and not augmented; from a stream of their own.

        Batch norm needs two samples, so a part has as many at least.
        """
        random, own = random_stream(self.seed, f"gradients: client {client}", round_index), self._parts[client]
        each = max(self.batch_size // 2, 2)
        chosen = own[random.choice(len(own), 2 * each, replace=2 * each > len(own))]
        samples = torch.from_numpy(chosen).to(self._device)
        images = self._to_input(self._windows[samples, self._margin, self._margin].permute(0, 3, 1, 2))
        return list(zip(torch.split(images, each), torch.split(self._labels[samples], each), strict=True))

    def _samples(self, now: int, client: int) -> NDArray[np.int64]:
        epoch, place = divmod(now, len(self._parts[client]) // self.batch_size)
        order = self._permuted("batches", epoch, client)
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def _permuted(self, purpose: str, index: int, client: int) -> NDArray[np.int64]:
        """A client's samples in a random order; all clients' are drawn at once unless each draws alone."""
        if self._alone:
            own = random_stream(self.seed, f"{purpose} of client {client}", index)
            return own.permutation(self._parts[client])
        if self._order[0] != (purpose, index):
            drawn = random_stream(self.seed, purpose, index).permuted(np.stack(self._parts), axis=1)
            self._order = (purpose, index), drawn
        return np.asarray(self._order[1][client])

    def _crops_at(self, now: int, client: int) -> NDArray[np.int64]:
        """[3, b] of a client; all clients' are drawn at once unless each draws alone."""
        if self._alone:
            return self._draw_crops(random_stream(self.seed, f"augment of client {client}", now), (self.batch_size,))
        if self._crops[0] != now:
            random = random_stream(self.seed, "augment", now)
            self._crops = now, self._draw_crops(random, (len(self._parts), self.batch_size))
        return np.asarray(self._crops[1][:, client])

    def _draw_crops(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Top, left, and whether it is mirrored."""
        shifts = random.integers(0, 2 * self._margin + 1, (2, *shape))
        return np.concatenate([shifts, random.integers(0, 2, (1, *shape))])

    def _crop(self, samples: Tensor, crops: NDArray[np.int64]) -> Tensor:
        """Each image shifted by up to an eighth of its size, half of them mirrored."""
        top, left, mirrored = torch.from_numpy(crops).to(self._device)
        images = self._windows[samples, top, left]
        mirrored = mirrored.nonzero().squeeze(1)
        images[mirrored] = images[mirrored].flip(2)
        return images


class Normaliser:
    """(pixel / scale − mean) / std per channel, as one multiplication and one addition."""

    def __init__(self, data: ImageData, device: torch.device, dtype: torch.dtype) -> None:
        mean, std = np.array(data.mean), np.array(data.std)
        shape = (1, -1, 1, 1)
        self._gain = torch.tensor(1 / (data.scale * std), device=device, dtype=dtype).view(shape)
        self._offset = torch.tensor(-mean / std, device=device, dtype=dtype).view(shape)

    def __call__(self, pixels: Tensor) -> Tensor:
        images = pixels.to(self._gain.dtype, memory_format=torch.channels_last)
        return images.mul_(self._gain).add_(self._offset)


def _windows(pixels: Tensor, height: int, width: int) -> Tensor:
    """[S, tops, lefts, height, width, C]: every crop of every image, as a view."""
    samples, tall, wide, channels = pixels.shape
    per_sample, per_row, per_column, per_channel = pixels.stride()
    return pixels.as_strided(
        (samples, tall - height + 1, wide - width + 1, height, width, channels),
        (per_sample, per_row, per_column, per_row, per_column, per_channel),
    )


def _channels_last(images: NDArray[np.uint8], margin: int) -> NDArray[np.uint8]:
    """[S, C, H, W] -> [S, H + 2·margin, W + 2·margin, C], black around."""
    images = images.transpose(0, 2, 3, 1)
    if margin:
        return np.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    return np.ascontiguousarray(images)
