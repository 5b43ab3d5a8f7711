"""The kinds of numbers a configuration field can hold: each knows its unit and its valid range."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields as dataclass_fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from asfl.config.errors import AsflError, nearest, short
from asfl.config.names import MAX_WIDTH, Registry
from asfl.config.removed import INSTEAD
from asfl.config.units import parse_quantity

MAX_COUNT = 10**9
MAX_CLIENTS = 10**5
MAX_BLOCKS = 10**4
"""A carrier of 5G NR has 273 resource blocks."""
LEAST = 1e-60
"""Of numbers that aren't 0. Densities of noise are around 1e-21, energies of a cycle around 1e-28."""


@dataclass(frozen=True)
class StoredIn:
    """The unit a field is stored in; text such as "1 MHz" is converted to it."""

    symbol: str


def _number_in(unit: str) -> BeforeValidator:
    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticCustomError("number", "must be a number, not true or false")
        if isinstance(value, str) and value not in ("auto", "off"):
            try:
                value = parse_quantity(value, unit)
            except AsflError as error:
                raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None
        if is_tiny(value):
            raise PydanticCustomError("quantity", "{reason}", {"reason": too_small(value)})
        return value

    return BeforeValidator(convert)


def is_tiny(value: Any) -> bool:
    """Whether it is a number so near to 0 that what is divided by it has no end."""
    return isinstance(value, float) and 0 < abs(value) < LEAST


def too_small(value: float) -> str:
    return f"{value:g} is too small to compute with; nothing real is below {LEAST:g}"


# Upper bounds are far above what any real experiment has, and low enough that products of some of them stay finite.
Hertz = Annotated[float, StoredIn("Hz"), Gt(0), Le(1e15), _number_in("Hz")]
Watt = Annotated[float, StoredIn("W"), Gt(0), Le(1e9), _number_in("W")]
WattPerHertz = Annotated[float, StoredIn("W/Hz"), Gt(0), Le(1), _number_in("W/Hz")]
NonNegativeSecond = Annotated[float, StoredIn("s"), Ge(0), Le(1e9), _number_in("s")]
BitPerSecond = Annotated[float, StoredIn("bit/s"), Gt(0), Le(1e15), _number_in("bit/s")]
Meter = Annotated[float, StoredIn("m"), Gt(0), Le(1e9), _number_in("m")]
MeterPerSecond = Annotated[float, StoredIn("m/s"), Ge(0), Le(1e3), _number_in("m/s")]
CyclesPerFlop = Annotated[float, StoredIn("cycles/FLOP"), Gt(0), Le(1e9), _number_in("cycles/FLOP")]
JoulePerCycleHertz2 = Annotated[float, StoredIn("J/(cycle·Hz²)"), Gt(0), Le(1), _number_in("J/(cycle·Hz²)")]
Positive = Annotated[float, Gt(0), Le(1e12), _number_in("plain units")]
NonNegative = Annotated[float, Ge(0), Le(1e12), _number_in("plain units")]
Amount = Annotated[float, Ge(0), Le(1e30), _number_in("plain units")]
Exponent = Annotated[float, Gt(0), Le(20), _number_in("plain units")]
Width = Annotated[float, Gt(0), Le(MAX_WIDTH), _number_in("plain units")]
Share = Annotated[float, Ge(0), Le(1), _number_in("plain units")]
ShareBelowOne = Annotated[float, Ge(0), Lt(1), _number_in("plain units")]
PositiveShare = Annotated[float, Gt(0), Le(1), _number_in("plain units")]
Count = Annotated[int, Field(strict=True), Ge(1), Le(MAX_COUNT)]
Clients = Annotated[int, Field(strict=True), Ge(1), Le(MAX_CLIENTS)]
Blocks = Annotated[int, Field(strict=True), Ge(1), Le(MAX_BLOCKS)]
Index = Annotated[int, Field(strict=True), Ge(0), Le(10**18)]

AutoSecond = Annotated[Annotated[float, Gt(0), Le(1e9)] | Literal["auto"], StoredIn("s"), _number_in("s")]
OutageSecond = Annotated[Annotated[float, Gt(0), Le(1e9)] | Literal["auto", "off"], StoredIn("s"), _number_in("s")]
AutoJoule = Annotated[Annotated[float, Gt(0), Le(1e12)] | Literal["auto"], StoredIn("J"), _number_in("J")]
OffSecond = Annotated[Annotated[float, Gt(0), Le(1e9)] | Literal["off"], StoredIn("s"), _number_in("s")]
Joule = Annotated[float, StoredIn("J"), Gt(0), Le(1e12), _number_in("J")]
OffJoules = Annotated[Joule | Literal["off"] | list[Joule], StoredIn("J"), _number_in("J")]
AutoShare = Annotated[Annotated[float, Ge(0), Le(1)] | Literal["auto"], _number_in("plain units")]
ClockCount = Annotated[int, Field(strict=True), Ge(1), Le(MAX_COUNT)] | Literal["clock"]
AutoPositive = Annotated[Annotated[float, Gt(0), Le(1e12)] | Literal["auto"], _number_in("plain units")]
AutoIndex = Annotated[int, Field(strict=True), Ge(0), Le(MAX_CLIENTS)] | Literal["auto"]


