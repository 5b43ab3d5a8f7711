"""The loop that the benchmark compares with is SplitFed: it trains, and without batch norm it is our SFL."""

import numpy as np
import torch
from trainers import CPU, full_round, tiny_images, tiny_model

from asfl.costs.modelled import SFL
from asfl.train.batches import Batches
from asfl.train.optimizers import Sgd
from asfl.train.steps import Trainer
from benchmarks.splitfed_pattern import SplitFedPattern

CLIENTS, RATE = 4, 0.05


def test_same_model_as_the_fast_round() -> None:
    """Mini-batches of all a client has, so that both see the same samples whatever their order."""
    model, data = tiny_model(norm="none").float(), tiny_images()
    parts = np.arange(len(data.train_labels)).reshape(CLIENTS, -1)
    batches = Batches(data, parts, batch_size=parts.shape[1], seed=0, augment=False, device=CPU)
    fast = Trainer(model, batches, SFL, Sgd(RATE), num_clients=CLIENTS, seed=0, device=CPU)
    pattern = SplitFedPattern(
        model, data, parts, lambda p: torch.optim.SGD(p, lr=RATE), cut=3, batch_size=parts.shape[1], augment=False
    )
    losses = []
    for index in range(4):
        trained = fast.round(full_round(index, 3, CLIENTS))
        losses.append(pattern.round())
        np.testing.assert_allclose(losses[-1], trained.loss.mean(), rtol=1e-5)
    assert losses[-1] < losses[0]
    expected = fast.layout.state_dict(fast.state.average_model())
    found = pattern.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)
