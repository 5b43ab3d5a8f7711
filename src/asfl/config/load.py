"""From TOML, presets and `--set` to a validated configuration that remembers where each value came from."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from asfl.config.devices import SETTINGS, settings_of
from asfl.config.errors import AsflError, nearest, short
from asfl.config.fields import CHECK_NAMES, explain
from asfl.config.files import MAX_DEPTH, NotTomlError, is_text, parse_toml, read_text
from asfl.config.removed import USUAL
from asfl.config.tree import Config

DEFAULT_PRESET = "demo"
_NOTHING = object()


@dataclass(frozen=True)
class Resolved:
    """A configuration and the source of every value: "default", "preset demo", "file x.toml", "--set"."""

    config: Config
    sources: Mapping[str, str]

    @property
    def preset(self) -> str:
        """The one it starts from; the demo's name if from none."""
        bases = (one.removeprefix("preset ") for one in self.sources.values() if one.startswith("preset "))
        return next(bases, DEFAULT_PRESET)


@dataclass(frozen=True)
class _Layer:
    values: dict[str, Any]
    source: str


def preset_names() -> list[str]:
    folder = resources.files("asfl") / "config" / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


ConfigLike = str | Path | Mapping[str, Any] | Config
"""A preset's name, a TOML file, the same as a dictionary, or a configuration that is ready."""


def load_config(base: ConfigLike | None = None, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Resolved:
    """Resolve a preset name or a TOML file, then the overrides "a.b=value", into one validated tree.

    A file may name the preset it starts from in a top-level `base = "small-cifar10"`; without it, it starts from
    the defaults. Python may give a dictionary instead of a file, and of overrides: {"training.batch_size": 32}.
    """
    layers = _base_layers(base)
    if isinstance(overrides, Mapping):
        layers += [_named_layer(name, _plain(value), "an argument") for name, value in overrides.items()]
    else:
        layers += [_override_layer(text) for text in overrides]
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for path, value, source in _with_devices(layer):
            _put(merged, path, value, source)
            sources[".".join(path)] = source
    try:
        config = Config.model_validate(merged, context=CHECK_NAMES)
    except ValidationError as error:
        raise AsflError(explain(error, Config, sources)) from None
    every = dict.fromkeys(by_name(config.model_dump()), "default")
    return Resolved(config, every | sources)


def recorded_config(values: Mapping[str, Any]) -> Config:
    """A configuration as a run recorded it."""
    tree: dict[str, Any] = {}
    for path, value in _leaves(values):
        if USUAL.get(".".join(path), _NOTHING) != value:
            _put(tree, path, value, "a recorded run")
    return Config.model_validate(tree)


def _base_layers(base: ConfigLike | None) -> list[_Layer]:
    if base is None:
        return []
    if isinstance(base, Config):
        return [_Layer(base.model_dump(exclude_none=True), "the given configuration")]
    if isinstance(base, Mapping):
        rest = [_named_layer(key, _plain(value), "a dictionary") for key, value in base.items() if key != "base"]
        return [*_base_layers(_known_base(base.get("base"), "a dictionary")), *rest]
    if not isinstance(base, str | Path):
        raise AsflError(f"{short(base)} is no configuration: give a preset's name, a TOML file or a dictionary")
    name = str(base)
    if name in preset_names():
        text = (resources.files("asfl") / "config" / "presets" / f"{name}.toml").read_text("utf-8")
        values = parse_toml(text, name)
        below = _base_layers(values.pop("base", None))  # what it takes over counts as its own
        return [_Layer(layer.values, f"preset {name}") for layer in [*below, _Layer(values, "")]]
    path = Path(name)
    if path.suffix != ".toml" and not os.path.lexists(path):
        raise AsflError(f"no preset or file {short(name)}: {nearest(name, preset_names())}")
    values = parse_toml(read_text(path), name)
    return [*_base_layers(_known_base(values.pop("base", None), name)), _Layer(values, f"file {path.name}")]


def _known_base(base: Any, where: str) -> str | None:
    """The preset that a file or a dictionary starts from, if any."""
    if base is not None and (not isinstance(base, str) or base not in preset_names()):
        raise AsflError(f"{where}: base = {short(base)} is not a preset: {nearest(str(base), preset_names())}")
    return base


def _plain(value: Any) -> Any:
    """Numbers of NumPy and paths as TOML would have them."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _named_layer(name: Any, value: Any, source: str) -> _Layer:
    """Of the name "a.b" and a value: the tree {a: {b: value}}."""
    parts = _parts(name) if isinstance(name, str) else []
    if not parts or not all(parts) or len(parts) > MAX_DEPTH:
        raise AsflError(f"{short(name)} is no name of a field: write section.field, such as training.batch_size")
    for part in reversed(parts):
        value = {part: value}
    return _Layer(value, source)


def _parts(name: str) -> list[str]:
    """Of "a.b": a and b. A scheme with parameters is one part, as in "schemes.epsl:share=0.3.learning_rate"."""
    first, *rest = name.split(".")
    return [first, ".".join(rest[:-1]), rest[-1]] if first == "schemes" and len(rest) > 1 else [first, *rest]


def _override_layer(text: str) -> _Layer:
    path, equals, value = text.rpartition("=") if text.startswith("schemes.") else text.partition("=")
    parts = _parts(path.strip())
    if not equals or not all(parts) or len(parts) > MAX_DEPTH:
        raise AsflError(f"--set {short(text)}: write it as section.field=value, for example --set scenario.clients=20")
    if not is_text(text):  # the shell passes on any bytes
        raise AsflError(f"--set {short(text)} is not in UTF-8")
    return _named_layer(path.strip(), _toml_value(value.strip(), f"--set {short(text)}"), "--set")


def _toml_value(text: str, where: str) -> Any:
    """The value as TOML reads it; what isn't TOML is text, so that nobody has to quote twice in a shell."""
    try:
        return parse_toml(f"value = {text}", where)["value"]
    except NotTomlError:
        return text


def _with_devices(layer: _Layer) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Path, value and source of each leaf; first what its devices stand for, so that it can change parts of that."""
    leaves = {".".join(path): (path, value) for path, value in _leaves(layer.values)}
    for setting in SETTINGS:
        if setting in leaves:
            _, name = leaves.pop(setting)
            for own, value in settings_of(setting, name).items():
                yield tuple(own.split(".")), value, f"{layer.source}, device {name}"
    for path, value in leaves.values():
        yield path, value, layer.source


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
