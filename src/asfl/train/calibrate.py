"""Running statistics that fit a model: measured anew on a few of the clients' own mini-batches.

Averaged statistics don't fit averaged weights once client sides have drifted apart, and would decide the score where
the weights should. So the average model of every scheme is scored with statistics measured with its own weights: the
mean over a few mini-batches of each client, the same ones for every scheme and in every round.

They are not augmented, because the images that are scored aren't. The server takes them from its own copy of the data,
also when the clients are real; each mini-batch counts by itself, so clients could measure and send their means instead.
"""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from asfl.models.cuttable import CuttableModel
from asfl.train.batches import Batches
from asfl.train.layout import Layout, ModelVectors
from asfl.train.replica import Replica

AT_LEAST = 20
"""Mini-batches of all clients together, as many of each: one of each is enough where there are many clients."""


class Calibrator:
    """Measures running statistics with a replica of the network."""

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
