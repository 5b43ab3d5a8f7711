"""Messages: declared once, as dataclasses (`asfl.field.messages`), and the same bytes for every transport.

    prefix   magic, version, length of the header
    header   JSON in UTF-8: {"op", "fields", "tensors": [[dtype, shape, strides], ...]}
    data     each tensor's bytes, little-endian, in the order of its memory, from a multiple of 64 bytes on

Fields are those of the dataclass, and of the dataclasses within it; a tensor is {"tensor": its place in the list}.
Nothing is ever executed. What arrives is checked against the declaration: names, types, ranges, element types. Shapes
depend on the network and the cut (`asfl.field.messages`).

A tensor keeps its strides, channels-last for example, and begins on a 64-byte line as PyTorch's own do. Kernels round
differently for either, and a round between processes must give the same bits as one in a single process.
"""

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.config.fields import explain
from asfl.train.quantise import QuantisedLayers

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Data: TypeAlias = bytes | bytearray | memoryview | Tensor

MAGIC, VERSION = b"ASFL", 2
HEADER_LIMIT = 1 << 20
_LINE = 64
"""Bytes; PyTorch begins new tensors at multiples of it."""
_PREFIX = struct.Struct("<4sII")
_Dtype = Literal["float32", "float64", "int64", "int16", "uint8"]
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(_Dtype)}
DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
LARGEST = 1 << 48
"""No number of bytes, axis or count is above it."""
_Axes = Annotated[list[Annotated[int, Field(strict=True, ge=0, le=LARGEST)]], Field(max_length=8)]


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid")

    op: Annotated[str, Field(pattern="^[a-z]{1,32}$")]
    content: Annotated[dict[str, Any], Field(alias="fields")]
    tensors: Annotated[list[tuple[_Dtype, _Axes, _Axes]], Field(max_length=64)]


MOST_WEIGHT, MOST_SQUARE = 1e6, 1e12
"""Sizes that parameters, activations and gradients, and squares of such, never have while anything is learnt."""
MOST_SECONDS = 1e6
"""Eleven days: nothing that is asked takes so long."""
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("statistics", "moments"), (-MOST_SQUARE, MOST_SQUARE)),
    **dict.fromkeys(("norm2", "error"), (0, MOST_SQUARE)),
    **dict.fromkeys(("loss", "step"), (0, MOST_WEIGHT)),
    **dict.fromkeys(("busy_s", "seconds"), (0, MOST_SECONDS)),
    "bits": (4, 32),
}
"""{field: least and most}. Other tensors of floats are within ±`MOST_WEIGHT`, everything else within 0 … `LARGEST`."""
_KNOWN_TO_BOTH = (QuantisedLayers, "sizes")
"""A field that doesn't cross: the receiver, who knows the network, fills it in (`Shapes.check_layers`)."""


class WireError(AsflError):
    """What arrived is not what was agreed on."""


# ---------------------------------------------------------------------- messages
_CLASSES: "dict[str, type[Message]]" = {}


@dataclass_transform(frozen_default=True, eq_default=False)
class Message:
    """Base of everything that is sent; what inherits from it is a frozen dataclass."""

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        super().__init_subclass__()
        _CLASSES[cls.__name__.lower()] = dataclass(frozen=True, eq=False, kw_only=kw_only)(cls)

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def payload_bytes(self) -> int:
        """Bytes of its tensors; everything else is small."""
        tensors: list[Tensor] = []
        _plain(self, tensors)
        return sum(tensor.nbytes for tensor in tensors)


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """The message as bytes."""
    tensors: list[Tensor] = []
    return pack(message.name, _plain(message, tensors), tensors)