CHECK_NAMES = {"check_names": True}
"""Context of a validation: a person wrote this, so names must be known here. What a run left behind is read without it:
its names may be those of a plugin, and nobody needs the plugin to look at the run."""


def known_name(known: Callable[[str], bool], explain: Callable[[str], str]) -> AfterValidator:
    """A name that ships or was registered; which ones were is known only when a value is checked."""

    def check(name: str, info: ValidationInfo) -> str:
        if info.context == CHECK_NAMES and not known(name):
            raise PydanticCustomError("name", "{reason}", {"reason": explain(name)})
        return name

    return AfterValidator(check)


def _file_name(name: str) -> str:
    """What a file system can have."""
    parts = name.encode("utf-8", "replace").split(b"/")
    if "\0" in name or len(name) > 4000 or max(map(len, parts)) > 255:
        reason = f"{short(name)} is no name of a file: it has a NUL, or more than 255 bytes between two /"
        raise PydanticCustomError("name", "{reason}", {"reason": reason})
    return name


FILE_NAME = AfterValidator(_file_name)
FileName = Annotated[str, FILE_NAME]


def known_settings(registry: Registry[Any], name: str, own: "OwnSettings", info: ValidationInfo) -> None:
    """The same for what `[….own]` gives to something registered."""
    if info.context == CHECK_NAMES:
        registry.settings(name, dict(own.items()))


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused, every field documented where it is declared."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


@dataclass(frozen=True)
class WrittenAs:
    """How JSON has a part: as a section, of which the part is made; left out, the section has its usual values."""

    section: type[Section]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = handler.generate_schema(self.section)
        return core_schema.with_default_schema(written, default_factory=self.section)


