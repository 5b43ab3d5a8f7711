"""NPZ archives of plain arrays, from people one needn't trust."""

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.config.files import check_memory, open_to_read

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
