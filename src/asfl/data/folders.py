"""Folders that `datasets.save_to_disk` of Hugging Face wrote: Arrow tables, in which nothing is pickled.

The splits are `train` and `test` (else `validation`). Of the columns, the first with images is learnt from, else one
called `features`; the labels are the first of classes, else one called `label`. A column `group` says which samples
belong together.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError, MissingExtraError


def read_folder(path: Path) -> tuple[dict[str, NDArray[Any]], int | None]:
    """Arrays by the names they have in an NPZ file, and how many classes there are, if the folder says so."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"reading {path}, a folder of Hugging Face,", "datasets") from error
    try:
        splits = datasets.load_from_disk(str(path))
    except Exception as error:
        raise AsflError(f"{path}: can't be read as a folder of Hugging Face: {error}") from None
    found = {"train": splits.get("train"), "test": splits.get("test", splits.get("validation"))}
    missing = [name for name, split in found.items() if split is None]
    if missing:
        raise AsflError(f"{path}: no split {', '.join(missing)} among: {', '.join(splits)}")
    features = found["train"].features
    samples = _column(path, features, datasets.Image, "features")
    labels = _column(path, features, datasets.ClassLabel, "label")
    arrays: dict[str, NDArray[Any]] = {}
    for part, split in found.items():
        arrays[f"{part}_images"] = _stacked(
            path, split, samples, is_image=isinstance(features[samples], datasets.Image)
        )
        arrays[f"{part}_labels"] = np.asarray(split[labels])
    if "group" in features:
        _, arrays["train_groups"] = np.unique(np.asarray(found["train"]["group"]), return_inverse=True)
    return arrays, getattr(features[labels], "num_classes", None)


def _column(path: Path, features: Any, kind: type, usual: str) -> str:
    for name, feature in features.items():
        if isinstance(feature, kind):
            return str(name)
    if usual in features:
        return usual
    raise AsflError(f"{path}: no column of {kind.__name__}, and none called {usual}, among: {', '.join(features)}")


def _stacked(path: Path, split: Any, column: str, *, is_image: bool) -> NDArray[Any]:
    rows = [np.asarray(row, dtype=np.uint8 if is_image else np.float64) for row in split[column]]
    shapes = {row.shape for row in rows}
    if len(shapes) != 1:
        raise AsflError(f"{path}: {column} has samples of {len(shapes)} shapes; give all the same")
    return np.stack(rows)