class OwnSettings(Section):
    """Settings of a plugin, each a text, a number, or true or false; only the plugin knows their names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, bool | int | float | str] = Field(init=False)

    def items(self) -> tuple[tuple[str, Any], ...]:
        """In the order of their names."""
        return tuple(sorted((self.model_extra or {}).items()))


def unit_of(field: FieldInfo) -> str:
    """The unit symbol of a field, "" if it has none."""
    return next((item.symbol for item in field.metadata if isinstance(item, StoredIn)), "")


def valid_range(field: FieldInfo) -> str:
    """What a field accepts, in words: "> 0", "0 … 1", "one of: a, b"."""
    return " or ".join(dict.fromkeys(_ranges(field.annotation, list(field.metadata))))


def _ranges(annotation: Any, metadata: list[Any]) -> list[str]:
    if hasattr(annotation, "__metadata__"):
        return _ranges(annotation.__origin__, [*metadata, *annotation.__metadata__])
    choices: tuple[Any, ...] = get_args(annotation)
    if getattr(annotation, "__origin__", None) is Literal:
        return [("one of " if len(choices) > 1 else "") + ", ".join(f'"{choice}"' for choice in choices)]
    if getattr(annotation, "__origin__", None) is dict:
        return ["sections, each with a name"]
    if getattr(annotation, "__origin__", None) is list:
        return ["a list, each entry " + " or ".join(_ranges(choices[0], []))]
    if annotation is type(None):
        return []
    if choices:  # a union such as float | "auto"
        return [text for choice in choices for text in _ranges(choice, metadata)]
    if annotation in (bool, str):
        return ["true or false" if annotation is bool else "text"]
    low = next((f"> {_bound(m.gt)}" for m in metadata if isinstance(m, Gt)), None)
    low = low or next((f"≥ {_bound(m.ge)}" for m in metadata if isinstance(m, Ge)), None)
    high = next((f"≤ {_bound(m.le)}" for m in metadata if isinstance(m, Le)), None)
    high = high or next((f"< {_bound(m.lt)}" for m in metadata if isinstance(m, Lt)), None)
    kind = "a whole number" if annotation is int else "a number"
    return [" ".join([kind, " and ".join(bound for bound in (low, high) if bound)]).strip()]


def _bound(value: Any) -> str:
    """1000000 as 1,000,000, but 1e15 as 1e15."""
    return (
        f"{value:,}"
        if isinstance(value, int) and value < 10**12
        else f"{value:g}".replace("e+0", "e").replace("e+", "e")
    )


# ---------------------------------------------------------------------- what is wrong with a value
Model = type[Any]
"""A section of a configuration, or a dataclass."""


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def explain(error: ValidationError, model: Model, sources: Mapping[str, str] | None = None) -> str:
    """One line per mistake. `sources` says which file or option set a field."""
    every = error.errors(include_url=False)
    # Parts that are left out follow others; where these are wrong, that is enough to say.
    told = [details for details in every if details["type"] != "default_factory_not_called"]
    lines = [_explain_one(details, model, sources or {}) for details in told]
    return "\n".join(dict.fromkeys(lines))


def _explain_one(details: ErrorDetails, model: Model, sources: Mapping[str, str]) -> str:
    path, field, section = _locate(details, model)
    kind, message, value = details["type"], details["msg"], short(details.get("input"))
    if kind == "value_error":  # our own validators name the fields themselves
        return (f"{path}." if path else "") + message.removeprefix("Value error, ")
    exact = sources.get(path)
    source = exact or next((source for key, source in sources.items() if key.startswith(f"{path}.")), None)
    where = f" (set in {source})" if source else ""
    if kind in _UNKNOWN:
        return f"unknown key {short(path)}: {_nearest_key(path, section, model)}{where}"
    if kind == "missing":
        return f"{path} is missing"
    if kind in ("quantity", "name"):
        return f"{path}: {message}{where}"
    if kind in ("model_type", "model_attributes_type", "dataclass_type"):
        return f"{path} = {value} must be a section with fields of its own{where}"
    if kind == "dict_type":
        return f"{path} = {value} must be sections, each with a name{where}"
    if kind == "string_pattern_mismatch":
        return f"{path}: a name has small letters, digits, - and _{where}"
    if field is None:  # an entry of a list
        return f"{path} = {value}: {message[0].lower()}{message[1:]}{where}"
    unit = unit_of(field)
    return f"{path} = {value} must be {valid_range(field)}" + (f", in {unit}" if unit else "") + where


def _locate(details: ErrorDetails, model: Model) -> tuple[str, FieldInfo | None, Model]:
    """The dotted path of the mistake, the field it is in (None inside a list), and the innermost section.

    pydantic's locations also name union members ("columns", "float"); those are not part of the path.
    """
    path, field, section = "", None, model
    open_section: Model | None = model
    for part in details["loc"]:
        if isinstance(part, int):
            path, field = f"{path}[{part}]", None
        elif open_section is not None and part in (fields := _fields_of(open_section)):
            field = fields[part]
            path = f"{path}.{part}" if path else part
            written = (each.section for each in field.metadata if isinstance(each, WrittenAs))
            open_section = next(written, None) or _section_in(field.annotation)
            section = open_section or section
        elif field is not None and get_origin(field.annotation) is dict and part != "[key]":
            path, field = f"{path}.{part}", None  # the name of one of several sections
    if details["type"] in _UNKNOWN:
        key = str(details["loc"][-1])
        path = f"{path}.{key}" if path else key
    return path, field, section


def _fields_of(section: Model) -> dict[str, FieldInfo]:
    if issubclass(section, BaseModel):
        return section.model_fields
    hints = get_type_hints(section, include_extras=True)
    return {field.name: FieldInfo.from_annotation(hints[field.name]) for field in dataclass_fields(section)}


def _section_in(annotation: Any) -> Model | None:
    """The section a field holds, also behind Annotated, Optional or a union with a plain value."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _section_in(arg)) is not None), None)


def _nearest_key(path: str, section: Model, model: Model) -> str:
    """Look for the key's exact name in every other section first, then for one like it in its own."""
    key = path.rpartition(".")[2]
    if "." in path and path in INSTEAD:  # other names that are gone are of commands and schemes
        return nearest(path, ())
    elsewhere = next((name for name in _all_keys(model) if name.rpartition(".")[2] == key), None)
    return f"did you mean '{elsewhere}'?" if elsewhere else nearest(key, _fields_of(section))


def _all_keys(model: Model, prefix: str = "") -> Iterator[str]:
    for name, field in _fields_of(model).items():
        yield prefix + name
        section = _section_in(field.annotation)
        if section is not None:
            inside = "NAME." if get_origin(field.annotation) is dict else ""
            yield from _all_keys(section, f"{prefix}{name}.{inside}")
