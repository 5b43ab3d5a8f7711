"""Client models that cross with few bits, and mini-batches of one's own size: fast equals plain; and their laws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from trainers import PROCEDURES, assert_same, full_round, random_plans, tiny_batches, tiny_images, tiny_model, trainers

from asfl.train.optimizers import Name, rule_named
from asfl.train.quantise import QuantisedLayers
from asfl.train.steps import GradientParts
from asfl.train.trainer import Task

CLIENTS = 4


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("exchange", ["sfl", "fedavg", "sl"])
def test_fast_equals_plain(exchange: str, optimizer: Name, local_steps: int) -> None:
    model = tiny_model()
    batches = tiny_batches(tiny_images(), CLIENTS, local_steps=local_steps, batch_size=4)
    plain, fast = trainers(model, batches, PROCEDURES[exchange], optimizer, CLIENTS, 2)
    units = len(model.units)
    cuts = [units] if exchange == "fedavg" else range(1, units)
    plans = random_plans(cuts, 4, CLIENTS, by_client=exchange == "sfl")
    for number, plan in enumerate(plans):
        plan = replace(plan, bits=np.array([8, 32, 4, 8]) if number % 2 else np.full(CLIENTS, 8))
        expected, found = plain.round(plan), fast.round(plan)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5)
        if exchange != "sfl":  # with a cut per client, the server's part counts layers of others
            np.testing.assert_allclose(found.update_norm2, expected.update_norm2, rtol=1e-4)
        # What crosses with few bits lies on a grid of float32 numbers, whose last digit the order of a sum decides.
        assert_same(plain, fast, 1e-4, 1e-7)


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
    """A round in which nobody moves leaves the server's model as it is, whatever the bits."""
    model = tiny_model(norm="none")
    _, fast = trainers(model, tiny_batches(tiny_images(), CLIENTS), PROCEDURES["sfl"], "sgd", CLIENTS)
    fast.rule = fast.fleet._rule = rule_named("sgd", 0.0)  # type: ignore[attr-defined]
    before = fast.state.server.parameters.clone()
    fast.round(replace(full_round(0, 3, CLIENTS), bits=np.full(CLIENTS, 4)))
    torch.testing.assert_close(fast.state.server.parameters, before, rtol=1e-12, atol=0)


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("exchange", ["sfl", "fedavg", "sl", "asfl"])
def test_fast_equals_plain_with_mini_batches_of_ones_own_size(exchange: str, optimizer: Name, local_steps: int) -> None:
    model = tiny_model()
    batches = tiny_batches(tiny_images(), CLIENTS, local_steps=local_steps, batch_size=4)
    plain, fast = trainers(model, batches, PROCEDURES[exchange], optimizer, CLIENTS, 2)
    units, random = len(model.units), np.random.default_rng(1)
    cuts = [units] if exchange == "fedavg" else range(1, units)
    for plan in random_plans(cuts, 4, CLIENTS, by_client=exchange == "sfl"):
        plan = replace(plan, batch=random.choice([2, 3, 4, 9], CLIENTS))
        np.testing.assert_allclose(fast.round(plan).loss, plain.round(plan).loss, rtol=1e-8)
        assert_same(plain, fast)


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


def test_noise_is_that_of_a_mini_batch_of_the_configured_size() -> None:
    """Clients whose mini-batches are larger are less noisy: the estimate is of the usual size, without bias."""
    random, exact = np.random.default_rng(1), np.array([3.0, -1.0, 2.0])
    found = []
    for _ in range(4000):
        total = torch.zeros(3, dtype=torch.float64)
        parts = GradientParts(total)
        for size, noise in ((2, 4.0), (3, 1.0), (1, 0.25)):
            total += torch.from_numpy((exact + random.normal(0, 2.0 * noise**0.5, (size, 3))).sum(0))
            parts.add(size, noise)
        norms = parts.norms()
        assert norms is not None
        found.append(norms.noise_and_signal())
    noise, signal = np.mean(found, axis=0)
    assert noise == pytest.approx(3 * 4.0, rel=0.06)
    assert signal == pytest.approx(14.0, rel=0.06)
