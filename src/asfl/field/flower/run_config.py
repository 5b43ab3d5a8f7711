"""What `flwr run --run-config` can set: every field of a configuration, and where and how the run takes place."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asfl.config import Config, Resolved, by_name, load_config
from asfl.config.load import DEFAULT_PRESET
from asfl.errors import AsflError, nearest
from asfl.field.stream import check_address
from asfl.schemes import scheme_named

Value = bool | int | float | str
"""Flower knows nothing else in a run configuration."""

FROM_PRESET = ""
"""The value of a field that is as the preset has it. Flower only takes keys that have a value in pyproject.toml, and
any other value there would hide those of the preset."""

OWN_KEYS: dict[str, tuple[Value, str]] = {
    "preset": (DEFAULT_PRESET, "a preset, or a TOML file on the server"),
    "scheme": ("asfl", "which scheme to train"),
    "out": ("", "the run folder, on the server; empty: runs/PRESET-SCHEME-seedK"),
    "data-dir": ("", "the server's folder for data sets; nodes have their own (--node-config)"),
    "address": ("127.0.0.1:0", "where the server listens for streams, as nodes reach it; port 0: any that is free"),
    "wait-s": (300.0, "how long to wait for enough nodes, and then for their clients"),
    "threads": (0, "of PyTorch, on the server and every device; 0: as many as the server has cores"),
    "patience-s": (60.0, "how long a client that lost the server keeps trying"),
}
"""Keys that aren't fields of the configuration: default and meaning."""


@dataclass(frozen=True)
class Order:
    """A run that was ordered with `flwr run`."""

    config: Config
    scheme: str
    folder: Path
    data_dir: Path | None
    address: str
    threads: int | None
    """None: as many as there are cores."""
    wait_s: float
    patience_s: float

    @classmethod
    def of(cls, run_config: Mapping[str, Value]) -> "Order":
        """What a run configuration asks for; `AsflError` for anything that doesn't exist or can't be."""
        own = {name: run_config.get(name, default) for name, (default, _) in OWN_KEYS.items()}
        fields = {name: value for name, value in run_config.items() if name not in OWN_KEYS}
        _check_names(fields)
        preset, scheme = str(own["preset"]), str(own["scheme"])
        overrides = [f"{name}={_text(value)}" for name, value in fields.items() if value != FROM_PRESET]
        try:
            config = load_config(preset, overrides).config
        except AsflError as error:
            raise AsflError(str(error).replace("(set in --set)", "(set in --run-config)")) from None
        scheme_named(scheme)
        address = str(own["address"])
        check_address(address, encrypted=True)
        return cls(
            config,
            scheme,
            Path(str(own["out"]) or default_folder(config, preset, scheme)),
            Path(str(own["data-dir"])) if own["data-dir"] else None,
            address,
            _threads(own["threads"]),
            _seconds("wait-s", own["wait-s"]),
            _seconds("patience-s", own["patience-s"]),
        )


def default_folder(config: Config, preset: str, scheme: str) -> Path:
    """As `asfl run` names it."""
    return Path(config.output.folder) / f"{Path(preset).stem}-{scheme}-seed{config.scenario.seed}"


def as_toml(resolved: Resolved | None = None) -> str:
    """The keys and their defaults, as pyproject.toml has them; behind a field, what the preset says."""
    resolved = resolved or load_config(DEFAULT_PRESET)
    lines = ["[tool.flwr.app.config]"]
    lines += [f"{name} = {_toml(default)}  # {meaning}" for name, (default, meaning) in OWN_KEYS.items()]
    lines += ["", '# Fields of the configuration: "" is as the preset has it; behind it, what demo has.']
    section = None
    for name, value in sorted(by_name(resolved.config.model_dump()).items(), key=lambda row: row[0].rpartition(".")[0]):
        home, _, key = name.rpartition(".")
        if home != section:
            lines += [*([""] if section else []), f"[tool.flwr.app.config.{home}]"]
            section = home
        lines.append(f"{key} = {_toml(FROM_PRESET)}  # {_toml(value)}")
    return "\n".join(lines) + "\n"


def _check_names(fields: Mapping[str, Value]) -> None:
    for name in fields:
        if "." not in name:
            raise AsflError(f"unknown key '{name}': {nearest(name, OWN_KEYS)} (set in --run-config)")


def _threads(value: Value) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise AsflError(f"threads = {value!r} must be a whole number ≥ 0 (set in --run-config)")
    return value or None


def _seconds(name: str, value: Value) -> float:
    if isinstance(value, bool | str) or not 0 < value < float("inf"):
        raise AsflError(f"{name} = {value!r} must be a number > 0, in s (set in --run-config)")
    return float(value)


def _text(value: Value) -> str:
    """As one would write it behind `--set`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml(value: object) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value).lower() if isinstance(value, bool) else repr(value)
