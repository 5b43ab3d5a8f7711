"""CIFAR in its real formats, but with a few records per file."""

import io
import pickle
import struct
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


def write_binary(kind: Cifar, folder: Path) -> Path:
    """The binary layout below `folder`."""
    target = folder / kind.binary_folder
    target.mkdir(parents=True)
    for name in kind.records:
        pixels, labels = random_batch(kind, name)
        columns = [labels[:, None].astype(np.uint8)]
        if kind.label_bytes == 2:  # a coarse label that must not be taken for the fine one
            columns.insert(0, np.full((len(labels), 1), 19, dtype=np.uint8))
        (target / f"{name}.bin").write_bytes(np.hstack([*columns, pixels]).tobytes())
    (target / "batches.meta.txt").write_text("airplane\n")
    return target


def write_python(kind: Cifar, folder: Path) -> Path:
    """The python layout below `folder`, as Python 2 pickled it."""
    target = folder / kind.python_folder
    target.mkdir(parents=True)
    for name in kind.records:
        pixels, labels = random_batch(kind, name)
        (target / name).write_bytes(python2_pickle(pixels, labels.tolist(), kind.label_key))
    return target


def python2_pickle(pixels: NDArray[np.uint8], labels: list[int], label_key: str) -> bytes:
    """A dictionary as Python 2 and an old NumPy pickled it: byte strings, numpy.core, dtype('u1', 0, 1)."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    array = b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + text(b"b") + b"tR",
            b"(" + number(1) + b"(" + number(pixels.shape[0]) + number(pixels.shape[1]) + b"t",
            b"cnumpy\ndtype\n(" + text(b"u1") + number(0) + number(1) + b"tR",
            b"(" + number(3) + text(b"|") + b"NNN" + number(-1) * 2 + number(0) + b"tb",
            b"\x89" + text(pixels.tobytes()) + b"tb",
        ]
    )
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(label_key.encode()) + listed + b"u."


def python3_pickle(pixels: NDArray[np.uint8], labels: list[int], label_key: str) -> bytes:
    """The same, saved again by today's Python, with keys in bytes."""
    return pickle.dumps({b"data": pixels, label_key.encode(): labels}, protocol=2)


def pack(folder: Path, archive: Path) -> Path:
    """An archive with the folder in it."""
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return archive


def evil_archive(archive: Path, member: tarfile.TarInfo, content: bytes = b"") -> Path:
    """An archive with this one member."""
    member.size = len(content)
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(member, io.BytesIO(content))
    return archive
