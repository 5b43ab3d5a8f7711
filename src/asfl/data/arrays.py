"""Your own images: from an NPZ file, or from arrays in this process.

An NPZ file is what `numpy.savez` writes, with the arrays `train_images`, `train_labels`, `test_images`, `test_labels`,
and optionally the numbers `num_classes` (else: the largest label + 1) and `scale` (the pixel value that means 1, else
255). Images are uint8 [S, H, W], [S, C, H, W] or [S, H, W, C] with 1 to 4 channels; labels are whole numbers from 0 on.

Samples need not be images: vectors are [S, F], sequences are floats [S, T, C]. Floats are kept with 8 bits: every
feature of a vector, and every channel of a sequence, from its smallest to its largest training value in 256 steps.
`train_groups` may say to which group each training sample belongs (`data.partition = "groups"`).
"""

import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.errors import AsflError, short
from asfl.config.files import check_file, check_memory, open_to_read
from asfl.config.names import DATASETS, Dataset, is_own_file, private_shape, unknown_data_set
from asfl.data.images import ImageData, with_statistics

MAX_CLASSES = 100_000
"""A larger label is taken for a mistake: the last layer would have as many outputs."""

_MAX_CHANNELS = 4
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_NUMBERS = ("num_classes", "scale")
_GROUPS = "train_groups"


def register_arrays(
    name: str,
    train_images: ArrayLike,
    train_labels: ArrayLike,
    test_images: ArrayLike,
    test_labels: ArrayLike,
    *,
    num_classes: int | None = None,
    scale: float = 255.0,
    train_groups: ArrayLike | None = None,
) -> ImageData:
    """Make `data.name = name` mean these arrays, in this process; the same name again replaces them.

    In a file that `--plugin` or ASFL_PLUGINS names, it also does so in the processes that `asfl compare` starts.

    Images are uint8 [S, H, W], [S, C, H, W] or [S, H, W, C]; labels are whole numbers from 0 to `num_classes` − 1.
    `scale` is the pixel value that means 1. Vectors [S, F] and sequences of floats [S, T, C] will do, too.
    `train_groups` [S] says which training samples belong together. The arrays are copied.
    """
    if not re.fullmatch(r"[a-z0-9_]+", name) or DATASETS.ships(name):
        taken = f", but not {', '.join(sorted(get_args(Dataset)))}" if DATASETS.ships(name) else ""
        raise AsflError(f"register_arrays: name '{name}' must be small letters, digits and _{taken}")
    given = (train_images, train_labels, test_images, test_labels)
    arrays = {key: np.array(value) for key, value in zip(_ARRAYS, given, strict=True)}
    if train_groups is not None:
        arrays[_GROUPS] = np.array(train_groups)
    data = _checked(name, f"register_arrays('{name}')", arrays, num_classes, scale)
    DATASETS.register(name, data)
    return data


def own_data(name: str) -> ImageData:
    """The images of a registered name or of an NPZ file; a file is read again only if it changed."""
    if name in DATASETS and not DATASETS.ships(name):
        return cast(ImageData, DATASETS[name])
    path = Path(name).expanduser()
    if not is_own_file(name):
        raise AsflError(unknown_data_set(name))
    check_file(path, f"data.name = {short(name, 200)}")
    state = path.stat()
    return _read_once(path.resolve(), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2)
def _read_once(path: Path, mtime_ns: int, size: int) -> ImageData:
    return read_npz(path, path.name)


def read_npz(path: Path, name: str) -> ImageData:
    """Read a data set from an NPZ archive."""
    arrays, names = read_arrays(path, (*_ARRAYS, *_NUMBERS, _GROUPS))
    missing = [key for key in _ARRAYS if key not in arrays]
    if missing:
        raise AsflError(
            f"{path}: no array {', '.join(missing)} among: {', '.join(names) or 'none'}; "
            f"a data set needs {', '.join(_ARRAYS)}"
        )
    num_classes = one_number(path, "num_classes", arrays) if "num_classes" in arrays else None
    return _checked(name, str(path), arrays, num_classes, one_number(path, "scale", arrays, 255.0))


