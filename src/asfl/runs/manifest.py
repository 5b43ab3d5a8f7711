"""What a run is: configuration, scheme, budgets, threads; and when two of them are the same run."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from asfl._version import __version__
from asfl.config import Config, by_name, differing_names, recorded_config
from asfl.config.errors import AsflError
from asfl.config.names import loaded_plugins
from asfl.costs.round import Decision
from asfl.costs.world import Budgets, RemainingBudget
from asfl.runs.files import Sha256, is_untouched, read_sealed_json, sealed_json, write_whole

MANIFEST_FILE, CHECKPOINTS, MODEL_FILE = "manifest.json", "checkpoints", "model.safetensors"
MOST_THREADS = 1024
FORMAT = 5
_WITHOUT_EFFECT = {
    "output": ("checkpoint_every", "track"),
    "field": ("deadline_s", "shaping"),
}
"""Fields that don't change results: where things lie, who watches, how long one waits for a client."""


class Source(BaseModel):
    """Where something was found that a run takes from outside its folder (`asfl.runs.folder`)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    origin: Annotated[str, Field(max_length=5000)]
    """An absolute path, if it was in a file."""
    sha256: Sha256


@dataclass(frozen=True)
class Manifest:
    """What a run is."""

    config: Config
    scheme: str
    budgets: Budgets
    threads: int
    """Of PyTorch; another number may round differently."""
    facts: dict[str, Any]
    """When, with which versions, how many CPU seconds: for people, and not compared."""
    recorded: tuple[Decision, ...] = ()
    """What ASFL decided in this world, round by round, for a scheme that borrows from it; empty: it decides here."""
    begun_with_rounds: int | None = None
    """How many rounds it was to have at first, if it was extended."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """What it takes from outside its folder."""

    @property
    def rounds(self) -> int:
        """How many it is to have."""
        return self.config.training.rounds

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes results; not with where things lie, who watches, or how often is saved.

        An extended run keeps the one it began with. A setting that has its default doesn't count, so one that a later
        version adds makes no other run of it.
        """
        config = by_name(comparable(self.config, exclude_defaults=True))
        rounds = config["training.rounds"] = self.begun_with_rounds or self.rounds
        parts = [FORMAT, self.scheme, config, self._budgets_as_json(), self._recorded_as_json()[:rounds]]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def data_dir(self, given: Path | None) -> Path | None:
        """The folder given now, else the one given when the run began."""
        before = self.facts.get("data_dir")
        return given or (Path(before) if isinstance(before, str) and before else None)

    @property
    def cpu_s(self) -> float:
        """What the process that plays the rounds has spent on them until the last checkpoint, rounds that were played
        twice included; 0 if it wasn't counted.
        """
        spent = self.facts.get("cpu_s")
        return float(spent) if isinstance(spent, int | float) else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "scheme": self.scheme,
            "seed": self.config.scenario.seed,
            "budgets": self._budgets_as_json(),
            "threads": self.threads,
            "facts": self.facts,
            "recorded": self._recorded_as_json(),
            "begun_with_rounds": self.begun_with_rounds,
            "sources": {name: one.model_dump() for name, one in self.sources.items()},
            "config": self.config.model_dump(mode="json"),
        }

    def _budgets_as_json(self) -> dict[str, float | None]:
        return {name: _plain(value) for name, value in asdict(self.budgets).items()}

    def _recorded_as_json(self) -> list[dict[str, Any]]:
        return [
            {"cut": int(of.cut), "rb_count": of.rb_count.tolist(), "tx_power_w": of.tx_power_w.tolist()}
            for of in self.recorded
        ]


def comparable(config: Config, *, exclude_defaults: bool = False) -> dict[str, Any]:
    """A configuration without what doesn't change results."""
    plain: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=exclude_defaults)
    for section, names in _WITHOUT_EFFECT.items():
        for name in names:
            plain.get(section, {}).pop(name, None)
    return plain


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Budgets(_Part):
    """None: no bound."""

    delay_s: Amount | None
    energy_j: Amount | None
    outage_s: Amount | None
    own_outage_s: Amount | None


class _Recorded(_Part):
    cut: Annotated[int, Field(ge=0, le=10_000)]
    rb_count: list[Amount]
    tx_power_w: list[Amount]


