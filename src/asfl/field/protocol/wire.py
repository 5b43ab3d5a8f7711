"""The bytes of a message: a word, a few plain values, and tensors. Nothing in it is ever executed.

    prefix   magic, version, length of the header
    header   JSON in UTF-8: {"op", "fields", "tensors": [[name, dtype, shape, strides], ...]}
    data     each tensor's bytes, little-endian, in the order of its memory, from a multiple of 64 bytes on

A tensor keeps its strides, channels-last for example, and begins on a 64-byte line as PyTorch's own do. Kernels round
differently for either, and a round between processes must give the same bits as one in a single process. Zeros fill
the gaps.
"""

import json
import math
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from asfl.config.errors import AsflError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Data: TypeAlias = bytes | bytearray | memoryview | Tensor

MAGIC, VERSION = b"ASFL", 1
HEADER_LIMIT = 1 << 20
_LINE = 64
"""Bytes; PyTorch begins new tensors at multiples of it."""
_PREFIX = struct.Struct("<4sII")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8)
}
DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_TENSORS, _MOST_AXES, _MOST_DEPTH = 64, 8, 8
LARGEST = 1 << 48
"""No number of bytes, axis or count is above it."""
_OP, NAME = re.compile(r"[a-z]{1,32}"), re.compile(r"[a-z0-9_.]{1,64}")
MOST_LETTERS = 500
"""Of what somebody else wrote."""


class WireError(AsflError):
    """What arrived is not what was agreed on."""


# ---------------------------------------------------------------------- to bytes
def pack(op: str, fields: Mapping[str, Json], tensors: Mapping[str, Tensor]) -> bytes:
    """The message as bytes; other machines read it back to the same bits."""
    _little_endian()
    pieces: list[bytes | memoryview] = []
    entries: list[Json] = []
    position = 0
    for name, given in tensors.items():
        tensor = given.detach().cpu()
        if tensor.dtype not in DTYPE_NAMES or tensor.layout != torch.strided:
            raise WireError(f"{op}: {name} is {tensor.dtype}, {tensor.layout}; sent are {', '.join(_DTYPES)}")
        if not _is_dense(tensor.shape, tensor.stride()):
            tensor = tensor.contiguous()
        start = _next_line(position)
        entries.append([name, DTYPE_NAMES[tensor.dtype], list(tensor.shape), list(tensor.stride())])
        flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        pieces += [bytes(start - position), flat.numpy().data]
        position = start + len(flat)
    header = _header(op, fields, entries)
    header += b" " * (-(_PREFIX.size + len(header)) % _LINE)
    _parse_header(header, op)  # what can't be read is never sent
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *pieces])


def _header(op: str, fields: Mapping[str, Json], entries: list[Json]) -> bytes:
    try:
        text = json.dumps({"op": op, "fields": dict(fields), "tensors": entries}, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"{op}: its fields can't be sent: {error}") from None
    if len(text) > HEADER_LIMIT - _LINE:
        raise WireError(f"{op}: its header has {len(text):,} bytes, more than {HEADER_LIMIT - _LINE:,}")
    return text.encode()


# ---------------------------------------------------------------------- from bytes
def new_buffer(size: int) -> Tensor:
    """Room for a message; decoding one that was received into it copies nothing."""
    return torch.empty(size, dtype=torch.uint8)


def unpack(data: Data, limit: int = LARGEST) -> tuple[str, dict[str, Json], dict[str, Tensor]]:
    """What `pack` was given, or a `WireError`. Nothing large is allocated before everything has been checked."""
    _little_endian()
    size = len(data)
    if size > limit:
        raise WireError(f"a message of {size:,} bytes, more than the {limit:,} agreed on")
    view = data.numpy().data if isinstance(data, Tensor) else memoryview(data)
    if size < _PREFIX.size:
        raise WireError(f"a message of {size} bytes: too short")
    magic, version, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise WireError("not a message: it begins otherwise")
    if version != VERSION:
        raise WireError(f"a message of version {version}; this is version {VERSION}")
    start = _PREFIX.size + length
    if length > HEADER_LIMIT or start > size:
        raise WireError(f"a message of {size:,} bytes with a header of {length:,}")
    op, fields, layouts = _parse_header(bytes(view[_PREFIX.size : start]), "message")
    places, position = [], start
    for layout in layouts:
        begin = _next_line(position)
        end = begin + layout.size
        if end > size:
            raise WireError(f"{op}: the message ends before {layout.name} does")
        if any(view[position:begin]):
            raise WireError(f"{op}: something between the tensors")
        places.append((begin, end))
        position = end
    if position != size:
        raise WireError(f"{op}: {size - position:,} bytes too many")
    if isinstance(data, Tensor):
        buffer = data
    else:
        buffer = new_buffer(size)
        buffer.numpy()[:] = view
    tensors = {
        layout.name: buffer[begin:end].view(layout.dtype).as_strided(layout.shape, layout.strides)
        for layout, (begin, end) in zip(layouts, places, strict=True)
    }
    return op, fields, tensors


