"""Print a configuration as TOML that can be saved and edited, with unit, range and source behind every value."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from asfl.config.fields import unit_of, valid_range
from asfl.config.load import Resolved


def as_toml(resolved: Resolved, with_docs: bool = False) -> str:
    """The resolved tree; `with_docs` puts each field's description above it."""
    rows = list(_rows(resolved.config))
    width = min(44, max(len(f"{key} = {_toml(value)}") for _, key, value, _ in rows))
    lines: list[str] = []
    section = None
    for name, key, value, field in rows:
        if name != section:
            lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
            section = name
        if with_docs:
            lines.append("# " + " ".join((field.description or "").split()))
        notes = [unit_of(field), valid_range(field), resolved.sources[f"{name}.{key}"]]
        lines.append(f"{f'{key} = {_toml(value)}':<{width}}  # " + " · ".join(note for note in notes if note))
    return "\n".join(lines)


def _rows(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, Any, Any]]:
    """Plain fields before sub-sections, as TOML wants it."""
    subsections = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            subsections.append((name, value))
        else:
            yield prefix, name, value, field
    for name, value in subsections:
        yield from _rows(value, f"{prefix}.{name}" if prefix else name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    short = f"{value:g}".replace("e+", "e").replace("e0", "e") if isinstance(value, float) else repr(value)
    return short if float(short) == value else repr(value)
