"""Print a configuration as TOML that can be saved and edited, with unit, range and source behind every value."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tomlkit
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from asfl.config.errors import AsflError, nearest
from asfl.config.fields import unit_of, valid_range
from asfl.config.load import Resolved
from asfl.config.tree import Config, SchemeTraining


def as_toml(resolved: Resolved, with_docs: bool = False, width: int | None = None) -> str:
    """The resolved tree; `with_docs` puts each field's description above it.

    Lines that would be wider than `width` have their comment above them, wrapped.
    """
    rows = [row for row in _rows(resolved.config) if row[2] is not None]
    column = min(44, max(len(f"{key} = {toml_value(value)}") for _, key, value, _ in rows))
    lines: list[str] = []
    section = None
    for name, key, value, field in rows:
        if name != section:
            lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
            section = name
        meaning = _one_line(field.description or "")
        if with_docs:
            lines += _comments(meaning, width)
        notes = ["" if with_docs else _first_sentence(meaning), unit_of(field), valid_range(field)]
        notes.append(resolved.sources[f"{name}.{key}"])
        comment = _one_line(" · ".join(note for note in notes if note))
        line = f"{key} = {toml_value(value)}"
        beside = f"{line:<{column}}  # {comment}"
        lines += [beside] if width is None or len(beside) <= width else [*_comments(comment, width), line]
    if with_docs and not resolved.config.schemes:
        lines += ["", "# [schemes.NAME]", *_comments(SchemeTraining.__doc__ or "", width)]
        for key, field in SchemeTraining.model_fields.items():
            lines += _comments(f"{key} = …  # {valid_range(field)}: {_one_line(field.description or '')}", width)
    return "\n".join(lines)


def _comments(text: str, width: int | None) -> list[str]:
    return [f"# {text}"] if width is None else textwrap.wrap(f"# {text}", width, subsequent_indent="# ")


def field_names() -> list[str]:
    """Every field of the configuration, as `--set` names it."""
    return [f"{name}.{key}" for name, key, _, _ in _rows(Config())]


def describe(name: str, others: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Meaning, valid values and default of a field; of a section, each field in a line. As pairs of topic and words.

    A part of a name will do if it is the end of only one. `others`: names besides fields, for the hint of an error.
    """
    rows = {f"{section}.{key}": (value, field) for section, key, value, field in _rows(Config())}
    of_schemes = {f"schemes.NAME.{key}": (None, field) for key, field in SchemeTraining.model_fields.items()}
    rows |= of_schemes
    inside = [field for field in rows if field.startswith(f"{name}.")]
    if inside:
        return [(field, _first_sentence(_one_line(rows[field][1].description or ""))) for field in inside]
    found = [field for field in rows if field == name or field.endswith(f".{name}")]
    if not found:
        whole = [field for field in rows if name in field.rpartition(".")[2]]
        hint = (
            f"did you mean {' or '.join(whole)}?"
            if 0 < len(whole) < 4
            else nearest(name, [*rows, *_last(rows), *others])
        )
        raise AsflError(f"no field '{name}': {hint}")
    if len(found) > 1:
        raise AsflError(f"'{name}' is the name of {len(found)} fields: {', '.join(found)}")
    value, field = rows[found[0]]
    unit = f", in {unit_of(field)}" if unit_of(field) else ""
    lines = [("meaning", _one_line(field.description or "")), ("valid", f"{valid_range(field)}{unit}")]
    return [("field", found[0]), *lines, *([] if value is None else [("default", toml_value(value))])]


def _last(names: Iterable[str]) -> list[str]:
    return [name.rpartition(".")[2] for name in names]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.;]) ", text, maxsplit=1)[0].rstrip(".;")


def own_settings(config: Config) -> str:
    """What single schemes have of their own, in words: "epsl: learning_rate 0.0003, local_steps 5; …"."""
    of_schemes = {name: own.model_dump(exclude_none=True) for name, own in config.schemes.items()}
    return "; ".join(
        f"{name}: {', '.join(f'{key} {toml_value(value)}' for key, value in own.items())}"
        for name, own in of_schemes.items()
        if own
    )


def _rows(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, Any, Any]]:
    """Plain fields before sub-sections, as TOML wants it."""
    subsections = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            subsections.append((name, value))
        elif isinstance(value, dict):
            subsections += [(f"{name}.{key}", one) for key, one in value.items()]
        else:
            yield prefix, name, value, field
    for name, value in (section.model_extra or {}).items():
        yield prefix, name, value, FieldInfo(annotation=type(value), description="For the plugin that knows it.")
    for name, value in subsections:
        yield from _rows(value, f"{prefix}.{name}" if prefix else name)


def toml_value(value: Any) -> str:
    """A value as TOML has it, and as `--set` reads it."""
    if not isinstance(value, float):
        return str(tomlkit.item(value).as_string())
    short = f"{value:g}".replace("e+", "e").replace("e0", "e")
    return short if float(short) == value else repr(value)


def _one_line(text: str) -> str:
    """What may stand in a comment: no line breaks, no control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
