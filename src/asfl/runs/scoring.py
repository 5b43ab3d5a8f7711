"""How good the models of a run are: on the server's test images, or on what the devices hold out of their own."""

import numpy as np
import torch

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.data import ImageData
from asfl.models.cuttable import CuttableModel
from asfl.runs.state import Measured
from asfl.train.batches import Batches
from asfl.train.evaluate import Calibrator, Evaluator, Score
from asfl.train.fleet import Fleet, ScoringFleet
from asfl.train.layout import Layout, ModelVectors
from asfl.train.state import TrainingState


class Scoring:
    """Scores the average model with statistics measured anew and with the running ones, and the clients' own models.

    The server has test images, and its copy of the clients' training images to measure statistics with. Where only
    devices have images, they do what it can't.
    """

    def __init__(
        self, config: Config, model: CuttableModel, data: ImageData, batches: Batches, fleet: Fleet,
        device: torch.device,
    ) -> None:  # fmt: skip
        """`batches` are the clients'."""
        layout, self._seed = Layout(model), config.scenario.seed
        self._calibrator: Calibrator | ScoringFleet
        if not config.data.private:
            self._calibrator = Calibrator(model, layout, batches, device, torch.float32)
        elif isinstance(fleet, ScoringFleet):
            self._calibrator = self._fleet = fleet
        else:
            raise AsflError(f"data.name = {config.data.name}: only devices have such images; asfl serve lets them in")
        self._evaluator = None
        if len(data.test_labels) or not config.data.private:
            self._evaluator = Evaluator(model, layout, data, device, torch.float32)
            order = random_stream(self._seed, "test images").permutation(self._evaluator.num_samples)
            self._samples = np.sort(order[: config.output.test_samples or self._evaluator.num_samples])

    def calibrated(self, model: ModelVectors) -> ModelVectors:
        """The same parameters, with statistics measured anew (`asfl.train.evaluate`)."""
        return self._calibrator.calibrated(model)

    def evaluate(self, state: TrainingState, *, whole: bool) -> Measured:
        """On all images, or on the configured number of them; nothing if no device answers."""
        average = state.average_model()
        calibrated = self._calibrator.calibrated(average)
        if self._evaluator is None:
            score = self._fleet.score(lambda client: calibrated)
            raw = score if calibrated is average else self._fleet.score(lambda client: average)
            own = raw if state.cut == 0 else self._fleet.score(state.client_model)
            return Measured() if score is None or raw is None or own is None else _measured(score, raw, own.accuracy)
        samples = None if whole else self._samples
        score = self._evaluator.score(calibrated, samples)
        raw = score if calibrated is average else self._evaluator.score(average, samples)
        if state.cut == 0:  # all clients have the average model
            return _measured(score, raw, raw.accuracy)
        # Every client on a share of the images of its own: together one pass over the test set, and unbiased.
        shares = np.array_split(random_stream(self._seed, "test shares").permutation(self._samples), state.num_clients)
        accuracies = [
            self._evaluator.score(state.client_model(client), share).accuracy
            for client, share in enumerate(shares)
            if share.size
        ]
        return _measured(score, raw, float(np.mean(accuracies)))


def _measured(score: Score, uncalibrated: Score, of_clients: float) -> Measured:
    """`of_clients`: mean accuracy of [own client side; server side]."""
    by_client = list(score.by_client) or None
    return Measured(score.accuracy, score.loss, uncalibrated.accuracy, of_clients, by_client)