def one_number(path: Path, key: str, arrays: Mapping[str, NDArray[Any]], usual: float = 0.0) -> float:
    """The number an archive has by this name; `usual` without one."""
    found = arrays.get(key, np.array(usual))
    if found.size != 1 or found.dtype.kind not in "fiu":
        raise AsflError(f"{path}: {key} is {found.dtype} {list(found.shape)}; give one number")
    number: float = found.item()
    return number


def check_scale(where: str, scale: float) -> None:
    if not 1e-9 <= scale <= 1e9:
        raise AsflError(
            f"{where}: scale = {scale:g} must be a number above 0 (1e-9 … 1e9), the pixel value that means 1"
        )


def _checked(
    name: str, where: str, arrays: dict[str, NDArray[Any]], num_classes: float | None, scale: float
) -> ImageData:
    """The data set of these arrays, once all of them are what they should be; `where` names them in errors."""
    check_scale(where, scale)
    arrays = {**arrays, **_in_bytes(where, arrays["train_images"], arrays["test_images"])}
    images = {key: as_images(where, key, arrays[key]) for key in ("train_images", "test_images")}
    train_shape, test_shape = (image.shape[1:] for image in images.values())
    if train_shape != test_shape:
        raise AsflError(
            f"{where}: training images are {times(train_shape)} (channels × height × width) "
            f"and test images {times(test_shape)}; give all images the same shape"
        )
    labels = {
        part: as_labels(where, f"{part}_labels", arrays[f"{part}_labels"], len(images[f"{part}_images"]))
        for part in ("train", "test")
    }
    largest = int(max(values.max() for values in labels.values()))
    if num_classes is None:
        num_classes = largest + 1
    if not np.isfinite(num_classes) or num_classes != int(num_classes) or not largest < num_classes <= MAX_CLASSES:
        raise AsflError(
            f"{where}: num_classes = {num_classes:g} must be a whole number above the largest label, {largest}, "
            f"and at most {MAX_CLASSES:,}"
        )
    data = with_statistics(
        name,
        (images["train_images"], labels["train"]),
        (images["test_images"], labels["test"]),
        int(num_classes),
        float(scale),
    )
    if _GROUPS not in arrays:
        return data
    groups = arrays[_GROUPS]
    if groups.dtype.kind not in "iu" or groups.shape != labels["train"].shape:
        raise AsflError(
            f"{where}: {_GROUPS} is {groups.dtype} {list(groups.shape)}; give one whole number for each of the "
            f"{len(labels['train']):,} training samples"
        )
    return replace(data, train_groups=groups.astype(np.int64))


def _in_bytes(where: str, train: NDArray[Any], test: NDArray[Any]) -> dict[str, NDArray[np.uint8]]:
    """Vectors [S, F] and sequences [S, T, C] as images of bytes [S, F, 1, 1] and [S, C, 1, T]; nothing for images."""
    if train.ndim != 2 and not (train.ndim == 3 and train.dtype.kind == "f"):
        return {}
    if test.ndim != train.ndim or test.dtype.kind != train.dtype.kind or test.shape[2:] != train.shape[2:]:
        raise AsflError(
            f"{where}: train_images is {train.dtype} {list(train.shape)} and test_images {test.dtype} "
            f"{list(test.shape)}; give both the same kind of samples"
        )
    made = {}
    if train.dtype.kind == "f":
        over = (0,) if train.ndim == 2 else (0, 1)
        for key, values in (("train_images", train), ("test_images", test)):
            if not values.size or not np.isfinite(values).all():
                raise AsflError(f"{where}: {key} must have samples, all of finite numbers")
        low, high = train.min(axis=over), train.max(axis=over)
        step = np.where(high > low, high - low, 1.0) / 255
    for key, values in (("train_images", train), ("test_images", test)):
        bytes_ = values
        if train.dtype.kind == "f":
            if values.shape[1:] != train.shape[1:]:
                raise AsflError(f"{where}: {key} is {list(values.shape)}; give all samples the same shape")
            bytes_ = np.clip(np.rint((values - low) / step), 0, 255).astype(np.uint8)
        made[key] = bytes_[:, :, None, None] if train.ndim == 2 else bytes_.transpose(0, 2, 1)[:, :, None, :]
    return made


