"""Mini-batches: who takes which samples when, and how pixels become input."""

import numpy as np
import torch
from trainers import CPU, tiny_batches, tiny_images

from asfl.train.batches import Batches, Normaliser


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


def test_clients_with_few_samples_take_them_all() -> None:
    batches = tiny_batches(tiny_images(per_class=1), 5, batch_size=64)
    assert batches.batch_size == 2
    assert len(batches.batch(0, 0)[1]) == 2


def test_normaliser_takes_the_scale_of_the_data() -> None:
    from dataclasses import replace

    data = replace(tiny_images(), scale=16.0, mean=(0.25,), std=(0.5,))
    pixels = torch.tensor([[[[0, 8, 16]]]], dtype=torch.uint8)
    assert Normaliser(data, CPU, torch.float64)(pixels).flatten().tolist() == [-0.5, 0.5, 1.5]