class _ManifestFile(_Part):
    """manifest.json, value by value."""

    format: int
    scheme: Annotated[str, Field(min_length=1, max_length=200)]
    seed: int
    budgets: _Budgets
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    facts: dict[str, JsonValue]
    recorded: list[_Recorded]
    begun_with_rounds: Annotated[int, Field(ge=1)] | None
    sources: dict[str, Source]
    config: dict[str, JsonValue]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_whole(folder / MANIFEST_FILE, sealed_json(manifest.to_json()))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run folder; a clear error for anything else."""
    file = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise AsflError(f"{folder} is not a run folder: there is no such folder")
    if not file.is_file():
        raise AsflError(f"{folder} is not a run folder: it has no {MANIFEST_FILE}")
    try:
        read = _ManifestFile.model_validate(read_sealed_json(file, FORMAT))
        config = recorded_config(read.config)
    except (ValueError, RecursionError) as error:
        raise AsflError(f"{file} is not the manifest of a run: {_first_line(error)}") from None
    budgets = Budgets(**{name: np.inf if value is None else value for name, value in dict(read.budgets).items()})
    recorded = tuple(Decision(of.cut, np.array(of.rb_count), np.array(of.tx_power_w)) for of in read.recorded)
    return Manifest(
        config,
        read.scheme,
        budgets,
        read.threads,
        read.facts,
        recorded,
        read.begun_with_rounds,
        read.sources,
    )


def first_difference(before: Config, now: Config) -> str | None:
    """The first field in which two configurations differ in a way that changes results: "a.b = 1 there, 2 here"."""
    old, new = by_name(comparable(before)), by_name(comparable(now))
    name = next(iter(differing_names([old, new])), None)
    if name is None:
        return None
    there, here = ("not set" if of.get(name) is None else of[name] for of in (old, new))
    return f"{name} = {there} there, {here} here"


def run_to_go_on_with(folder: Path, config: Config, scheme: str, recorded: Sequence[Decision] = ()) -> Manifest | None:
    """The run that is in the folder, with as many rounds as `config` has, if that is more; None if it can begin there.

    Refused if it is another run, something else, or one that can't be extended. Nothing is written. `recorded`: what
    ASFL decided in that world, for a run that began with it.
    """
    if not (folder / MANIFEST_FILE).exists():
        if not is_untouched(folder):
            raise AsflError(f"{folder} exists and is not a run folder; give the name of a new one")
        return None
    manifest, config = read_manifest(folder), config.for_scheme(scheme)
    if manifest.scheme != scheme:
        raise AsflError(f"{folder} holds a run of scheme {manifest.scheme}, not {scheme}; give another --out")
    rounds = max(config.training.rounds, manifest.rounds)
    difference = first_difference(with_rounds(manifest.config, rounds), config)
    if difference is not None:
        raise AsflError(f"{folder} holds a run with another configuration ({difference}); give another --out")
    return manifest if rounds == manifest.rounds else _extended(folder, manifest, rounds, tuple(recorded))


def with_rounds(config: Config, rounds: int) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"rounds": rounds})})


def _extended(folder: Path, manifest: Manifest, rounds: int, recorded: tuple[Decision, ...]) -> Manifest:
    if RemainingBudget.of(manifest.config) is not None:
        raise AsflError(
            f"{folder}: its total budgets are spread over {manifest.rounds} rounds, so with {rounds} the first "
            "ones would have been decided otherwise; give another --out"
        )
    longer = replace(
        manifest,
        config=with_rounds(manifest.config, rounds),
        recorded=recorded if manifest.recorded else (),
        begun_with_rounds=manifest.begun_with_rounds or manifest.rounds,
    )
    if manifest.recorded and (len(recorded) < rounds or longer.fingerprint != manifest.fingerprint):
        raise AsflError(
            f"{folder} takes blocks and powers that ASFL decided in the same comparison, round by round; "
            "extend the comparison: asfl compare with more rounds"
        )
    return longer


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

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{'' if error.title == '_ManifestFile' else 'config.'}{place}: {first['msg']}"
    return str(error).partition("\n")[0] or type(error).__name__
