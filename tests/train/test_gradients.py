"""What a run measures for Theorem 1, derived again on the whole network; and training doesn't notice."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trainers import full_round, random_plans, tiny_batches, tiny_images, tiny_model, trainers

from asfl.costs.modelled import ASFL
from asfl.runs.state import flatten
from asfl.train.evaluate import STEP, Gradients
from asfl.train.optimizers import Name
from asfl.train.state import ModelVectors

CLIENTS = 3


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_what_is_measured_is_of_the_whole_network(optimizer: Name) -> None:
    model, batches = tiny_model(norm="group"), tiny_batches(tiny_images(), CLIENTS)
    _, fast = trainers(model, batches, ASFL, optimizer, CLIENTS)
    for plan in random_plans([2, 3], 4, CLIENTS):
        fast.round(plan)
    fast.round(full_round(4, 2, CLIENTS))
    state, layout = fast.state, fast.layout
    before = {name: tensor.clone() for name, tensor in flatten(state).items()}
    found = Gradients(model, layout, batches).measure(state, 7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in flatten(state).items())

    average = state.average_model().parameters
    whole = tiny_model(norm="group")

    def gradient(at: Tensor, images: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        whole.load_state_dict(layout.state_dict(ModelVectors(at, average.new_zeros(0))), strict=False)
        whole.zero_grad()
        loss = F.cross_entropy(whole(images), labels)
        torch.autograd.backward(loss)
        flat = torch.zeros_like(at)
        named = dict(whole.named_parameters())
        for slot in layout.parameters:
            slot.view(flat).copy_(named[slot.key].grad)  # type: ignore[arg-type]
        return float(loss.detach()), flat

    first, second = zip(*(batches.for_gradients(7, client) for client in range(CLIENTS)), strict=True)
    losses, a = zip(*(gradient(average, *part) for part in first), strict=True)
    more, b = zip(*(gradient(average, *part) for part in second), strict=True)
    means = sum(a) / CLIENTS, sum(b) / CLIENTS
    away = STEP * average.norm()
    bends = [
        gradient(average - away * own / own.norm(), *part)[1] - own for own, part in zip(a, first, strict=True)
    ]  # fmt: skip
    expected = {
        "norm2": float(means[0] @ means[1]),
        "loss": float(np.mean([*losses, *more])),
        "noise2": max(float((x - y).square().sum()) / 4 for x, y in zip(a, b, strict=True)),  # 3 of 6 samples each
        "client_norm2": max(float(((x + y) / 2).square().sum()) for x, y in zip(a, b, strict=True)),
        "smoothness": max(float(bend.norm() / away) for bend in bends),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert found.keys() == expected.keys()
