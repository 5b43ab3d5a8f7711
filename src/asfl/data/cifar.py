"""CIFAR-10 and CIFAR-100 (A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009).

A record of the binary files is 1 label (CIFAR-10) or 2 (CIFAR-100: coarse, then fine) and 3,072 bytes of pixels: red,
green, blue, each row by row. Of CIFAR-100 the fine labels are learnt.
"""

import hashlib
import os
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.config.files import open_ordinary
from asfl.data.images import ImageData, with_statistics

SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
HOME = "https://www.cs.toronto.edu/~kriz/"
TIMEOUT_S = 30.0
"""How long the server may be silent."""
MAX_BYTES = 1 << 30
"""Far more than either archive has."""
_CHUNK_BYTES = 1 << 16
Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there, and how many there will be if the server says so."""


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets: where its files are found, and what is in them."""

    name: str
    num_classes: int
    label_bytes: int
    """Labels of a record; the last one is learnt."""
    folder: str
    archive: str
    md5: str
    train_files: tuple[str, ...]
    test_file: str
    train_records: int
    """Per file. Fewer mean that a file was cut short, which its size alone wouldn't show."""
    test_records: int = 10_000

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + _PIXELS

    @property
    def records(self) -> dict[str, int]:
        """How many records each file holds."""
        return dict.fromkeys(self.train_files, self.train_records) | {self.test_file: self.test_records}


CIFAR = {
    "cifar10": Cifar(
        name="cifar10",
        num_classes=10,
        label_bytes=1,
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test_file="test_batch.bin",
        train_records=10_000,
    ),
    "cifar100": Cifar(
        name="cifar100",
        num_classes=100,
        label_bytes=2,
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        train_files=("train.bin",),
        test_file="test.bin",
        train_records=50_000,
    ),
}


def find_cifar(kind: Cifar, folders: Sequence[Path]) -> Path:
    """The first folder with the files of a data set: below one of these, or one of these itself."""
    for folder in folders:
        for place in (folder / kind.folder, folder):
            if (place / kind.train_files[0]).is_file():
                return place.resolve()
    raise AsflError(
        f"no {kind.name} in {' or '.join(map(str, folders))} (looked for {kind.folder}/): download it with "
        f"`asfl data fetch {kind.name}`, or say where it is with --data-dir or the environment variable ASFL_DATA_DIR"
    )


@lru_cache(maxsize=2)  # 180 MB each, and every run of a comparison asks for the same one
def read_cifar(kind: Cifar, folder: Path) -> ImageData:
    """Read all files of a folder; each must hold as many records as `kind` says."""
    parts = {name: _read_file(kind, folder / name, records) for name, records in kind.records.items()}
    train = [parts[name] for name in kind.train_files]
    images = np.concatenate([images for images, _ in train])
    labels = np.concatenate([labels for _, labels in train])
    return with_statistics(kind.name, (images, labels), parts[kind.test_file], kind.num_classes)


def _read_file(kind: Cifar, file: Path, records: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    fresh = f"get a fresh copy with `asfl data fetch {kind.name}`"
    try:
        size = file.stat().st_size
        if size != records * kind.record_bytes:
            raise AsflError(
                f"{file}: {size:,} bytes instead of {records:,} records of {kind.record_bytes:,} bytes; {fresh}"
            )
        table = np.frombuffer(file.read_bytes(), dtype=np.uint8).reshape(records, kind.record_bytes)
    except OSError as error:
        raise AsflError(f"{file}: can't be read: {error.strerror}; {fresh}") from None
    labels = table[:, kind.label_bytes - 1].astype(np.int64)
    wrong = np.flatnonzero(labels >= kind.num_classes)
    if wrong.size:
        raise AsflError(
            f"{file}: the label of record {wrong[0]} is {labels[wrong[0]]}, but {kind.name} has 0 … "
            f"{kind.num_classes - 1}; {fresh}"
        )
    return np.ascontiguousarray(table[:, kind.label_bytes :]).reshape(-1, *SHAPE), labels


# ---------------------------------------------------------------------- download
def is_complete(kind: Cifar, folder: Path) -> bool:
    """Whether the files lie below `folder`, each of its right size."""
    files = {folder / kind.folder / name: count for name, count in kind.records.items()}
    return all(file.is_file() and file.stat().st_size == count * kind.record_bytes for file, count in files.items())


def fetch(kind: Cifar, folder: Path, url: str | None = None, progress: Progress = lambda *_: None) -> Path:
    """Get the archive, compare its checksum, and unpack it below `folder`; gives the folder with the files.

    An archive that is there and right isn't downloaded again.
    """
    archive, url = folder / kind.archive, url or HOME + kind.archive
    part = archive.with_name(f"{archive.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not archive.is_file() or _md5(archive) != kind.md5:
            _download(url, part, progress)
            found = _md5(part)
            if found != kind.md5:
                part.unlink()
                raise AsflError(
                    f"{url}: not the published archive, or damaged on the way: its md5 is {found} instead of "
                    f"{kind.md5}; the download was thrown away"
                )
            part.replace(archive)
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(folder, filter="data")
    except tarfile.FilterError as error:  # not the published archive, whatever its checksum
        raise AsflError(f"{archive}: refused: {error}") from error
    except OSError as error:
        raise AsflError(f"can't write below {folder}: {error.strerror or error}") from error
    return folder / kind.folder


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download(url: str, part: Path, progress: Progress) -> None:
    if not url.startswith(("http://", "https://")):
        raise AsflError(f"--url {url}: give an http or https address")
    have = 0
    try:
        with (
            urlopen(Request(url, headers={"User-Agent": "asfl"}), timeout=TIMEOUT_S) as response,
            os.fdopen(open_ordinary(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file,
        ):
            total = response.length
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                have += len(chunk)
                progress(have, total)
                if have > MAX_BYTES:
                    raise AsflError(f"{url} is larger than {MAX_BYTES:,} bytes; that can't be the archive")
    except (URLError, HTTPException, ConnectionError, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", None) or error  # urllib wraps the cause in an error of its own
        reason = f"no answer for {TIMEOUT_S:g} s" if isinstance(reason, TimeoutError) else reason
        raise AsflError(
            f"can't download {url}: {getattr(reason, 'strerror', None) or reason}; without a network, put "
            f"{part.name.removesuffix('.part')} into {part.parent} yourself"
        ) from error
