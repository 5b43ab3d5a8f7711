"""From TOML, presets and `--set` to a validated configuration that remembers where each value came from."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from asfl.config.errors import AsflError, nearest, short
from asfl.config.explain import explain
from asfl.config.fields import CHECK_NAMES
from asfl.config.files import MAX_DEPTH, NotTomlError, is_text, parse_toml, read_text
from asfl.config.tree import Config

DEFAULT_PRESET = "demo"


@dataclass(frozen=True)
class Resolved:
    """A configuration and the source of every value: "default", "preset demo", "file x.toml", "--set"."""

    config: Config
    sources: Mapping[str, str]


@dataclass(frozen=True)
class _Layer:
    values: dict[str, Any]
    source: str


def preset_names() -> list[str]:
    folder = resources.files("asfl") / "config" / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_config(preset_or_file: str | Path | None = None, overrides: Sequence[str] = ()) -> Resolved:
    """Resolve a preset name or a TOML file, then the overrides "a.b=value", into one validated tree.

    A file may name the preset it starts from in a top-level `base = "small-cifar10"`; without it, it starts from
    the defaults.
    """
    layers = [*_base_layers(preset_or_file), *(_override_layer(text) for text in overrides)]
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for path, value in _leaves(layer.values):
            _put(merged, path, value, layer.source)
            sources[".".join(path)] = layer.source
    try:
        config = Config.model_validate(merged, context=CHECK_NAMES)
    except ValidationError as error:
        raise AsflError(explain(error, Config, sources)) from None
    every = dict.fromkeys(by_name(config.model_dump()), "default")
    return Resolved(config, every | sources)


def _base_layers(preset_or_file: str | Path | None) -> list[_Layer]:
    if preset_or_file is None:
        return []
    name = str(preset_or_file)
    if name in preset_names():
        text = (resources.files("asfl") / "config" / "presets" / f"{name}.toml").read_text("utf-8")
        return [_Layer(parse_toml(text, name), f"preset {name}")]
    path = Path(name)
    if path.suffix != ".toml" and not os.path.lexists(path):
        raise AsflError(f"no preset or file {short(name)}: {nearest(name, preset_names())}")
    values = parse_toml(read_text(path), name)
    base = values.pop("base", None)
    if base is not None and (not isinstance(base, str) or base not in preset_names()):
        raise AsflError(f"{name}: base = {short(base)} is not a preset: {nearest(str(base), preset_names())}")
    return [*_base_layers(base), _Layer(values, f"file {path.name}")]


def _override_layer(text: str) -> _Layer:
    path, equals, value = text.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts) or len(parts) > MAX_DEPTH:
        raise AsflError(f"--set {short(text)}: write it as section.field=value, for example --set scenario.clients=20")
    if not is_text(text):  # the shell passes on any bytes
        raise AsflError(f"--set {short(text)} is not in UTF-8")
    values: Any = _toml_value(value.strip(), f"--set {short(text)}")
    for part in reversed(parts):
        values = {part: values}
    return _Layer(values, "--set")


def _toml_value(text: str, where: str) -> Any:
    """The value as TOML reads it; what isn't TOML is text, so that nobody has to quote twice in a shell."""
    try:
        return parse_toml(f"value = {text}", where)["value"]
    except NotTomlError:
        return text


def _leaves(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def by_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """A nested tree as one dictionary: {"a.b": value}; an empty section has no names."""
    return {".".join(path): value for path, value in _leaves(values) if value != {}}


def differing_names(trees: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names in which dictionaries such as `by_name` makes differ, in the order they come."""
    names = dict.fromkeys(name for tree in trees for name in tree)
    return [name for name in names if len({repr(tree.get(name)) for tree in trees}) > 1]


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any, source: str) -> None:
    *sections, key = path
    for depth, part in enumerate(sections):
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            name = ".".join(sections[: depth + 1])
            raise AsflError(f"{name} is a value, not a section, so '{'.'.join(path)}' can't be set in {source}")
    tree[key] = value
