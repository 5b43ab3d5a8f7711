"""What a run is: configuration, scheme, budgets, threads; and when two of them are the same run."""

import hashlib
import json
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from asfl._version import __version__
from asfl.config import Config, by_name, differing_names
from asfl.config.errors import AsflError
from asfl.config.plugins import loaded_plugins
from asfl.costs.budgets import Budgets
from asfl.costs.decision import Decision

MANIFEST_FILE, CHECKPOINTS, MODEL_FILE = "manifest.json", "checkpoints", "model.safetensors"
FORMAT = 2
_WITHOUT_EFFECT = {
    "output": ("folder", "checkpoint_every", "track"),
    "data": ("folder",),
    "field": ("deadlines", "nobody_s", "shaping"),
}
"""Fields that don't change results: where things lie, who watches, how long one waits for whom."""


@dataclass(frozen=True)
class Manifest:
    """What a run is."""

    config: Config
    scheme: str
    budgets: Budgets
    threads: int
    """Of PyTorch; another number may round differently."""
    facts: dict[str, Any]
    """When, with which versions: for people, and never compared."""
    recorded: tuple[Decision, ...] = ()
    """What ASFL decided in this world, round by round, for a scheme that borrows from it; empty: it decides here."""

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes results; not with where things lie, who watches, or how often is saved."""
        config = comparable(self.config)
        text = json.dumps([FORMAT, self.scheme, config, self._recorded_as_json()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def data_dir(self, given: Path | None) -> Path | None:
        """The folder given now, else the one given when the run began."""
        before = self.facts.get("data_dir")
        return given or (Path(before) if before else None)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "scheme": self.scheme,
            "seed": self.config.scenario.seed,
            "budgets": {name: _plain(value) for name, value in asdict(self.budgets).items()},
            "threads": self.threads,
            "facts": self.facts,
            "recorded": self._recorded_as_json(),
            "config": self.config.model_dump(mode="json"),
        }

    def _recorded_as_json(self) -> list[dict[str, Any]]:
        return [
            {"cut": int(of.cut), "rb_count": of.rb_count.tolist(), "tx_power_w": of.tx_power_w.tolist()}
            for of in self.recorded
        ]


def comparable(config: Config) -> dict[str, Any]:
    """A configuration without what doesn't change results."""
    plain: dict[str, Any] = config.model_dump(mode="json")
    for section, names in _WITHOUT_EFFECT.items():
        for name in names:
            plain[section].pop(name)
    return plain


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run folder; a clear error for anything else."""
    file = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise AsflError(f"{folder} is not a run folder: there is no such folder")
    if not file.is_file():
        raise AsflError(f"{folder} is not a run folder: it has no {MANIFEST_FILE}")
    try:
        data = json.loads(file.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise AsflError(f"{file}: format {data['format']}, but this asfl ({__version__}) reads format {FORMAT}")
        budgets = Budgets(
            **{name: np.inf if value is None else float(value) for name, value in data["budgets"].items()}
        )
        recorded = tuple(
            Decision(int(of["cut"]), np.array(of["rb_count"], float), np.array(of["tx_power_w"], float))
            for of in data["recorded"]
        )
        config = Config.model_validate(data["config"])
        return Manifest(config, str(data["scheme"]), budgets, int(data["threads"]), dict(data["facts"]), recorded)
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise AsflError(f"{file} is not the manifest of a run: {_first_line(error)}") from None


def is_finished(folder: Path) -> bool:
    """Whether all rounds of the run in this folder are done; False if there is no run."""
    return (folder / MANIFEST_FILE).is_file() and (folder / MODEL_FILE).is_file()


def first_difference(before: Config, now: Config) -> str | None:
    """The first field in which two configurations differ in a way that changes results: "a.b = 1 there, 2 here"."""
    old, new = by_name(comparable(before)), by_name(comparable(now))
    name = next(iter(differing_names([old, new])), None)
    if name is None:
        return None
    there, here = ("not set" if of.get(name) is None else of[name] for of in (old, new))
    return f"{name} = {there} there, {here} here"


def run_to_go_on_with(folder: Path, config: Config, scheme: str) -> Manifest | None:
    """The run that is in the folder, None if it can begin there; refused if it is another run, or something else."""
    if not (folder / MANIFEST_FILE).exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise AsflError(f"{folder} exists and is not a run folder; give the name of a new one")
        return None
    manifest = read_manifest(folder)
    if manifest.scheme != scheme:
        raise AsflError(f"{folder} holds a run of scheme {manifest.scheme}, not {scheme}; give another --out")
    difference = first_difference(manifest.config, config.for_scheme(scheme))
    if difference is not None:
        raise AsflError(f"{folder} holds a run with another configuration ({difference}); give another --out")
    return manifest


def facts_of_now(data_dir: Path | None) -> dict[str, Any]:
    import numpy as np
    import torch

    return {
        "asfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git_commit(),
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": loaded_plugins(),
    }


def _plain(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if np.isfinite(value) else None


def _git_commit() -> str | None:
    """Of the source tree asfl runs from; None for an installed package."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(here), "status", "--porcelain", "--", "."],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"config.{'.'.join(map(str, first['loc']))}: {first['msg']}"
    text = f"no {error} in it" if isinstance(error, KeyError) else str(error)
    return text.splitlines()[0] if text else type(error).__name__
