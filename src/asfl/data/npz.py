"""NPZ archives of plain arrays, from people one needn't trust."""

import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError


def read_arrays(path: Path, wanted: Collection[str]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The wanted arrays that are in the archive, and the names of all; nothing in it is ever unpickled."""
    try:
        # Opened here, for np.load leaves the file open when the archive is damaged.
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise AsflError(f"{path}: not an NPZ archive, or an incomplete one; numpy.savez writes them")
            archive = cast(np.lib.npyio.NpzFile, np.load(file, allow_pickle=False))
            return {name: np.asarray(archive[name]) for name in archive.files if name in wanted}, archive.files
    except (OSError, EOFError, ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise AsflError(f"{path}: can't be read as an NPZ archive of plain arrays: {error}") from error
