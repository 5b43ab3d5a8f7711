"""Mixed mini-batches: fast equals plain; one client alone is as ever; the server learns as if all data were its own."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from trainers import (
    CPU,
    MIXING,
    PROCEDURES,
    assert_same,
    full_round,
    random_plans,
    tiny_batches,
    tiny_images,
    tiny_model,
    trainers,
)

from asfl.config.names import Norm
from asfl.costs.modelled import ASFL, SFL, ExchangeRules
from asfl.runs.state import flatten
from asfl.train.optimizers import Name, rule_named
from asfl.train.steps import MixedSteps, Trainer

CLIENTS = 4


# ---------------------------------------------------------------------- fast equals plain


@pytest.mark.parametrize(("clients", "samples"), [(2, 6), (4, 6), (5, 3)])
@pytest.mark.parametrize("exchange", MIXING)
def test_any_number_of_clients_and_samples(exchange: str, clients: int, samples: int) -> None:
    """Mixed mini-batches of the same size, of two sizes, and fewer of them than clients."""
    model, batches = tiny_model(), tiny_batches(tiny_images(), clients, batch_size=samples)
    plain, fast = trainers(model, batches, MIXING[exchange], "adam", clients)
    for plan in (full_round(0, 2, clients), full_round(1, 3, clients)):
        np.testing.assert_allclose(fast.round(plan).loss, plain.round(plan).loss, rtol=1e-8)
        assert_same(plain, fast)
    assert fast.state.server_optimizer.steps[-1] == 2 * max(1, min(clients, samples // 2))


# ---------------------------------------------------------------------- what mixing is
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("mixing", "unmixed"), [("asfl:mix=on", ASFL), ("sfl-mix", SFL)])
def test_one_client_alone_is_not_mixed_with_others(mixing: str, unmixed: ExchangeRules, optimizer: Name) -> None:
    model, batches = tiny_model(), tiny_batches(tiny_images(), CLIENTS)
    both = [trainers(model, batches, one, optimizer, CLIENTS)[1] for one in (MIXING[mixing], unmixed)]
    for plan in random_plans(range(1, len(model.units)), 4, CLIENTS):
        alone = replace(plan, arrived=np.arange(CLIENTS) == plan.index)
        found, expected = (fast.round(alone) for fast in both)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-10)
        np.testing.assert_allclose(found.update_norm2, expected.update_norm2, rtol=1e-8)
    for name, tensor in flatten(both[1].state).items():
        torch.testing.assert_close(flatten(both[0].state)[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize(("clients", "samples"), [(4, 8), (4, 6), (5, 3)])
def test_the_server_learns_as_if_all_activations_were_its_own(clients: int, samples: int, norm: Norm) -> None:
    """Central training with SGD of what is behind the cut: mini-batch j has every client's samples j, j + A, …"""
    cut, rate = 2, 0.05
    model, batches = tiny_model(norm=norm), tiny_batches(tiny_images(), clients, batch_size=samples)
    _, fast = trainers(model, batches, MIXING["asfl:mix=on"], "sgd", clients)
    fast.round(full_round(0, cut, clients))  # client sides are no longer the same
    pooled, labels = [], []
    for client in range(clients):
        own = deepcopy(model)
        own.load_state_dict(fast.layout.state_dict(fast.state.client_model(client)), strict=False)
        images, truth = batches.batch(1, client)
        pooled.append(own.client_part(cut)((images,))[0].detach())
        labels.append(truth)
    central = deepcopy(model)
    central.load_state_dict(fast.layout.state_dict(fast.state.server), strict=False)
    behind = central.server_part(cut)
    optimizer = torch.optim.SGD(behind.parameters(), rate)
    parts = max(1, min(clients, samples // 2))
    for part in range(parts):
        turn = torch.arange(samples) % parts == part
        (logits,) = behind((torch.cat([activations[turn] for activations in pooled]),))
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(logits, torch.cat([truth[turn] for truth in labels])))
        optimizer.step()
    fast.round(full_round(1, cut, clients))
    found, expected = (
        fast.layout.behind(vectors, cut)
        for vectors in (fast.state.server, fast.layout.flatten(central, CPU, torch.float64))
    )
    torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.statistics, expected.statistics, rtol=1e-9, atol=1e-11)


