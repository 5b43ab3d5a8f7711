"""The flat optimisers are PyTorch's; state stays with its holder."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from trainers import CPU, PROCEDURES, full_round, tiny_batches, tiny_images, tiny_model, trainers

from asfl.train.optimizers import Adam, Momentum, OptimizerState, Rule, Sgd, step_units
from asfl.train.state import Layout

RULES: dict[str, tuple[Rule, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]]] = {
    "sgd": (Sgd(0.1), lambda parameters: torch.optim.SGD(parameters, 0.1)),
    "momentum": (Momentum(0.1), lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)),
    "adam": (Adam(0.01), lambda parameters: torch.optim.Adam(parameters, 0.01)),
}


@pytest.mark.parametrize("name", RULES)
def test_steps_as_pytorch_does(name: str) -> None:
    rule, theirs = RULES[name]
    torch.manual_seed(0)
    weights = torch.randn(50, dtype=torch.float64)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = theirs([parameter])
    moments = torch.zeros(rule.num_moments, 50, dtype=torch.float64)
    for steps in range(1, 8):
        gradient, before = torch.randn(50, dtype=torch.float64), weights.clone()
        norm2 = rule.step(weights, gradient, moments, steps)
        parameter.grad = gradient
        optimizer.step()
        torch.testing.assert_close(weights, parameter.detach(), rtol=1e-12, atol=1e-12)
        assert float(norm2) == pytest.approx(float((weights - before).square().sum()), rel=1e-9)


def test_units_with_different_step_counts_are_corrected_for_their_own() -> None:
    """Adam's bias correction: a unit that steps for the first time takes a first step."""
    layout = Layout(tiny_model())
    size, units = layout.num_parameters, layout.num_units
    rule, gradient = Adam(0.01), torch.ones(size)
    state = OptimizerState(torch.zeros(2, size), np.zeros(units, dtype=np.int64))
    weights = torch.zeros(size)
    for _ in range(5):
        step_units(rule, layout.parameter_edges, weights, gradient, state, range(3))
    before = weights.clone()
    step_units(rule, layout.parameter_edges, weights, gradient, state, range(units))
    assert state.steps.tolist() == [6, 6, 6] + [1] * (units - 3)
    # A constant gradient of 1 makes every bias-corrected Adam step exactly the learning rate.
    torch.testing.assert_close(weights - before, torch.full((size,), -0.01))


def test_state_stays_with_its_holder_when_layers_move() -> None:
    clients = 2
    _, fast = trainers(tiny_model(), tiny_batches(tiny_images(), clients), PROCEDURES["asfl"], "momentum", clients)
    fast.round(full_round(0, 4, clients))
    edges = fast.layout.parameter_edges
    kept = fast.state.client_moments[:, :, edges[2] : edges[4]].clone()
    assert (kept != 0).any()
    fast.round(full_round(1, 2, clients))  # layers 3 and 4 are the server's, which has no state for them yet
    assert fast.state.server_optimizer.steps.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert torch.equal(fast.state.client_moments[:, :, edges[2] : edges[4]], kept)
    assert fast.state.client_steps[0].tolist() == [2, 2, 1, 1, 0, 0, 0]
    fast.round(full_round(2, 4, clients))  # back again: the clients go on from what they had
    assert fast.state.client_steps[0].tolist() == [3, 3, 2, 2, 0, 0, 0]
    assert fast.state.server.parameters.device == CPU
