"""CIFAR-10 and CIFAR-100 (A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009).

A record of the binary files is 1 label (CIFAR-10) or 2 (CIFAR-100: coarse, then fine) and 3,072 bytes of pixels: red,
green, blue, each row by row. The python files hold the same as pickled arrays. Archives are read as they are; nothing
is unpacked or written. Of CIFAR-100 the fine labels are learnt.
"""

import io
import pickle
import pickletools
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.data.images import ImageData, with_statistics

SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
MAX_UNPACKED_BYTES = 1 << 30
"""Far more than any file or archive of CIFAR has; a larger one would only fill the memory."""


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets: where its files are found, and what is in them."""

    name: str
    num_classes: int
    label_bytes: int
    """Labels of a binary record; the last one is learnt."""
    label_key: str
    """What the python files call the label that is learnt."""
    binary_folder: str
    binary_archive: str
    binary_md5: str
    python_folder: str
    python_archive: str
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
        """How many records each file holds, by the name of the python file; the binary one ends in .bin."""
        return dict.fromkeys(self.train_files, self.train_records) | {self.test_file: self.test_records}


CIFAR = {
    "cifar10": Cifar(
        name="cifar10",
        num_classes=10,
        label_bytes=1,
        label_key="labels",
        binary_folder="cifar-10-batches-bin",
        binary_archive="cifar-10-binary.tar.gz",
        binary_md5="c32a1d4ab5d03f1284b67883e8d87530",
        python_folder="cifar-10-batches-py",
        python_archive="cifar-10-python.tar.gz",
        train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test_file="test_batch",
        train_records=10_000,
    ),
    "cifar100": Cifar(
        name="cifar100",
        num_classes=100,
        label_bytes=2,
        label_key="fine_labels",
        binary_folder="cifar-100-binary",
        binary_archive="cifar-100-binary.tar.gz",
        binary_md5="03b5dce01913d631647c71ecec9e9cb8",
        python_folder="cifar-100-python",
        python_archive="cifar-100-python.tar.gz",
        train_files=("train",),
        test_file="test",
        train_records=50_000,
    ),
}


@dataclass(frozen=True)
class CifarFiles:
    """A folder or an archive with the files of a data set."""

    path: Path
    folder_inside: str
    """What the files of an archive lie in."""
    pickled: bool


def find_cifar(kind: Cifar, folders: Sequence[Path]) -> CifarFiles:
    """The first of these folders that has the data set: in its own folder, as an archive, or by being that folder.

    Binary files come first: what can be had without unpickling is.
    """
    for folder in folders:
        for inner, archive, pickled, suffix in (
            (kind.binary_folder, kind.binary_archive, False, ".bin"),
            (kind.python_folder, kind.python_archive, True, ""),
        ):
            if (folder / inner).is_dir():
                return CifarFiles((folder / inner).resolve(), inner, pickled)
            is_inner = folder.is_dir() and folder.resolve().name == inner
            if is_inner or (folder / f"{kind.train_files[0]}{suffix}").is_file():
                return CifarFiles(folder.resolve(), inner, pickled)
            if (folder / archive).is_file():
                return CifarFiles((folder / archive).resolve(), inner, pickled)
    looked_for = ", ".join(
        (f"{kind.binary_folder}/", kind.binary_archive, f"{kind.python_folder}/", kind.python_archive)
    )
    raise AsflError(
        f"no {kind.name} in {' or '.join(map(str, folders))} (looked for {looked_for}): download it with "
        f"`asfl data fetch {kind.name}`, or say where it is with --data-dir or the environment variable ASFL_DATA_DIR"
    )


@lru_cache(maxsize=2)  # 180 MB each, and every run of a comparison asks for the same one
def read_cifar(kind: Cifar, source: CifarFiles) -> ImageData:
    """Read all files of a source; each must hold as many records as `kind` says."""
    parts: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]] = {}
    for where, name, raw in _read_files(kind, source):
        if source.pickled:
            pixels, labels = read_batch(where, raw, kind.label_key)
        else:
            pixels, labels = _split_records(kind, raw)
        _check(kind, where, pixels, labels, kind.records[name])
        parts[name] = pixels.reshape(-1, *SHAPE), labels
    train = [parts.pop(name) for name in kind.train_files]
    images = np.concatenate([images for images, _ in train])
    labels = np.concatenate([labels for _, labels in train])
    return with_statistics(kind.name, (images, labels), parts[kind.test_file], kind.num_classes)


def _read_files(kind: Cifar, source: CifarFiles) -> Iterator[tuple[str, str, bytes]]:
    """Where each file lies, its name without suffix, and its bytes, in any order; all files or an error."""
    suffix = "" if source.pickled else ".bin"
    missing = {f"{name}{suffix}": name for name in kind.records}
    try:
        for file, size, read in _sized_files(source, list(missing)):
            where = f"{source.path}: {file}" if source.path.is_file() else str(source.path / file)
            name = missing.pop(file)
            if source.pickled:
                if size > MAX_UNPACKED_BYTES:
                    raise AsflError(f"{where}: {size:,} bytes is far too large for a file of {kind.name}")
            else:
                _check_size(kind, where, size, kind.records[name])
            yield where, name, read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise AsflError(f"{source.path}: can't be read: {error}; {_fresh_copy(kind)}") from error
    if missing:
        raise AsflError(f"{source.path}: no {', '.join(missing)} in it; {_fresh_copy(kind)}")


def _sized_files(source: CifarFiles, wanted: Iterable[str]) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size in bytes, and a way to read each of the wanted files that is there."""
    if source.path.is_dir():
        for name in wanted:
            path = source.path / name
            if path.is_file():
                yield name, path.stat().st_size, path.read_bytes
        return
    paths = {f"{source.folder_inside}/{name}": name for name in wanted}
    unpacked = 0
    with tarfile.open(source.path, "r:gz") as archive:
        for member in archive:  # in the order they are stored: a compressed archive can't be read backwards
            unpacked += member.size
            if unpacked > MAX_UNPACKED_BYTES:
                raise AsflError(f"{source.path}: refused, it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
            found = paths.pop(member.name.removeprefix("./"), None)
            file = archive.extractfile(member) if found is not None and member.isreg() else None
            if found is not None and file is not None:
                yield found, member.size, file.read


def _check_size(kind: Cifar, where: str, size: int, records: int) -> None:
    if size == records * kind.record_bytes:
        return
    whole, rest = divmod(size, kind.record_bytes)
    found = f"{size:,} bytes" if rest or not size else f"{whole:,} records"
    raise AsflError(
        f"{where}: {found} instead of {records:,} records of {kind.record_bytes:,} bytes; "
        f"{'cut short' if size < records * kind.record_bytes else 'not a file of ' + kind.name}: {_fresh_copy(kind)}"
    )


def _split_records(kind: Cifar, raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    table = np.frombuffer(raw, dtype=np.uint8).reshape(-1, kind.record_bytes)
    return np.ascontiguousarray(table[:, kind.label_bytes :]), table[:, kind.label_bytes - 1].astype(np.int64)


def _check(kind: Cifar, where: str, pixels: NDArray[np.uint8], labels: NDArray[np.int64], records: int) -> None:
    if pixels.shape != (records, _PIXELS) or labels.shape != (records,):
        raise AsflError(
            f"{where}: {len(labels):,} labels and images {list(pixels.shape)} instead of {records:,} labels and "
            f"[{records}, {_PIXELS}]; {_fresh_copy(kind)}"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= kind.num_classes))
    if wrong.size:
        raise AsflError(
            f"{where}: the label of record {wrong[0]} is {labels[wrong[0]]}, but {kind.name} has 0 … "
            f"{kind.num_classes - 1}; {_fresh_copy(kind)}"
        )


def _fresh_copy(kind: Cifar) -> str:
    return f"get a fresh copy with `asfl data fetch {kind.name}`"


# ---------------------------------------------------------------------- python files
def read_batch(where: str, raw: bytes, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels [S, 3072] and labels [S] of one pickled batch; `where` names it in errors."""
    try:
        _check_sizes(raw)
        content = _ArraysOnly(where, raw).load()
    except AsflError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise AsflError(f"{where}: can't be read as a pickled batch of CIFAR: {error}") from error
    if not isinstance(content, dict):
        raise AsflError(f"{where}: holds a {type(content).__name__} instead of a dictionary of arrays")
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in content.items()}
    pixels, labels = batch.get("data"), batch.get(label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        raise AsflError(f"{where}: 'data' must be an array of uint8, found {_kind_of(pixels)}")
    if not isinstance(labels, list | np.ndarray) or not all(isinstance(label, int | np.integer) for label in labels):
        raise AsflError(f"{where}: '{label_key}' must be a list of whole numbers, found {_kind_of(labels)}")
    if any(not -(2**63) <= label < 2**63 for label in labels):
        raise AsflError(f"{where}: '{label_key}' has numbers that are no labels")
    return pixels, np.array(labels, dtype=np.int64)


def _check_sizes(raw: bytes) -> None:
    """Refuse the two kinds of steps that take memory without bringing bytes, before any step is done.

    The memo is a table as long as its largest index, and a bytearray is made before its content is read.
    """
    for step, argument, _ in pickletools.genops(raw):
        if step.name == "BYTEARRAY8" or (step.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(raw)):
            raise pickle.UnpicklingError("it asks for more memory than a batch can need")


def _kind_of(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _empty_array(_kind: object, _shape: object, _code: object) -> NDArray[np.uint8]:
    """What NumPy's `_reconstruct` makes; shape and content follow in the array's state."""
    return np.empty(0, dtype=np.uint8)


def _plain_dtype(code: str, _align: object = False, _copy: object = False) -> "np.dtype[Any]":
    """A type of numbers. A copy, since the state that follows is written into it."""
    found: np.dtype[Any] = np.dtype(code, False, True)
    if found.kind not in "biuf":
        raise pickle.UnpicklingError(f"it has an array of '{code}', and CIFAR has only numbers")
    return found


def _latin1(text: str, _encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes for Python 2."""
    return text.encode("latin1")


_ADMITTED = {
    ("numpy", "ndarray"): "the kind that _empty_array ignores",  # the class itself could be called with any shape
    ("numpy", "dtype"): _plain_dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, where: str, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw), encoding="latin1")
        self._where = where

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _ADMITTED[module_name, global_name]
        except KeyError:
            raise AsflError(
                f"{self._where}: refused, for it would run {module_name}.{global_name}; "
                "a batch of CIFAR needs nothing but NumPy arrays"
            ) from None
