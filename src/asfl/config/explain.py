"""Turn a validation error into sentences: the field, its value, what would be valid, and where it was set."""

from collections.abc import Iterator, Mapping
from dataclasses import fields as dataclass_fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from asfl.config.errors import nearest, short
from asfl.config.fields import WrittenAs, unit_of, valid_range

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
    elsewhere = next((name for name in _all_keys(model) if name.rpartition(".")[2] == key), None)
    return f"did you mean '{elsewhere}'?" if elsewhere else nearest(key, _fields_of(section))


def _all_keys(model: Model, prefix: str = "") -> Iterator[str]:
    for name, field in _fields_of(model).items():
        yield prefix + name
        section = _section_in(field.annotation)
        if section is not None:
            inside = "NAME." if get_origin(field.annotation) is dict else ""
            yield from _all_keys(section, f"{prefix}{name}.{inside}")
