"""Images that stay where they are: a device's own, in whatever form it has them, and what the server has of its own.

A device names its images as

    a file .npz     `images` and `labels`, and maybe `scale`, the pixel value that means 1 (else 255); or the four
                    arrays of `asfl.data.arrays`, of which the test part is held out
    a folder        with a folder of picture files for each class it has, named by the class's number (0, 1, …) or by a
                    name in the file `classes.txt`, one in each line, the same on all devices
    file.py:name    a function of its own that returns images and labels; the file is run

Images are what the server said they are (channels, height, width); pictures are scaled to that. All devices and the
server normalise alike, with numbers that say nothing of anybody's images.
"""

import runpy
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError, nearest
from asfl.config.names import private_shape
from asfl.data.arrays import as_images, as_labels, check_scale, one_number, own_data, read_arrays, times
from asfl.data.images import ImageData

MEAN, STD = 0.5, 0.25
"""Of pixel / scale, for everybody: about what pictures have."""
MOST_IMAGES = 1_000_000
_CLASSES_FILE = "classes.txt"
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")
Pair = tuple[NDArray[np.uint8], NDArray[np.int64]]


def of_device(name: str, source: str, held_out: float, rng: np.random.Generator) -> ImageData:
    """What the run called `name` (`private_…`) trains with and scores on here; one sentence if it doesn't fit.

    A share `held_out` is kept from training, drawn by `rng`, unless `source` says itself what to keep.
    """
    data, has_test = _read(name, source)
    data = _as_agreed(name, source, data)
    return data if has_test else data.held_out(held_out, rng)


def deal_out(data: ImageData, sizes: Sequence[int], folder: Path, rng: np.random.Generator) -> list[Path]:
    """Training images as files for devices, so many each, none twice: for trials."""
    if sum(sizes) > len(data.train_labels) or min(sizes, default=0) < 1:
        raise AsflError(
            f"sizes {', '.join(map(str, sizes))}: {data.name} has {len(data.train_labels):,} images to deal"
        )
    ends, order, files = np.cumsum(sizes), rng.permutation(len(data.train_labels)), []
    for number, own in enumerate(np.split(order[: ends[-1]], ends[:-1])):
        content = BytesIO()
        np.savez(content, images=data.train_images[own], labels=data.train_labels[own], scale=data.scale)
        files.append(folder / f"part-{number}.npz")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_bytes(content.getvalue())
    return files


def of_server(name: str) -> ImageData:
    """What the server knows of them: shape and classes, and no image."""
    shape = private_shape(name)
    assert shape is not None
    nothing = np.zeros((0, *shape[:3]), np.uint8), np.zeros(0, np.int64)
    return _data(name, nothing, nothing, 255.0)


def _as_agreed(name: str, source: str, data: ImageData) -> ImageData:
    shape = private_shape(name)
    assert shape is not None
    if data.input_shape != shape[:3]:
        raise AsflError(
            f"{source}: its images are {times(data.input_shape)} (channels × height × width), but this run learns "
            f"from images of {times(shape[:3])}"
        )
    for labels in (data.train_labels, data.test_labels):
        if labels.size and labels.max() >= shape[3]:
            raise AsflError(
                f"{source}: a label {labels.max()}, but this run has {shape[3]} classes, 0 … {shape[3] - 1}"
            )
    return replace(data, name=name, num_classes=shape[3], mean=(MEAN,) * shape[0], std=(STD,) * shape[0])


def _read(name: str, source: str) -> tuple[ImageData, bool]:
    """The images, and whether some are test images of their own."""
    file, colon, function = source.rpartition(":")
    if colon and file.endswith(".py"):
        return _from_function(name, file, function), False
    path = Path(source).expanduser()
    if path.suffix.lower() == ".npz":
        return _from_npz(name, path)
    if not path.is_dir():
        raise AsflError(f"{source}: no such folder; images are a folder, a file .npz, or file.py:function")
    return _from_pictures(name, path), False


def _from_npz(name: str, path: Path) -> tuple[ImageData, bool]:
    arrays, there = read_arrays(path, ("images", "labels", "scale"))
    if "train_images" in there:
        return own_data(str(path)), True
    if not {"images", "labels"} <= arrays.keys():
        raise AsflError(f"{path}: it must have the arrays images and labels; it has {', '.join(there) or 'none'}")
    scale = one_number(path, "scale", arrays, 255.0)
    check_scale(str(path), scale)
    return _checked(name, str(path), arrays["images"], arrays["labels"], float(scale)), False


def _from_function(name: str, file: str, function: str) -> ImageData:
    if not Path(file).expanduser().is_file():
        raise AsflError(f"{file}: no such file")
    try:
        found = runpy.run_path(str(Path(file).expanduser())).get(function)
        if not callable(found):
            raise AsflError(f"{file} has no function {function}")
        returned = found()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the owner's code does
        reason = str(error) if isinstance(error, AsflError) else f"{type(error).__name__}: {error}"
        raise AsflError(f"{file}:{function}: {reason}") from error
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise AsflError(f"{file}:{function} must return images and labels, not {type(returned).__name__}")
    return _checked(name, f"{file}:{function}", np.asarray(returned[0]), np.asarray(returned[1]), 255.0)


def _from_pictures(name: str, folder: Path) -> ImageData:
    from PIL import Image

    shape = private_shape(name)
    assert shape is not None
    channels, height, width, classes = shape
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    images, labels = [], []
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        label = _label_of(inner.name, folder, classes)
        for file in sorted(path for path in inner.iterdir() if path.suffix.lower() in _PICTURES):
            try:
                with Image.open(file) as picture:
                    pixels = np.asarray(picture.convert(mode).resize((width, height)), dtype=np.uint8)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise AsflError(f"{file}: can't be read as a picture: {error}") from None
            images.append(pixels.reshape(height, width, channels).transpose(2, 0, 1))
            labels.append(label)
            if len(images) > MOST_IMAGES:
                raise AsflError(f"{folder}: more than {MOST_IMAGES:,} pictures; give fewer, or a file .npz")
    if not images:
        raise AsflError(f"{folder}: no pictures in it; it needs a folder of them for each class, named 0, 1, …")
    return _checked(name, str(folder), np.stack(images), np.array(labels), 255.0)


def _label_of(inner: str, folder: Path, classes: int) -> int:
    names = folder / _CLASSES_FILE
    if names.is_file():
        known = names.read_text("utf-8").split("\n")
        known = [line.strip() for line in known if line.strip()]
        if inner in known:
            return known.index(inner)
        raise AsflError(f"{folder / inner}: no class of {names}: {nearest(inner, known)}")
    if not inner.isdecimal() or int(inner) >= classes:
        raise AsflError(
            f"{folder / inner}: the folder of a class is named by its number, 0 … {classes - 1}, or by a name in "
            f"{names}"
        )
    return int(inner)


def _checked(name: str, where: str, images: NDArray[Any], labels: NDArray[Any], scale: float) -> ImageData:
    pixels = as_images(where, "images", images)
    truth = as_labels(where, "labels", labels, len(pixels))
    return _data(name, (pixels, truth), (pixels[:0], truth[:0]), scale)


def _data(name: str, train: Pair, test: Pair, scale: float) -> ImageData:
    channels = train[0].shape[1]
    classes = (private_shape(name) or (0, 0, 0, 0))[3]
    return ImageData(name, *train, *test, classes, (MEAN,) * channels, (STD,) * channels, scale)
