"""Reads the python files of CIFAR without trusting them: a pickle can name any function, and only four may run.

The files were written by Python 2: text is bytes, read as latin-1, and NumPy's modules have their old names.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError


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