def test_what_the_server_sends_back_is_the_gradient_of_each_sample_when_its_turn_came() -> None:
    """With steps of next to nothing, a client's own step is that of a round that doesn't mix; without batch norm."""
    model, batches = tiny_model(norm="none"), tiny_batches(tiny_images(), CLIENTS)
    sides = []
    for exchange in (MIXING["asfl:mix=on"], PROCEDURES["asfl"]):
        fast = Trainer(
            model, batches, exchange, rule_named("sgd", 1e-9), num_clients=CLIENTS, seed=5, device=CPU,
            dtype=torch.float64, client_rule=rule_named("sgd", 0.05),
        )  # fmt: skip
        fast.round(full_round(0, 3, CLIENTS))
        sides.append(fast.state.clients.parameters)
    torch.testing.assert_close(*sides, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_steps_that_are_taken_back_leave_nothing(optimizer: Name) -> None:
    """To the bit: parameters, statistics, moments, numbers of steps; and the same steps can be made again."""
    model, batches = tiny_model(), tiny_batches(tiny_images(), CLIENTS)
    _, fast = trainers(model, batches, MIXING["asfl:mix=on"], optimizer, CLIENTS)
    for index in range(2):
        fast.round(full_round(index, 2, CLIENTS))
    state, cuts, gradient = fast.state, np.array([2, 2, 3, 4]), fast.gradient
    fast.rule = rule_named(optimizer, 0.01)
    before = {name: tensor.clone() for name, tensor in flatten(state).items()}
    steps = MixedSteps(fast, state.server, cuts, np.ones(4))
    draw = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, len(gradient), generator=draw, dtype=torch.float64)

    def make_steps() -> dict[str, torch.Tensor]:
        for noise in drawn:
            gradient[fast.layout.parameter_edges[2] :] = noise[fast.layout.parameter_edges[2] :]
            state.server.statistics.mul_(0.9).add_(0.3)
            steps.step([0, 1, 2, 3])
        return {name: tensor.clone() for name, tensor in flatten(state).items()}

    first, norms = make_steps(), steps.noise.norms()
    assert not torch.equal(first["server.parameters"], before["server.parameters"])
    gradient += 1.0  # of a pass that was never stepped with
    steps.take_back()
    for name, tensor in flatten(state).items():
        assert torch.equal(tensor, before[name]), name
    assert steps.noise.norms() is None
    assert not gradient.any()
    again = make_steps()
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())
    assert steps.noise.norms() == norms is not None


@pytest.mark.parametrize("exchange", MIXING)
def test_training_that_diverges_says_so(exchange: str) -> None:
    """Within a round already; the server's steps are taken back, as no client can be left out here instead."""
    model, batches = tiny_model(norm="none"), tiny_batches(tiny_images(), CLIENTS)
    fast = Trainer(
        model, batches, MIXING[exchange], rule_named("sgd", 1e150), num_clients=CLIENTS, seed=5, device=CPU,
        dtype=torch.float64,
    )  # fmt: skip
    behind = fast.layout.behind(fast.state.server, 2).parameters
    before = behind.clone()
    assert not np.isfinite(fast.round(full_round(0, 2, CLIENTS)).loss).all()
    torch.testing.assert_close(behind, before)


@pytest.mark.parametrize("arrivals", [1, 2, CLIENTS])
@pytest.mark.parametrize("exchange", MIXING)
def test_noise_is_measured_from_two_mini_batches_on(exchange: str, arrivals: int) -> None:
    fast = Trainer(
        tiny_model(), tiny_batches(tiny_images(), CLIENTS, batch_size=8), MIXING[exchange], rule_named("adam", 0.003),
        num_clients=CLIENTS, seed=5, device=CPU, dtype=torch.float64, watch_noise=True,
    )  # fmt: skip
    all_arrive = full_round(0, 2, CLIENTS)
    norms = fast.round(replace(all_arrive, arrived=np.arange(CLIENTS) < arrivals)).gradient_norms
    assert (norms is None) == (arrivals == 1)
    if norms is not None:
        assert (norms.part, norms.all) == (1, arrivals)
        assert norms.of_parts >= norms.of_all > 0