def decode(data: Data, kind: type[M], limit: int = LARGEST) -> M:
    """The message of this kind in these bytes, or a `WireError`."""
    name, plain, tensors = unpack(data, limit)
    found = _CLASSES.get(name)
    if found is None or not issubclass(found, kind):
        raise WireError(f"{short(name)} instead of a message of kind {kind.__name__.lower()}")
    left = dict(enumerate(tensors))
    try:
        message: M = _read(found, plain, "", left)
    except ValueError as error:
        raise WireError(f"{name}: {error}") from None
    if left:
        raise WireError(f"{name}: {len(left)} tensors too many")
    return message


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """A value as JSON; its tensors go to the list."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if is_dataclass(value):
        kind: Any = type(value)
        return {name: _plain(getattr(value, name), tensors) for name, _ in _declared(kind)}
    if isinstance(value, tuple):
        return [_plain(entry, tensors) for entry in value]
    return to_jsonable_python(value)


@cache
def _declared(kind: Any) -> list[tuple[str, Any]]:
    """Names and types of the fields of a dataclass that cross."""
    hints = get_type_hints(kind, include_extras=True)
    return [(field.name, hints[field.name]) for field in fields(kind) if (kind, field.name) != _KNOWN_TO_BOTH]


def _read(kind: Any, value: Any, name: str, tensors: dict[int, Tensor]) -> Any:
    """What is declared as `kind`, from JSON and the tensors not taken yet; ValueError if it is something else."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        found = _read(parts[0], value, name, tensors)
        for check in parts[1:]:
            check(name, found)
        return found
    is_tensor = isinstance(value, dict) and value.keys() == {"tensor"}
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        options = [part for part in parts if part is not NoneType]
        kind = next((part for part in options if (part is Tensor) == is_tensor), options[0])
        return _read(kind, value, name, tensors)
    if kind is Tensor or origin is np.ndarray:
        tensor = tensors.pop(value["tensor"], None) if is_tensor and type(value["tensor"]) is int else None
        if tensor is None:
            raise ValueError(f"{name} = {short(value)} must be a tensor")
        _check_numbers(name, tensor)
        return tensor if kind is Tensor else tensor.numpy()
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} = {short(value)} must be a list")
        return tuple(_read(parts[0], entry, f"{name}.{place}", tensors) for place, entry in enumerate(value))
    if is_dataclass(kind):
        return _read_dataclass(kind, value, name, tensors)
    if issubclass(kind, BaseModel):
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            raise ValueError(f"the server's {name.rpartition('.')[2]}: {explain(error, kind)}") from None
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"{name} = {short(value)} must be of type {kind.__name__}")
    least, most = RANGES.get(name.rpartition(".")[2], (0, LARGEST))
    if kind in (int, float) and not least <= value <= most:
        raise ValueError(f"{name} = {short(value)} must be {least:g} … {most:g}")
    return value


def _read_dataclass(kind: Any, value: Any, name: str, tensors: dict[int, Tensor]) -> Any:
    dot = f"{name}." if name else ""
    if not isinstance(value, dict):
        raise ValueError(f"{name} = {short(value)} must be an object")
    found: dict[str, Any] = {}
    for part, hint in _declared(kind):
        if part in value:
            found[part] = _read(hint, value[part], f"{dot}{part}", tensors)
        elif kind.__dataclass_fields__[part].default is MISSING:
            raise ValueError(f"{dot}{part} is missing")
    if unknown := value.keys() - found.keys():
        raise ValueError(f"{dot}{short(unknown.pop())} is not a field")
    if kind is _KNOWN_TO_BOTH[0]:
        found[_KNOWN_TO_BOTH[1]] = torch.zeros(0, dtype=torch.int64)
    return kind(**found)


def _check_numbers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.float32, torch.float64, torch.int64) or not tensor.numel():
        return
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise ValueError(f"{name} has numbers that are not finite")
    usual = (-MOST_WEIGHT, MOST_WEIGHT) if tensor.is_floating_point() else (0, LARGEST)
    valid = RANGES.get(name.rpartition(".")[2], usual) if tensor.is_floating_point() else usual
    least, most = (float(edge) for edge in torch.aminmax(tensor))
    if least < valid[0] or most > valid[1]:
        raise ValueError(f"{name} has {least if least < valid[0] else most:g}; valid are {valid[0]:g} … {valid[1]:g}")


