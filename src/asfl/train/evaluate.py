"""What is measured of a trained network: its accuracy, running statistics that fit it, and its gradient."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.data import ImageData
from asfl.models.cuttable import CuttableModel
from asfl.train.batches import Batches, Normaliser
from asfl.train.state import Layout, ModelVectors, Replica, TrainingState

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

    def score(self, vectors: ModelVectors, samples: NDArray[np.int64] | None = None) -> Score:
        """Of a whole model, on all test images or on these."""
        with torch.inference_mode():
            self._replica.bind(vectors, None, 0, self._layout.num_units)
            chosen = None if samples is None else torch.from_numpy(samples).to(self._labels.device)
            pixels = self._pixels if chosen is None else self._pixels[chosen]
            labels = self._labels if chosen is None else self._labels[chosen]
            right, loss = torch.zeros((), dtype=torch.long, device=labels.device), 0.0
            for images, truth in zip(torch.split(pixels, BATCH), torch.split(labels, BATCH), strict=True):
                (logits,) = self._replica.model.run((self._to_input(images),), 0, self._layout.num_units)
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

    def calibrated(self, model: ModelVectors) -> ModelVectors:
        """The same parameters, with the statistics of their own; the vectors themselves if there are none to keep."""
        if self._layout.num_statistics == 0:
            return model
        found = ModelVectors(model.parameters, model.statistics.clone())
        with torch.no_grad():
            self._replica.bind(found, None, 0, self._layout.num_units)
            for seen, images in enumerate(self._batches.for_calibration(AT_LEAST)):
                for norm in self._norms:
                    norm.momentum = 1 / (seen + 1)  # so the running mean is the mean over all mini-batches so far
                self._replica.model.run((images,), 0, self._layout.num_units)
        return found


@runtime_checkable
class ScoringFleet(Protocol):
    """A fleet whose clients alone have images: nothing can be measured without them."""

    def calibrated(self, model: ModelVectors) -> ModelVectors:
        """The same parameters, with running statistics that the clients have measured with them."""

    def score(self, model_of: Callable[[int], ModelVectors]) -> Score | None:
        """Of a whole model for each client, on the images they hold out; None if no client answers."""


class Scoring:
    """Scores the average model with statistics measured anew and with the running ones, and the clients' own models.

    The server has test images, and its copy of the clients' training images to measure statistics with. Where only
    devices have images, they do what it can't.
    """

    def __init__(
        self, config: Config, model: CuttableModel, data: ImageData, batches: Batches, fleet: object,
        device: torch.device,
    ) -> None:  # fmt: skip
        """`batches` are the clients'."""
        layout, self._seed = Layout(model), config.scenario.seed
        self._evaluator = None
        if not config.data.private:
            self.calibrated = Calibrator(model, layout, batches, device, torch.float32).calibrated
        elif isinstance(fleet, ScoringFleet):
            self.calibrated, self._fleet = fleet.calibrated, fleet
        else:
            raise AsflError(f"data.name = {config.data.name}: only devices have such images; asfl serve lets them in")
        if len(data.test_labels) or not config.data.private:
            self._evaluator = Evaluator(model, layout, data, device, torch.float32)
            order = random_stream(self._seed, "test images").permutation(len(data.test_labels))
            self._samples = np.sort(order[: config.output.test_samples or len(order)])

    def scores(self, state: TrainingState, *, whole: bool) -> tuple[Score, Score, float] | None:
        """Calibrated, as it is, and the mean accuracy of [own client side; server side].

        On all images, or on the configured number of them; None if no device answers.
        """
        average = state.average_model()
        calibrated = self.calibrated(average)
        if self._evaluator is None:
            score = self._fleet.score(lambda client: calibrated)
            raw = score if calibrated is average else self._fleet.score(lambda client: average)
            own = raw if state.cut == 0 else self._fleet.score(state.client_model)
            return None if score is None or raw is None or own is None else (score, raw, own.accuracy)
        samples = None if whole else self._samples
        score = self._evaluator.score(calibrated, samples)
        raw = score if calibrated is average else self._evaluator.score(average, samples)
        if state.cut == 0:  # all clients have the average model
            return score, raw, raw.accuracy
        # Every client on a share of the images of its own: together one pass over the test set, and unbiased.
        shares = np.array_split(random_stream(self._seed, "test shares").permutation(self._samples), state.num_clients)
        accuracies = [
            self._evaluator.score(state.client_model(client), share).accuracy
            for client, share in enumerate(shares)
            if share.size
        ]
        return score, raw, float(np.mean(accuracies))


# ---------------------------------------------------------------------- gradients
STEP = 1e-3
"""Of the model's length: how far away the gradient is taken again."""


class Gradients:
    """What Theorem 1 speaks of, measured where the average model is: its gradient, and the constants that are assumed.

    The server takes two parts of a mini-batch of each client from its own copy of the data, as for an evaluation:
    nothing crosses, and training notices nothing. The parts are drawn apart, so products of their gradients g and g'
    are unbiased: E⟨ḡ, ḡ'⟩ = ‖∇F(w̄)‖² and E‖g − g'‖² = 2σ² of a part. L is taken along each client's own gradient, a
    step of a thousandth of the model's length away; it is a largest difference that was seen, so no more than a lower
    estimate.
    """

    def __init__(self, model: CuttableModel, layout: Layout, batches: Batches) -> None:
        self._model, self._layout, self._batches = model, layout, batches

    def measure(self, state: TrainingState, index: int) -> dict[str, float]:
        """After a round; what isn't a finite number is left out."""
        average, weights = state.average_model().clone(), state.weights
        p = average.parameters
        replica = Replica(self._model, self._layout, p.device, p.dtype)
        means, losses = [torch.zeros_like(p), torch.zeros_like(p)], 0.0
        noise2 = norm2 = smoothness = 0.0
        away = STEP * float(p.norm())
        for client, weight in enumerate(weights):
            share = float(weight) / len(weights)
            parts = self._batches.for_gradients(index, client)
            gradients = []
            for part, mean in zip(parts, means, strict=True):
                loss, gradient = self._gradient(replica, average, part)
                gradients.append(gradient)
                mean.add_(gradient, alpha=share)
                losses += share * loss / 2
            whole = self._batches.batch_size / len(parts[0][1])  # how many parts make a mini-batch
            noise2 = max(noise2, float((gradients[0] - gradients[1]).square().sum()) / 2 / whole)
            norm2 = max(norm2, float((gradients[0] + gradients[1]).square().sum()) / 4)
            length = float(gradients[0].norm())
            if length > 0 and away > 0:
                there = ModelVectors(p - gradients[0] * (away / length), average.statistics)
                _, gradient = self._gradient(replica, there, parts[0])
                smoothness = max(smoothness, float((gradient - gradients[0]).norm()) / away)
        found = {
            "norm2": float(means[0] @ means[1]), "loss": losses, "noise2": noise2, "client_norm2": norm2,
            "smoothness": smoothness,
        }  # fmt: skip
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _gradient(self, replica: Replica, at: ModelVectors, part: tuple[Tensor, Tensor]) -> tuple[float, Tensor]:
        """Loss and gradient of the whole network, in training mode; its running statistics stay as they are."""
        gradient = torch.zeros_like(at.parameters)
        replica.bind(ModelVectors(at.parameters, at.statistics.clone()), gradient, 0, self._layout.num_units)
        (logits,) = replica.model.run((part[0],), 0, self._layout.num_units)
        loss = F.cross_entropy(logits, part[1])
        torch.autograd.backward(loss)
        return float(loss.detach()), gradient
