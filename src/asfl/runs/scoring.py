"""How good the models of a run are: on the server's test images, or on what the devices hold out of their own."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.data import ImageData
from asfl.models.cuttable import CuttableModel
from asfl.train.batches import Batches
from asfl.train.evaluate import Calibrator, Evaluator
from asfl.train.fleet import Fleet, ScoringFleet
from asfl.train.layout import Layout, ModelVectors
from asfl.train.state import TrainingState


@dataclass(frozen=True)
class Evaluation:
    """Of the average model with calibrated statistics; and with the running ones, of it and of the clients' models."""

    accuracy: float
    loss: float
    uncalibrated_accuracy: float
    client_accuracy: float
    """Mean over clients of [own client side; server side]."""
    by_client: tuple[float | None, ...] = ()
    """Accuracy as each device says it is, on images that only it has."""


class Scoring(Protocol):
    """Whoever has images to score with."""

    def calibrated(self, model: ModelVectors) -> ModelVectors:
        """The same parameters, with statistics measured anew (`asfl.train.evaluate`)."""
        ...

    def evaluate(self, state: TrainingState, *, whole: bool) -> Evaluation | None:
        """On all images, or on the configured number of them; None if nobody could."""
        ...


def scoring_of(
    config: Config, model: CuttableModel, data: ImageData, batches: Batches, fleet: Fleet, device: torch.device
) -> Scoring:
    """Whoever has images, as a configuration says; `batches` are the clients'."""
    layout = Layout(model)
    calibrator: Calibrator | ScoringFleet
    if config.data.private:
        if not isinstance(fleet, ScoringFleet):
            raise AsflError(f"data.name = {config.data.name}: only devices have such images; asfl serve lets them in")
        if not len(data.test_labels):
            return DevicesImages(fleet)
        calibrator = fleet
    else:
        calibrator = Calibrator(model, layout, batches, device, torch.float32)
    return ServerImages(config, Evaluator(model, layout, data, device, torch.float32), calibrator)


class ServerImages:
    """The server has test images; whoever has training images measures statistics."""

    def __init__(self, config: Config, evaluator: Evaluator, calibrator: Calibrator | ScoringFleet) -> None:
        self._evaluator, self._calibrator = evaluator, calibrator
        self._seed = config.scenario.seed
        order = random_stream(self._seed, "test images").permutation(self._evaluator.num_samples)
        on_the_way = config.output.test_samples or self._evaluator.num_samples
        self._test_samples = np.sort(order[:on_the_way])

    def calibrated(self, model: ModelVectors) -> ModelVectors:
        return self._calibrator.calibrated(model)

    def evaluate(self, state: TrainingState, *, whole: bool) -> Evaluation:
        samples = None if whole else self._test_samples
        average = state.average_model()
        calibrated = self.calibrated(average)
        score = self._evaluator.score(calibrated, samples)
        uncalibrated = score if calibrated is average else self._evaluator.score(average, samples)
        if state.cut == 0:  # everybody has the average model
            return Evaluation(score.accuracy, score.loss, uncalibrated.accuracy, uncalibrated.accuracy)
        # Every client on a share of the images of its own: together one pass over the test set, and unbiased.
        shares = np.array_split(
            random_stream(self._seed, "test shares").permutation(self._test_samples), state.num_clients
        )
        own = [
            self._evaluator.score(state.client_model(client), share).accuracy
            for client, share in enumerate(shares)
            if share.size
        ]
        return Evaluation(score.accuracy, score.loss, uncalibrated.accuracy, float(np.mean(own)))


class DevicesImages:
    """Only the devices have images: they measure statistics, and count what they get right of what they hold out."""

    def __init__(self, fleet: ScoringFleet) -> None:
        self._fleet = fleet

    def calibrated(self, model: ModelVectors) -> ModelVectors:
        return self._fleet.calibrated(model)

    def evaluate(self, state: TrainingState, *, whole: bool) -> Evaluation | None:
        average = state.average_model()
        calibrated = self.calibrated(average)
        score = self._fleet.score(lambda client: calibrated)
        uncalibrated = score if calibrated is average else self._fleet.score(lambda client: average)
        own = uncalibrated if state.cut == 0 else self._fleet.score(state.client_model)
        if score is None or uncalibrated is None or own is None:
            return None
        return Evaluation(score.accuracy, score.loss, uncalibrated.accuracy, own.accuracy, score.by_client)
