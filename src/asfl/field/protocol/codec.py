"""From dataclasses to bytes and back: a message is declared once (`asfl.field.protocol.messages`), both sides use that.

A message becomes a word (the name of its class), plain values and tensors. What lies inside tuples and dataclasses has
dotted names: `carry.0`, `side.parameters`. Whatever arrives is checked against the declaration: names, types, ranges,
element types; and all numbers must be finite and in the range that is declared. Shapes depend on the network and the
cut: `asfl.field.protocol.shapes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, dataclass_transform

import torch
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, to_jsonable_python
from torch import Tensor

from asfl.field.protocol.wire import DTYPE_NAMES, LARGEST, NAME, Data, WireError, pack, short, unpack

_CLASSES: "dict[str, type[Message]]" = {}


@dataclass_transform(frozen_default=True, eq_default=False)
class Message:
    """Base of everything that is sent; whatever inherits from it is a frozen dataclass."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        super().__init_subclass__()
        _CLASSES[cls.__name__.lower()] = dataclass(frozen=True, eq=False, kw_only=kw_only)(cls)

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def payload_bytes(self) -> int:
        """What its tensors take; everything else is small."""
        return sum(leaf.nbytes for _, leaf in _leaves("", self) if isinstance(leaf, Tensor))


M = TypeVar("M", bound=Message)


Range = tuple[float, float]
"""Least and most, both included."""


def numbers(*dtypes: torch.dtype, axes: int | None = None, within: Range | None = None) -> AfterValidator:
    """Declares a tensor: one of these element types, so many axes, finite, in this range."""
    return AfterValidator(lambda tensor: check_numbers(tensor, dtypes, axes, within))


def check_numbers(
    tensor: Tensor, dtypes: Sequence[torch.dtype], axes: int | None, within: Range | None = None
) -> Tensor:
    if tensor.dtype not in dtypes or axes not in (None, tensor.dim()):
        wanted = " or ".join(DTYPE_NAMES[dtype] for dtype in dtypes) + ("" if axes is None else f" with {axes} axes")
        raise ValueError(f"is {DTYPE_NAMES[tensor.dtype]} {list(tensor.shape)}, not {wanted}")
    if tensor.dtype.is_floating_point and not torch.isfinite(tensor).all():
        raise ValueError("has numbers that are not finite")
    if within is not None and tensor.numel():
        least, most = (float(edge) for edge in torch.aminmax(tensor))
        if least < within[0] or most > within[1]:
            raise ValueError(f"has {least if least < within[0] else most:g}; valid are {within[0]:g} … {within[1]:g}")
    return tensor


def encode(message: Message) -> bytes:
    """The message as bytes."""
    leaves = dict(_leaves("", message))
    tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
    plain = {name: to_jsonable_python(leaf) for name, leaf in leaves.items() if not isinstance(leaf, Tensor)}
    return pack(message.name, plain, tensors)


def decode(data: Data, kind: type[M], limit: int = LARGEST) -> M:
    """The message of this kind in these bytes, or a `WireError`."""
    name, plain, tensors = unpack(data, limit)
    found = _CLASSES.get(name)
    if found is None or not issubclass(found, kind):
        raise WireError(f"{short(name)} instead of a message of kind {kind.__name__.lower()}")
    if twice := plain.keys() & tensors.keys():
        raise WireError(f"{name}: {short(twice.pop())} is there twice")
    try:
        message: M = _adapter(name).validate_python(_nested(name, {**plain, **tensors}))
    except ValidationError as error:
        raise WireError(f"{name}: {_sentence(error.errors(include_url=False)[0])}") from None
    return message


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_CLASSES[name])


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Tensors and plain values with their dotted names; None and empty tuples are left out."""
    if value is None:
        return
    if is_dataclass(value):
        inner = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, tuple):
        inner = [(str(place), entry) for place, entry in enumerate(value)]
    else:
        yield name, value
        return
    for key, entry in inner:
        yield from _leaves(f"{name}.{key}" if name else key, entry)


def _nested(op: str, leaves: Mapping[str, Any]) -> Any:
    """The reverse of `_leaves`: dictionaries for dataclasses, tuples where names are 0, 1, 2 …"""
    groups: dict[str, dict[str, Any]] = {}
    found: dict[str, Any] = {}
    for name, leaf in leaves.items():
        first, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(first, {})[rest] = leaf
        else:
            found[first] = leaf
    if twice := found.keys() & groups.keys():
        raise WireError(f"{op}: {short(twice.pop())} is there twice")
    found |= {name: _nested(op, group) for name, group in groups.items()}
    if found.keys() == {str(place) for place in range(len(found))}:
        return tuple(found[str(place)] for place in range(len(found))) if found else {}
    return found


def _sentence(details: ErrorDetails) -> str:
    """What is wrong with one field."""
    name, message = ".".join(map(str, details["loc"])), details["msg"]
    name = name if NAME.fullmatch(name) else short(name)  # a field that nobody declared has any name
    if details["type"] == "value_error":
        return f"{name} {message.removeprefix('Value error, ')}"
    if details["type"] == "missing":
        return f"{name} is missing"
    return f"{name} = {short(details['input'])}: {message[0].lower()}{message[1:]}"
