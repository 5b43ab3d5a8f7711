"""From the name of a data set to its images: where they are looked for, and who reads them."""

import os
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from asfl.config.errors import AsflError
from asfl.config.names import DATASETS
from asfl.config.randomness import random_stream
from asfl.data.arrays import own_data, read_npz
from asfl.data.cifar import CIFAR, find_cifar, read_cifar
from asfl.data.images import ImageData
from asfl.data.private import of_server

if TYPE_CHECKING:
    from asfl.config import Config

_LAST_RESORT = Path("data")


def load_data(config: "Config", data_dir: Path | None = None) -> ImageData:
    """The images of `config.data.name`, scored on the test images or (`config.data.validation`) on training images."""
    data, share = _read(config, data_dir), config.data.validation
    if share == 0 or config.data.private:
        return data
    if round(share * len(data.train_labels)) == 0:
        raise AsflError(
            f"data.validation = {share:g} of {len(data.train_labels)} training images is none: hold out more"
        )
    return data.held_out(share, random_stream(config.scenario.seed, "validation"))


def _read(config: "Config", data_dir: Path | None) -> ImageData:
    """Read once and then shared, so asking again costs nothing.

    CIFAR is looked for in `data_dir`, else in the folder the environment variable ASFL_DATA_DIR names;
    and at last in `data` below the current folder.
    """
    name = config.data.name
    if name == "digits":
        return _digits()
    if name in CIFAR:
        return read_cifar(CIFAR[name], find_cifar(CIFAR[name], _folders(data_dir)))
    if config.data.private:
        return of_server(name)
    return own_data(name)


@lru_cache(maxsize=1)
def _digits() -> ImageData:
    """Handwritten digits that ship with the package: 1,797 images of 8×8 pixels with values 0 … 16.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998, https://doi.org/10.24432/C50P49, licence CC BY 4.0; the part that scikit-learn gives as `load_digits`.
    `tools/write_digits.py` wrote the file: the values are unchanged, the split into 1,437 training and 360 test images
    is ours.
    """
    with resources.as_file(resources.files("asfl") / "data" / "digits.npz") as path:
        return read_npz(path, "digits")


def origin_of(config: "Config", data_dir: Path | None = None) -> str:
    """Where those images lie, as an absolute path if they are in a file or folder."""
    name = config.data.name
    if name in CIFAR:
        return str(find_cifar(CIFAR[name], _folders(data_dir)))
    if config.data.private:
        return "on the devices"
    if name in DATASETS:
        return DATASETS.registered_by(name) or "asfl"
    return str(Path(name).expanduser().absolute())


def _folders(data_dir: Path | None) -> list[Path]:
    return list(dict.fromkeys((default_folder(data_dir), _LAST_RESORT)))


def default_folder(given: Path | None) -> Path:
    """The folder for data: the given one, else ASFL_DATA_DIR, else `data` below the current folder."""
    if given is None:
        in_environment = os.environ.get("ASFL_DATA_DIR")
        given = Path(in_environment) if in_environment else _LAST_RESORT
    return given.expanduser()
