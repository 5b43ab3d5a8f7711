"""Accuracy on the test images, in inference mode; and running statistics that fit a model."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.nn.modules.batchnorm import _BatchNorm

from asfl.data import ImageData
from asfl.models.cuttable import CuttableModel
from asfl.train.batches import Batches, Normaliser
from asfl.train.layout import Layout, ModelVectors, Replica

BATCH = 500
AT_LEAST = 20
"""Mini-batches of all clients together, as many of each: one of each is enough where there are many clients."""


@dataclass(frozen=True)
class Score:
    accuracy: float
    loss: float
    by_client: tuple[float | None, ...] = ()
    """What each says of images that only it has."""


class Evaluator:
    """The test images in memory, and a replica of the network to run over them."""

    def __init__(
        self, model: CuttableModel, layout: Layout, data: ImageData, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._replica = Replica(model, layout, device, dtype)
        self._replica.model.eval()
        self._layout = layout
        self._pixels = torch.from_numpy(data.test_images).to(device)
        self._labels = torch.from_numpy(data.test_labels).to(device)
        self._to_input = Normaliser(data, device, dtype)

    @property
    def num_samples(self) -> int:
        return len(self._labels)

    def score(self, vectors: ModelVectors, samples: NDArray[np.int64] | None = None) -> Score:
        """Of a whole model, on all test images or on these."""
        with torch.inference_mode():
            self._replica.bind(vectors, None, 0, self._layout.num_units)
            chosen = None if samples is None else torch.from_numpy(samples).to(self._labels.device)
            pixels = self._pixels if chosen is None else self._pixels[chosen]
            labels = self._labels if chosen is None else self._labels[chosen]
            right, loss = torch.zeros((), dtype=torch.long, device=labels.device), 0.0
            for images, truth in zip(torch.split(pixels, BATCH), torch.split(labels, BATCH), strict=True):
                (logits,) = self._replica.run((self._to_input(images),), 0, self._layout.num_units)
                right += (logits.argmax(1) == truth).sum()
                loss += float(F.cross_entropy(logits, truth, reduction="sum"))
        return Score(float(right) / len(labels), loss / len(labels))


class Calibrator:
    """Measures running statistics that fit a model anew, on a few of the clients' own mini-batches.

    Averaged statistics don't fit averaged weights once client sides have drifted apart, and would decide the score
    where the weights should. So the average model of every scheme is scored with statistics measured with its own
    weights: the mean over a few mini-batches of each client, the same ones for every scheme and in every round.

    They are not augmented, because the images that are scored aren't. The server takes them from its own copy of the
    data, also when the clients are real; each mini-batch counts by itself, so clients could measure and send their
    means instead.
    """

    def __init__(
        self, model: CuttableModel, layout: Layout, batches: Batches, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._replica, self._layout, self._batches = Replica(model, layout, device, dtype), layout, batches
        self._replica.model.eval()
        self._norms = [module for module in self._replica.model.modules() if isinstance(module, _BatchNorm)]
        for norm in self._norms:
            norm.train()

    def calibrated(self, vectors: ModelVectors) -> ModelVectors:
        """The same parameters, with the statistics of their own; the vectors themselves if there are none to keep."""
        if self._layout.num_statistics == 0:
            return vectors
        found = ModelVectors(vectors.parameters, vectors.statistics.clone())
        with torch.no_grad():
            self._replica.bind(found, None, 0, self._layout.num_units)
            for seen, images in enumerate(self._batches.for_calibration(AT_LEAST)):
                for norm in self._norms:
                    norm.momentum = 1 / (seen + 1)  # so the running mean is the mean over all mini-batches so far
                self._replica.run((images,), 0, self._layout.num_units)
        return found
