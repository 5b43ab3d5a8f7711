"""Folders of Hugging Face's `datasets`, as its own library writes them."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.data import deal, load_data


def split(count: int, **columns: Any) -> Any:
    return datasets.Dataset.from_dict({"label": [number % 3 for number in range(count)], **columns})


def config_of(folder: Path, *overrides: str) -> Any:
    return load_config("demo", [f"data.name={folder}", "scenario.clients=2", *overrides]).config


def test_vectors_and_groups(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    groups = [f"person {number % 5}" for number in range(30)]
    both = datasets.DatasetDict(
        train=split(30, features=vectors.tolist(), group=groups), validation=split(9, features=vectors[:9].tolist())
    )
    both.save_to_disk(str(tmp_path / "saved"))
    config = config_of(tmp_path / "saved", "data.partition=groups", "model.architecture=mlp")
    data = load_data(config)
    assert data.input_shape == (4, 1, 1)
    held = [{groups[sample] for sample in part} for part in deal(data, config)]
    assert not held[0] & held[1]


def test_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(12, 8, 8, 3), dtype=np.uint8)
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["a", "b", "c", "d"])})
    made = datasets.Dataset.from_dict({"picture": list(pixels), "kind": [0, 1, 2] * 4}, features=features)
    datasets.DatasetDict(train=made, test=made).save_to_disk(str(tmp_path / "saved"))
    data = load_data(config_of(tmp_path / "saved"))
    assert data.num_classes == 4
    assert (data.train_images == pixels.transpose(0, 3, 1, 2)).all()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    datasets.DatasetDict(train=split(3, text=["a", "b", "c"])).save_to_disk(str(tmp_path / "one"))
    with pytest.raises(AsflError, match="no split test among: train"):
        load_data(config_of(tmp_path / "one"))
    both = datasets.DatasetDict(train=split(3, text=["a", "b", "c"]), test=split(3, text=["a", "b", "c"]))
    both.save_to_disk(str(tmp_path / "text"))
    with pytest.raises(AsflError, match="no column of Image, and none called features, among: label, text"):
        load_data(config_of(tmp_path / "text"))
