"""Mini-batches: which client takes which samples when, how many, and how pixels become input."""

import numpy as np
import torch
from trainers import CPU, SIZES, tiny_batches, tiny_images, uneven_batches

from asfl.config import load_config
from asfl.data import deal, load_data
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.batches import Batches


def test_an_epoch_visits_every_sample_once_and_the_next_in_another_order() -> None:
    data = tiny_images(per_class=6)
    parts = np.arange(60).reshape(3, 20)
    batches = Batches(data, parts, batch_size=5, seed=1, augment=False, device=CPU)
    for client in range(3):
        epochs = [np.concatenate([batches._samples(4 * e + i, client) for i in range(4)]) for e in range(2)]
        for epoch in epochs:
            assert sorted(epoch.tolist()) == parts[client].tolist()
        assert epochs[0].tolist() != epochs[1].tolist()


def test_rounds_and_local_steps_count_through() -> None:
    data = tiny_images()
    one, three = tiny_batches(data, 2, local_steps=1), tiny_batches(data, 2, local_steps=3)
    for step in range(3):
        assert torch.equal(one.batch(3 + step, 1)[1], three.batch(1, 1, step)[1])


def test_asking_again_or_out_of_order_gives_the_same() -> None:
    data = tiny_images("cifar10")
    first, second = (tiny_batches(data, 2, augment=True) for _ in range(2))
    expected = {index: first.batch(index, 1)[0] for index in range(5)}
    for index in (4, 0, 2, 2, 1, 3):
        assert torch.equal(second.batch(index, 1)[0], expected[index])


def test_pixels_are_normalised_and_channels_last() -> None:
    data = tiny_images("cifar10")
    images, labels = tiny_batches(data, 2).batch(0, 0)
    assert images.is_contiguous(memory_format=torch.channels_last)
    samples = tiny_batches(data, 2)._samples(0, 0)
    expected = (data.train_images[samples] / 255.0 - 0.5) / 0.25
    np.testing.assert_allclose(images.numpy(), expected, rtol=1e-12, atol=1e-12)
    assert labels.tolist() == data.train_labels[samples].tolist()


def test_augmented_images_are_shifted_and_sometimes_mirrored() -> None:
    """Each is one of the 9 × 9 × 2 crops of the padded image, by brute force."""
    data = tiny_images("cifar10", per_class=2)
    batches = tiny_batches(data, 1, augment=True, batch_size=8)
    images, _ = batches.batch(0, 0)
    seen = set()
    for sample, found in zip(batches._samples(0, 0), images, strict=True):
        padded = np.pad(data.train_images[sample], ((0, 0), (4, 4), (4, 4)))
        matches = []
        for top in range(9):
            for left in range(9):
                crop = padded[:, top : top + 32, left : left + 32]
                for mirrored, candidate in ((False, crop), (True, crop[:, :, ::-1])):
                    if np.allclose(found.numpy(), (candidate / 255.0 - 0.5) / 0.25):
                        matches.append((top, left, mirrored))
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 4


CLIENTS = len(SIZES)


def test_a_configuration_deals_sizes_and_averages_follow_them() -> None:
    config = load_config("demo", ["data.partition=quantity"]).config
    data = load_data(config)
    sizes = [len(part) for part in deal(data, config)]
    assert len(set(sizes)) > 1
    simulation = Simulation(config, scheme_named("asfl"), data)
    assert simulation.trainer.state.samples.tolist() == sizes
    central = Simulation(config, scheme_named("central"), data)
    assert central.trainer.state.samples.tolist() == [len(data.train_labels)]


def test_a_client_draws_the_same_whatever_others_have() -> None:
    together = uneven_batches(augment=True)
    data, edges = tiny_images(), np.cumsum((0, *SIZES))
    parts = [np.zeros(0, np.int64)] * CLIENTS
    parts[1] = np.arange(edges[1], edges[2])
    alone = Batches(
        data, parts, batch_size=6, seed=3, augment=True, device=CPU, dtype=torch.float64, alone=True
    )  # fmt: skip
    for index in range(8):
        for one, other in zip(together.batch(index, 1), alone.batch(index, 1), strict=True):
            assert torch.equal(one, other)
