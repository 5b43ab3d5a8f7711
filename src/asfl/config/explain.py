"""Turn a validation error into sentences: the field, its value, what would be valid, and where it was set."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from asfl.config.errors import nearest, short
from asfl.config.fields import unit_of, valid_range


def explain(error: ValidationError, model: type[BaseModel], sources: Mapping[str, str] | None = None) -> str:
    """One line per mistake. `sources` says which file or option set a field."""
    lines = [_explain_one(details, model, sources or {}) for details in error.errors(include_url=False)]
    return "\n".join(dict.fromkeys(lines))


def _explain_one(details: ErrorDetails, model: type[BaseModel], sources: Mapping[str, str]) -> str:
    path, field, section = _locate(details, model)
    kind, message, value = details["type"], details["msg"], short(details.get("input"))
    if kind == "value_error":  # our own validators name the fields themselves
        return (f"{path}." if path else "") + message.removeprefix("Value error, ")
    exact = sources.get(path)
    source = exact or next((source for key, source in sources.items() if key.startswith(f"{path}.")), None)
    where = f" (set in {source})" if source else ""
    if kind == "extra_forbidden":
        return f"unknown key {short(path)}: {_nearest_key(path, section, model)}{where}"
    if kind == "missing":
        return f"{path} is missing"
    if kind in ("quantity", "name"):
        return f"{path}: {message}{where}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{path} = {value} must be a section with fields of its own{where}"
    if kind == "dict_type":
        return f"{path} = {value} must be sections, each with a name{where}"
    if kind == "string_pattern_mismatch":
        return f"{path}: a name has small letters, digits, - and _{where}"
    if field is None:  # an entry of a list
        return f"{path} = {value}: {message[0].lower()}{message[1:]}{where}"
    unit = unit_of(field)
    return f"{path} = {value} must be {valid_range(field)}" + (f", in {unit}" if unit else "") + where


def _locate(details: ErrorDetails, model: type[BaseModel]) -> tuple[str, FieldInfo | None, type[BaseModel]]:
    """The dotted path of the mistake, the field it is in (None inside a list), and the innermost section.

    pydantic's locations also name union members ("columns", "float"); those are not part of the path.
    """
    path, field, section = "", None, model
    open_section: type[BaseModel] | None = model
    for part in details["loc"]:
        if isinstance(part, int):
            path, field = f"{path}[{part}]", None
        elif open_section is not None and part in open_section.model_fields:
            field = open_section.model_fields[part]
            path = f"{path}.{part}" if path else part
            open_section = _section_in(field.annotation)
            section = open_section or section
        elif field is not None and get_origin(field.annotation) is dict and part != "[key]":
            path, field = f"{path}.{part}", None  # the name of one of several sections
    if details["type"] == "extra_forbidden":
        key = str(details["loc"][-1])
        path = f"{path}.{key}" if path else key
    return path, field, section


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section a field holds, also behind Annotated, Optional or a union with a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _section_in(arg)) is not None), None)


def _nearest_key(path: str, section: type[BaseModel], model: type[BaseModel]) -> str:
    """Look for the misspelt key in its own section first, then for its exact name in every other."""
    key = path.rpartition(".")[2]
    hint = nearest(key, section.model_fields)
    if hint.startswith("valid"):
        elsewhere = [name for name in _all_keys(model) if name.rpartition(".")[2] == key]
        if elsewhere:
            return f"did you mean '{elsewhere[0]}'?"
    return hint


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        section = _section_in(field.annotation)
        if section is not None:
            inside = "NAME." if get_origin(field.annotation) is dict else ""
            yield from _all_keys(section, f"{prefix}{name}.{inside}")
        else:
            yield prefix + name