def as_images(where: str, key: str, images: NDArray[Any]) -> NDArray[np.uint8]:
    """uint8 [S, C, H, W], contiguous, whatever the order of the axes was."""
    found = f"{where}: {key} is {images.dtype} {list(images.shape)}"
    if images.dtype != np.uint8:
        raise AsflError(f"{found}; give uint8, for example (255 * images).round().astype('uint8') if they are 0 … 1")
    if images.ndim not in (3, 4) or images.size == 0:
        raise AsflError(f"{found}; give at least one image, as [S, H, W], [S, C, H, W] or [S, H, W, C]")
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[2] == 1:  # vectors and sequences, in order already
        return np.ascontiguousarray(images)
    elif images.shape[1] > _MAX_CHANNELS:  # an axis this short can only be the channels; if both are, they come first
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1] > _MAX_CHANNELS:
        raise AsflError(
            f"{found}; neither axis 1 nor axis 3 has 1 to {_MAX_CHANNELS} channels: give [S, C, H, W] or [S, H, W, C]"
        )
    return np.ascontiguousarray(images)


def as_labels(where: str, key: str, labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    if labels.dtype.kind not in "iu" or labels.shape != (count,):
        raise AsflError(
            f"{where}: {key} is {labels.dtype} {list(labels.shape)}; give one whole number for each of the "
            f"{count:,} images"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= MAX_CLASSES))
    if wrong.size:
        raise AsflError(f"{where}: {key}[{wrong[0]}] = {labels[wrong[0]]} must be 0 … {MAX_CLASSES - 1:,}")
    return labels.astype(np.int64)


def times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


# ---------------------------------------------------------------------- NPZ archives, from people one needn't trust
_DAMAGED = (
    *(OSError, EOFError, ValueError, RuntimeError, OverflowError, struct.error),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""What a damaged archive makes of the modules that read it, depending on where the damage is."""


def read_arrays(path: Path, wanted: Collection[str]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The wanted arrays that are in the archive, and the names of all; nothing in it is ever unpickled.

    An array is read only if the archive holds as many bytes as its header claims, and if they fit into the memory: a
    header of 100 bytes can claim terabytes, and a megabyte of zip can hold a gigabyte of zeros.
    """
    try:
        with open_to_read(path) as file:
            if not zipfile.is_zipfile(file):
                raise AsflError(f"{path}: not an NPZ archive, or an incomplete one; numpy.savez writes them")
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                read = {name: info for name, info in members.items() if name in wanted}
                for name, info in read.items():
                    with archive.open(info) as member:
                        _check_claim(path, name, member, info.file_size)
                size = sum(info.file_size for info in read.values())
                check_memory(size, f"reading {path}", "give fewer samples")
                arrays = {}
                for name, info in read.items():
                    with archive.open(info) as member:
                        arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                return arrays, list(members)
    except _DAMAGED as error:
        raise AsflError(f"{path}: can't be read as an NPZ archive of plain arrays: {error}") from error


def _check_claim(path: Path, name: str, member: IO[bytes], size: int) -> None:
    version = np.lib.format.read_magic(member)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(member)
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed > size:
        raise AsflError(f"{path}: {name} claims to be {dtype} {list(shape)}, {claimed:,} bytes, but {size:,} are there")


# ---------------------------------------------------------------------- what one sample of a data set looks like
class _InputShapes(dict[str, tuple[int, int, int]]):
    def __missing__(self, dataset: str) -> tuple[int, int, int]:
        private = private_shape(dataset)
        return own_data(dataset).input_shape if private is None else private[:3]


class _ClassCounts(dict[str, int]):
    def __missing__(self, dataset: str) -> int:
        private = private_shape(dataset)
        return own_data(dataset).num_classes if private is None else private[3]


INPUT_SHAPE: Mapping[str, tuple[int, int, int]] = _InputShapes(
    {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
)
"""Channels, height, width of one sample, by data set."""

NUM_CLASSES: Mapping[str, int] = _ClassCounts({"digits": 10, "cifar10": 10, "cifar100": 100})