def numbers(*dtypes: torch.dtype, axes: int) -> Callable[[str, Tensor], None]:
    """Declares a tensor, in an `Annotated`: one of these element types, and so many axes."""

    def check(name: str, tensor: Tensor) -> None:
        if tensor.dtype not in dtypes or tensor.dim() != axes:
            wanted = " or ".join(DTYPE_NAMES[dtype] for dtype in dtypes)
            found = f"{DTYPE_NAMES[tensor.dtype]} {list(tensor.shape)}"
            raise ValueError(f"{name} is {found}, not {wanted} with {axes} axes")

    return check


def most(limit: int) -> Callable[[str, int | str], None]:
    """Declares the largest value of a number, or the number of letters of a text."""

    def check(name: str, value: int | str) -> None:
        if (len(value) if isinstance(value, str) else value) > limit:
            raise ValueError(f"{name} = {short(value)} must be at most {limit:,}")

    return check


# ---------------------------------------------------------------------- to bytes
def pack(op: str, plain: Any, tensors: Sequence[Tensor]) -> bytes:
    """The message as bytes; other machines read it back to the same bits."""
    pieces: list[bytes | memoryview] = []
    entries: list[Json] = []
    position = 0
    for given in tensors:
        tensor = given.detach().cpu()
        if tensor.dtype not in DTYPE_NAMES or tensor.layout != torch.strided:
            raise WireError(f"{op}: a tensor is {tensor.dtype}, {tensor.layout}; sent are {', '.join(_DTYPES)}")
        if not _is_dense(tensor.shape, tensor.stride()):
            tensor = tensor.contiguous()
        start = _next_line(position)
        entries.append([DTYPE_NAMES[tensor.dtype], list(tensor.shape), list(tensor.stride())])
        flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        pieces += [bytes(start - position), flat.numpy().data]
        position = start + len(flat)
    try:
        header = json.dumps({"op": op, "fields": plain, "tensors": entries}, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"{op}: its fields can't be sent: {error}") from None
    if len(header) > HEADER_LIMIT - _LINE:
        raise WireError(f"{op}: its header has {len(header):,} bytes, more than {HEADER_LIMIT - _LINE:,}")
    header += b" " * (-(_PREFIX.size + len(header)) % _LINE)
    _parse_header(header, op)  # what can't be read is never sent
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *pieces])


# ---------------------------------------------------------------------- from bytes
def new_buffer(size: int) -> Tensor:
    """Room for a message; decoding one that was received into it copies nothing."""
    return torch.empty(size, dtype=torch.uint8)


def unpack(data: Data, limit: int = LARGEST) -> tuple[str, Any, list[Tensor]]:
    """What `pack` was given, or a `WireError`. Nothing large is allocated before everything has been checked."""
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
    header = _parse_header(bytes(view[_PREFIX.size : start]), "message")
    op, places, position = header.op, [], start
    for dtype, shape, _ in header.tensors:
        begin = _next_line(position)
        end = begin + math.prod(shape) * _DTYPES[dtype].itemsize
        if end > size:
            raise WireError(f"{op}: the message ends before its tensors do")
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
    tensors = [
        buffer[begin:end].view(_DTYPES[dtype]).as_strided(shape, strides)
        for (dtype, shape, strides), (begin, end) in zip(header.tensors, places, strict=True)
    ]
    return op, header.content, tensors


def _parse_header(text: bytes, op: str) -> _Header:
    try:
        header = _Header.model_validate_json(text)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, details["loc"]))
        raise WireError(f"{op}: its header is wrong: {short(where)}: {short(details['msg'])}") from None
    for dtype, shape, strides in header.tensors:
        said = f"{dtype} with shape {short(shape)} and strides {short(strides)}"
        if len(shape) != len(strides) or math.prod(max(axis, 1) for axis in shape) > LARGEST:
            raise WireError(f"{op}: no tensor is {said}")
        if not _is_dense(shape, strides):
            raise WireError(f"{op}: a tensor is {said}, which has gaps or overlaps")
    return header


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


def _next_line(position: int) -> int:
    return -(-position // _LINE) * _LINE


def short(value: object) -> str:
    """For an error message: not more than fits, and nothing a terminal could take for a command."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