@dataclass(frozen=True)
class _Layout:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _parse_header(text: bytes, op: str) -> tuple[str, dict[str, Json], list[_Layout]]:
    try:
        header = json.loads(
            text.decode("utf-8"), object_pairs_hook=_without_twins, parse_float=_finite, parse_constant=_finite
        )
    except (ValueError, RecursionError) as error:
        raise WireError(f"{op}: its header is not plain JSON ({str(error)[:100]})") from None
    if not isinstance(header, dict) or header.keys() != {"op", "fields", "tensors"}:
        raise WireError(f"{op}: its header must have op, fields and tensors, and nothing else")
    op, fields, entries = header["op"], header["fields"], header["tensors"]
    if not isinstance(op, str) or not _OP.fullmatch(op):
        raise WireError(f"op = {short(op)} must be a word in small letters")
    if not isinstance(fields, dict) or _is_deeper(fields, _MOST_DEPTH):
        raise WireError(f"{op}: fields must be an object, at most {_MOST_DEPTH} deep")
    if not isinstance(entries, list) or len(entries) > _MOST_TENSORS:
        raise WireError(f"{op}: tensors must be a list of at most {_MOST_TENSORS}")
    layouts = [_parse_layout(op, entry) for entry in entries]
    if len({layout.name for layout in layouts}) < len(layouts):
        raise WireError(f"{op}: two tensors have the same name")
    return op, fields, layouts


def _parse_layout(op: str, entry: Json) -> _Layout:
    if not isinstance(entry, list) or len(entry) != 4:
        raise WireError(f"{op}: a tensor is described by name, dtype, shape and strides")
    name, dtype, shape, strides = entry
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise WireError(f"{op}: {short(name)} is no name of a tensor")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise WireError(f"{op}: {name} has dtype {short(dtype)}; known are {', '.join(_DTYPES)}")
    axes, steps = _naturals(shape), _naturals(strides)
    if axes is None or steps is None or len(axes) != len(steps) or math.prod(max(axis, 1) for axis in axes) > LARGEST:
        raise WireError(f"{op}: {name} has shape {short(shape)} and strides {short(strides)}")
    if not _is_dense(axes, steps):
        raise WireError(f"{op}: {name} with shape {short(shape)} and strides {short(strides)} has gaps or overlaps")
    return _Layout(name, _DTYPES[dtype], axes, steps)


def _naturals(values: Json) -> tuple[int, ...] | None:
    """At most 8 whole numbers from 0 on, or None."""
    if not isinstance(values, list) or len(values) > _MOST_AXES:
        return None
    found = tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= LARGEST)
    return found if len(found) == len(values) else None


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill their piece of memory, each place once, in whatever order of axes."""
    if 0 in shape:
        return True
    expected = 1
    for stride, length in sorted((stride, length) for length, stride in zip(shape, strides, strict=True) if length > 1):
        if stride != expected:
            return False
        expected *= length
    return True


def _without_twins(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _is_deeper(value: Json, than: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return than == 0 or any(_is_deeper(entry, than - 1) for entry in inner)


def _next_line(position: int) -> int:
    return -(-position // _LINE) * _LINE


def short(value: object) -> str:
    """For an error message: not more than fits, and nothing a terminal could take for a command."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def words_of(text: str) -> str:
    """What somebody else wrote, for records, logs and errors: cut, and nothing in it moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_LETTERS])


def _little_endian() -> None:
    if sys.byteorder != "little":
        raise WireError("messages are little-endian; this machine is not")
