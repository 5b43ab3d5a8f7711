"""Digits, and people's own images: as an NPZ file or as arrays; everything that is named by `data.name`."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.config.names import DATASETS, ModelSpec
from asfl.costs.world import World
from asfl.data import load_data, register_arrays
from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
from asfl.models.build import build_model
from asfl.models.load import load_profile
from studies.torture.made_up import lying_npy


@pytest.fixture(autouse=True)
def _forget_registered() -> Iterator[None]:
    yield
    DATASETS.clear()


def images(count: int, *shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def save(path: Path, **changes: Any) -> Path:
    """A small valid data set, except for what is changed; None leaves an array out."""
    arrays: dict[str, Any] = {
        "train_images": images(12, 10, 8, 3),
        "train_labels": np.arange(12) % 4,
        "test_images": images(5, 10, 8, 3, seed=1),
        "test_labels": np.arange(5) % 3,
    } | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def config_for(name: object) -> Config:
    return load_config("demo", [f"data.name={name}"]).config


def test_digits_are_all_there() -> None:
    data = load_data(load_config("demo").config)
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.test_images.shape == (360, 1, 8, 8)
    assert (data.scale, data.num_classes, data.train_images.max()) == (16, 10, 16)
    assert data.input_shape == INPUT_SHAPE["digits"]
    assert data.mean == pytest.approx([data.train_images.mean() / 16])
    together = np.concatenate([data.train_images, data.test_images]).reshape(1797, -1)
    assert len(np.unique(together, axis=0)) == 1797  # no image is in both parts
    every = np.bincount(np.concatenate([data.train_labels, data.test_labels]))
    assert np.array_equal(every, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])  # as published
    assert np.abs(np.bincount(data.test_labels) - every * 360 / 1797).max() < 1
    assert load_data(load_config("demo").config) is data


def test_validation_is_training_images_that_are_not_trained_with(tmp_path: Path) -> None:
    whole = load_data(config_for("digits"))
    parts = [load_data(load_config("demo", ["data.validation=0.2", f"scenario.seed={s}"]).config) for s in (1, 1, 2)]
    for data in parts:
        assert (len(data.test_labels), len(data.train_labels)) == (287, 1150)
        rows = [one.reshape(len(one), -1) for one in (data.train_images, data.test_images, whole.train_images)]
        assert len(np.unique(np.concatenate(rows), axis=0)) == 1437  # the training images, each once; no test image
    assert np.array_equal(parts[0].test_images, parts[1].test_images)
    assert not np.array_equal(parts[0].test_images, parts[2].test_images)
    file = save(tmp_path / "own.npz", train_groups=np.arange(12))
    kept = load_data(load_config("demo", [f"data.name={file}", "data.validation=0.25"]).config)
    assert kept.train_groups is not None
    assert np.array_equal(kept.train_groups % 4, kept.train_labels)  # groups stay with their images
    with pytest.raises(AsflError, match=r"0\.001 of 12 training images is none"):
        load_data(load_config("demo", [f"data.name={file}", "data.validation=0.001"]).config)


@pytest.mark.parametrize(
    ("given", "expected"),
    [((10, 8), (1, 10, 8)), ((3, 10, 8), (3, 10, 8)), ((10, 8, 3), (3, 10, 8)), ((4, 4, 2), (4, 4, 2))],
)
def test_every_order_of_axes(given: tuple[int, ...], expected: tuple[int, ...], tmp_path: Path) -> None:
    train, test = images(12, *given), images(5, *given, seed=1)
    data = load_data(config_for(save(tmp_path / "mine.npz", train_images=train, test_images=test)))
    assert data.input_shape == expected
    assert data.train_images.flags.c_contiguous
    if given == (10, 8, 3):
        assert np.array_equal(data.train_images[2, 1], train[2, :, :, 1])


def test_a_file_is_a_data_set_everywhere(tmp_path: Path) -> None:
    path = save(tmp_path / "Mine.npz")
    config = config_for(path)
    data = load_data(config)
    assert (data.num_classes, data.name, data.scale) == (4, "Mine.npz", 255)
    assert load_data(config) is data
    assert (INPUT_SHAPE[str(path)], NUM_CLASSES[str(path)]) == ((3, 10, 8), 4)
    assert ModelSpec.parse(config.model_spec.name) == config.model_spec
    model = build_model(config.model_spec)
    measured = World.of(config).profile
    assert measured.param_bits.sum() == 32 * sum(parameter.numel() for parameter in model.parameters())
    assert load_profile(f"cnn-w0.5-gn-{path}").num_layers == 7
    before = World.of(config_for(path)).profile  # a file that changes is read again
    save(path, train_images=images(12, 16, 16), test_images=images(5, 16, 16), num_classes=7)
    assert load_data(config_for(path)).num_classes == 7
    after = World.of(config_for(path)).profile
    assert after.activation_bits[0] != before.activation_bits[0]


def test_registered_arrays_are_a_data_set(tmp_path: Path) -> None:
    train, test = images(8, 6, 6), images(4, 6, 6)
    with pytest.raises(
        AsflError, match=r"data.name: unknown data set 'mine': valid: cifar10, cifar100, digits, private_"
    ):
        config_for("mine")
    data = register_arrays("mine", train, [0, 1, 2, 3] * 2, test, [0, 1, 2, 3], num_classes=5, scale=200)
    config = config_for("mine")
    assert load_data(config) is data
    assert (data.num_classes, data.scale, data.input_shape) == (5, 200, (1, 6, 6))
    assert ModelSpec.parse("cnn-mine") == config.model_spec
    first = World.of(config).profile
    train[:] = 0
    assert data.train_images.any()  # a copy
    register_arrays("mine", images(8, 12, 12), [0, 1] * 4, images(4, 12, 12), [0, 1] * 2)
    assert World.of(config).profile.activation_bits[0] == 4 * first.activation_bits[0]


@pytest.mark.parametrize("name", ["digits", "My-Data", "", "a.npz"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(AsflError, match="must be small letters, digits and _"):
        register_arrays(name, images(2, 4, 4), [0, 1], images(2, 4, 4), [0, 1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test_labels": None}, "no array test_labels among: train_images, train_labels, test_images;"),
        ({"train_images": images(12, 10, 8, 3) / 255}, r"train_images is float64 \[12, 10, 8, 3\]; give uint8"),
        (
            {"train_images": images(12, 80)},
            r"train_images is uint8 \[12, 80\] and test_images uint8 \[5, 10, 8, 3\]; give both the same kind",
        ),
        ({"train_images": images(12, 10, 8, 7)}, "neither axis 1 nor axis 3 has 1 to 4 channels"),
        ({"test_images": images(5, 10, 9, 3)}, "training images are 3×10×8 .* and test images 3×10×9"),
        ({"train_labels": np.arange(11)}, r"train_labels is int64 \[11\]; give one whole number for each of the 12"),
        ({"train_labels": np.arange(12) - 1}, r"train_labels\[0\] = -1 must be 0 … 99,999"),
        ({"test_labels": np.array([0, 1, 2, 2**40, 1])}, r"test_labels\[3\] = 1099511627776"),
        ({"num_classes": 3}, "num_classes = 3 must be a whole number above the largest label, 3"),
        ({"scale": np.nan}, "scale = nan must be a number above 0"),
        ({"train_labels": np.array([None] * 12)}, "can't be read as an NPZ archive of plain arrays"),
    ],
)
def test_wrong_arrays_are_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save(tmp_path / "mine.npz", **changes)
    with pytest.raises(AsflError, match=words) as caught:
        load_data(config_for(path))
    assert "mine.npz" in str(caught.value)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with pytest.raises(AsflError, match=r"data.name = '.*mine.npz': no such file"):
        load_data(config_for(path))
    whole = save(path).read_bytes()
    for content in (b"", b"no archive", whole[: len(whole) // 2], whole[:80] + b"??" + whole[82:]):
        path.write_bytes(content)
        with pytest.raises(AsflError, match=r"mine.npz: (not an NPZ|can't be read)"):
            load_data(config_for(path))


def test_arrays_that_claim_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of 100 bytes can claim terabytes; and what is really there has to fit into the memory."""
    path = save(tmp_path / "mine.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("num_classes.npy", lying_npy((10**12,)))
    with pytest.raises(AsflError, match=r"num_classes claims to be float64 \[1000000000000\], 8,000,000,000,000 bytes"):
        load_data(config_for(path))
    save(path)
    monkeypatch.setattr("asfl.config.files.ALWAYS_THERE", 0)
    monkeypatch.setattr("asfl.config.files.available_bytes", lambda: 100)
    with pytest.raises(AsflError, match=r"reading .*mine.npz needs about .* of memory"):
        load_data(config_for(path))
