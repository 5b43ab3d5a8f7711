"""CIFAR in its real format, but with a few records per file."""

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asfl.data.cifar import CIFAR, Cifar

TINY = {name: replace(kind, train_records=12, test_records=5) for name, kind in CIFAR.items()}


def random_batch(kind: Cifar, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels [S, 3072] and labels [S] of one file, the same each time."""
    rng = np.random.default_rng(list(name.encode()))
    count = kind.records[name]
    return rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, kind.num_classes, count)


def write_cifar(kind: Cifar, folder: Path) -> Path:
    """The files below `folder`."""
    target = folder / kind.folder
    target.mkdir(parents=True)
    for name in kind.records:
        pixels, labels = random_batch(kind, name)
        columns = [labels[:, None].astype(np.uint8)]
        if kind.label_bytes == 2:  # a coarse label that must not be taken for the fine one
            columns.insert(0, np.full((len(labels), 1), 19, dtype=np.uint8))
        (target / name).write_bytes(np.hstack([*columns, pixels]).tobytes())
    return target


def pack(folder: Path, archive: Path) -> Path:
    """An archive with the folder in it."""
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return archive
