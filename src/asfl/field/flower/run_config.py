"""What `flwr run --run-config` can set: where and how the run takes place, and any field of its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asfl.config import Config, load_config
from asfl.config.errors import AsflError, nearest, short
from asfl.config.load import DEFAULT_PRESET
from asfl.field.stream.common import check_address
from asfl.runs.manifest import MOST_THREADS
from asfl.schemes import check_scheme_settings, scheme_named

Value = bool | int | float | str
"""Flower knows nothing else in a run configuration."""

DEFAULTS: dict[str, Value] = {
    "base": DEFAULT_PRESET,
    "set": "",
    "scheme": "asfl",
    "out": "",
    "data-dir": "",
    "address": "127.0.0.1:0",
    "threads": 0,
    "lose-rounds": False,
    "nodes-s": 30.0,
    "wait-s": 300.0,
    "patience-s": 60.0,
}
"""All keys, as in pyproject.toml, which says what they mean. Flower takes no others."""


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
    nodes_s: float
    wait_s: float
    patience_s: float
    lose_rounds: bool
    """Whether measured rounds may be given up whose files are damaged."""

    @classmethod
    def of(cls, run_config: Mapping[str, Value]) -> "Order":
        """What a run configuration asks for; `AsflError` for anything that doesn't exist or can't be."""
        for name in run_config:
            if name not in DEFAULTS:
                raise AsflError(f"unknown key {short(name)}: {nearest(name, DEFAULTS)} (set in --run-config)")
        values = {**DEFAULTS, **run_config}
        base, changes, scheme, out, data_dir, address = (
            str(values[name]) for name in ("base", "set", "scheme", "out", "data-dir", "address")
        )
        try:
            config = load_config(base, [change for change in changes.split(";") if change.strip()]).config
        except AsflError as error:
            raise AsflError(str(error).replace("(set in --set)", "(set in --run-config)")) from None
        check_scheme_settings(config)
        scheme_named(scheme)
        check_address(address, encrypted=True)
        threads = values["threads"]
        if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads <= MOST_THREADS:
            raise AsflError(
                f"threads = {threads!r} must be a whole number ≥ 0, at most {MOST_THREADS} (set in --run-config)"
            )
        if not isinstance(values["lose-rounds"], bool):
            raise AsflError(f"lose-rounds = {values['lose-rounds']!r} must be true or false (set in --run-config)")
        default_folder = Path(config.output.folder) / f"{Path(base).stem}-{scheme}-seed{config.scenario.seed}"
        return cls(
            config,
            scheme,
            Path(out) if out else default_folder,
            Path(data_dir) if data_dir else None,
            address,
            threads or None,
            _seconds("nodes-s", values["nodes-s"]),
            _seconds("wait-s", values["wait-s"]),
            _seconds("patience-s", values["patience-s"]),
            values["lose-rounds"],
        )


def _seconds(name: str, value: Value) -> float:
    if isinstance(value, bool | str) or not 0 < value < float("inf"):
        raise AsflError(f"{name} = {value!r} must be a number > 0, in s (set in --run-config)")
    return float(value)
