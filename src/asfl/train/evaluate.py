"""Accuracy on the test images, in inference mode."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from asfl.data import ImageData
from asfl.models.cuttable import CuttableModel
from asfl.train.batches import Normaliser
from asfl.train.layout import Layout, ModelVectors
from asfl.train.replica import Replica

BATCH = 500


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
