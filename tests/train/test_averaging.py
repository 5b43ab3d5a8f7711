"""Averages of client sides and exchanged client models: what is sent, what is measured, what few bits do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from trainers import (
    PROCEDURES,
    full_round,
    tiny_batches,
    tiny_images,
    tiny_model,
    trainers,
)

from asfl.costs.modelled import ON_DEMAND
from asfl.train.optimizers import rule_named
from asfl.train.quantise import QuantisedLayers
from asfl.train.signals import Task
from asfl.train.steps import GradientParts

CLIENTS = 4


def test_all_averaged_every_round_is_split_fed() -> None:
    """SplitFed v1 at a cut that stays, with its whole client model exchanged every round."""
    model = tiny_model()
    batches = tiny_batches(tiny_images(), CLIENTS)
    (_, ours), (_, theirs) = (
        trainers(model, batches, exchange, "sgd", CLIENTS, CLIENTS) for exchange in (ON_DEMAND, PROCEDURES["sfl"])
    )
    for index in range(4):
        plan = full_round(index, 2, CLIENTS)
        ours.round(replace(plan, synced=2))
        theirs.round(plan)
        one, other = ours.state.average_model(), theirs.state.average_model()
        torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-9, atol=1e-12)
    assert ours.state.clients.parameters.std(0).max() == 0


def test_spreads_are_those_before_the_average() -> None:
    model = tiny_model()
    _, fast = trainers(model, tiny_batches(tiny_images(), CLIENTS), ON_DEMAND, "sgd", CLIENTS, 2)
    plan = full_round(0, 3, CLIENTS)
    _, apart = trainers(model, tiny_batches(tiny_images(), CLIENTS), ON_DEMAND, "sgd", CLIENTS, 2)
    apart.round(plan)
    found = fast.round(replace(plan, synced=2)).averaged_spread
    assert found is not None
    sides, edges = apart.state.clients.parameters, apart.layout.parameter_edges
    for layer in range(len(model.units)):
        own = sides[:, edges[layer] : edges[layer + 1]]
        wanted = float((own - own.mean(0)).square().sum(1).mean()) if layer < 2 else 0.0
        assert found[layer] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("sizes", [((2, 1.0), (2, 1.0), (3, 1.0)), ((2, 4.0), (3, 1.0), (1, 0.25))])
def test_noise_and_signal_are_unbiased(sizes: tuple[tuple[int, float], ...]) -> None:
    """Gradients G + noise of variance S: the mean of many estimates is both.

    Clients whose mini-batches are larger are less noisy: the estimate is of the configured size.
    """
    random, exact = np.random.default_rng(1), np.array([3.0, -1.0, 2.0])
    found = []
    for _ in range(4000):
        total = torch.zeros(3, dtype=torch.float64)
        parts = GradientParts(total)
        for size, noise in sizes:
            total += torch.from_numpy((exact + random.normal(0, 2.0 * noise**0.5, (size, 3))).sum(0))
            parts.add(size, noise)
        norms = parts.norms()
        assert norms is not None
        assert norms.all == pytest.approx(sum(n for n, _ in sizes) ** 2 / sum(n * noise for n, noise in sizes))
        found.append(norms.noise_and_signal())
    mean_noise, signal = np.mean(found, axis=0)
    assert mean_noise == pytest.approx(3 * 4.0, rel=0.06)
    assert signal == pytest.approx(14.0, rel=0.06)


def test_few_bits_are_few_and_their_mean_is_the_model() -> None:
    model = tiny_model()
    _, fast = trainers(model, tiny_batches(tiny_images(), CLIENTS), PROCEDURES["sfl"], "sgd", CLIENTS)
    exact = fast.layout.front(fast.state.server, 2)
    sent = [side for n in range(400) for side in fast.models_to_send([Task(n, 0, 2, bits=8)]) or []]
    first = sent[0].parameters
    assert isinstance(first, QuantisedLayers)
    assert first.codes.numel() == len(exact.parameters)  # a byte each
    mean = torch.stack([one.received(torch.zeros((), dtype=torch.float64)).parameters for one in sent]).mean(0)
    steps = first.step.repeat_interleave(first.sizes)
    assert (mean - exact.parameters).abs().max() < 0.2 * steps.max()
    (whole,) = fast.models_to_send([Task(0, 0, 2)]) or []
    assert whole.parameters.data_ptr() == exact.parameters.data_ptr()  # type: ignore[union-attr]


def test_what_rounding_did_on_the_way_down_is_not_in_the_average() -> None:
    """A round in which no client moves leaves the server's model as it is, whatever the bits."""
    model = tiny_model(norm="none")
    _, fast = trainers(model, tiny_batches(tiny_images(), CLIENTS), PROCEDURES["sfl"], "sgd", CLIENTS)
    fast.rule = fast.fleet._rule = rule_named("sgd", 0.0)  # type: ignore[attr-defined]
    before = fast.state.server.parameters.clone()
    fast.round(replace(full_round(0, 3, CLIENTS), bits=np.full(CLIENTS, 4)))
    torch.testing.assert_close(fast.state.server.parameters, before, rtol=1e-12, atol=0)


@pytest.mark.parametrize("augment", [False, True])
def test_mini_batches_of_any_size(augment: bool) -> None:
    """The configured size gives the usual ones; others are drawn from the client's own samples, and again the same."""
    data = tiny_images()
    batches, again = (tiny_batches(data, CLIENTS, batch_size=6, augment=augment) for _ in range(2))
    usual = batches.batch(3, 1)
    for found, expected in zip(batches.batch(3, 1, 0, 6), usual, strict=True):
        assert torch.equal(found, expected)
    for size in (1, 5, 20, 50):  # the last is more than a client has
        images, labels = batches.batch(3, 1, 0, size)
        assert len(images) == len(labels) == size
        assert torch.equal(images, again.batch(3, 1, 0, size)[0])
        assert not torch.equal(images, batches.batch(4, 1, 0, size)[0])
    assert torch.equal(batches.batch(3, 1)[0], usual[0])  # nothing was used up
