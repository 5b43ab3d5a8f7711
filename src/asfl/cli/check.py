"""`asfl check`: are run folders intact, is a configuration valid; `asfl doctor`: what does this machine have."""

import math
import platform
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import print_json, print_listed, say
from asfl.config.errors import AsflError
from asfl.config.files import GB, available_bytes, check_file
from asfl.costs.world import World
from asfl.data.cifar import CIFAR, find_cifar
from asfl.data.load import default_folder
from asfl.runs.comparison import COMPARE_FILE, read_comparison
from asfl.runs.folder import CheckedFile, check_folder
from asfl.runs.manifest import MANIFEST_FILE, MODEL_FILE
from asfl.runs.records import RECORDS_FILE
from asfl.runs.this_process import usual_threads


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE…", help="Run folders, or folders with runs below; TOML files.", show_default=False
        ),
    ],
    overrides: options.Set = None,
    as_json: options.Json = False,
) -> None:
    """Verify run folders file by file, and check configurations. Exit code 0: all are intact and valid; 2: not all."""
    files = [path for path in paths if not path.is_dir() and (path.suffix == ".toml" or path.exists())]
    for file in files:
        words = _configuration(file, overrides)
        if not as_json:
            print(words)
    found: dict[str, list[CheckedFile]] = {}
    for folder in (path for path in paths if path not in files):
        found |= _below(folder)
    if files and not found and not as_json:
        return
    damaged = [finding for of_path in found.values() for finding in of_path if not finding.intact]
    if as_json:
        print_json({name: [vars(finding) for finding in of_path] for name, of_path in found.items()})
    else:
        for name, of_path in found.items():
            print(name)
            for finding in of_path:
                say(f"  {finding.file}: {'' if finding.intact else 'DAMAGED: '}{finding.words}", indent=4)
        folders = f"{len(found)} folder{'' if len(found) == 1 else 's'}"
        print(f"{folders}, {len(damaged)} files damaged" if damaged else f"{folders}, all intact")
    if damaged:
        raise typer.Exit(2)


def _configuration(file: Path, overrides: list[str] | None) -> str:
    """In words, what world it describes, which is built."""
    check_file(file)
    config = options.configuration(file, overrides).config
    world = World.of(config)
    return (
        f"{file} is valid: {world.profile.name}, {config.scenario.clients} clients, "
        f"{config.radio.num_rbs} resource blocks, {config.training.rounds} rounds"
    )


def _below(folder: Path) -> dict[str, list[CheckedFile]]:
    """Findings by folder: of every run, also of one that lost its manifest, and of every comparison."""
    if not folder.is_dir():
        raise AsflError(f"{folder}: there is no such folder")
    runs = {file.parent for name in (MANIFEST_FILE, RECORDS_FILE, MODEL_FILE) for file in folder.rglob(name)}
    comparisons = {file.parent for file in folder.rglob(COMPARE_FILE)}
    if not runs and not comparisons:
        raise AsflError(f"{folder}: no run in or below this folder (a run has a {MANIFEST_FILE})")
    found = {str(one): [_comparison(one)] for one in sorted(comparisons)}
    return found | {str(run): check_folder(run) for run in sorted(runs)}


def _comparison(folder: Path) -> CheckedFile:
    try:
        there = read_comparison(folder)
    except AsflError as error:
        return CheckedFile(COMPARE_FILE, False, str(error))
    return CheckedFile(COMPARE_FILE, True, f"intact: {there.num_runs} runs planned")


# ---------------------------------------------------------------------- this machine
_OLDEST_PYTHON = (3, 11)
_EXTRAS = {
    "train": (("torch", "safetensors"), "training, and profiles of any network"),
    "report": (("plotly", "jinja2", "pandas", "pyarrow"), "asfl report; runs as tables in Python"),
    "channels": (("sionna",), "3GPP channels"),
    "city": (("mitsuba",), "asfl data trace: rays through a city"),
    "privacy": (("opacus",), "how much noise tells about a sample"),
    "field": (("grpc", "cryptography"), "asfl fleet, serve and join: clients in other processes and on other machines"),
    "flower": (("flwr",), "a Flower app for a SuperLink of your own"),
    "ray": (("ray",), "--engine ray"),
    "trackers": (("tensorboard", "wandb", "mlflow"), "output.track"),
}
"""The modules behind each extra of pyproject.toml, and what it is for."""


@dataclass(frozen=True)
class Finding:
    """About one thing."""

    name: str
    good: bool
    words: str
    needed: bool = False
    """Whether nothing works without it."""


def doctor(data_dir: options.DataDir = None, as_json: options.Json = False) -> None:
    """Say what this machine has, and what is missing for what. Exit code 2 if asfl itself can't work."""
    found = [*_machine(), _torch(), _llvm(), *_extras(), *_data(data_dir)]
    if as_json:
        print_json([vars(one) for one in found])
    else:
        print_listed((f"{'ok' if one.good else '--'}  {one.name}", one.words) for one in found)
    if any(one.needed and not one.good for one in found):
        raise typer.Exit(2)


def _machine() -> list[Finding]:
    python, memory = sys.version_info[:2], available_bytes()
    old = "" if python >= _OLDEST_PYTHON else "; asfl needs 3.11 or newer"
    amount = "unknown" if math.isinf(memory) else f"{memory / GB:.1f} GB available"
    return [
        Finding("Python", python >= _OLDEST_PYTHON, f"{platform.python_version()} on {platform.platform()}{old}", True),
        Finding("cores", True, f"{usual_threads()}: as many runs side by side in asfl compare"),
        Finding("memory", memory > GB, amount),
    ]


def _torch() -> Finding:
    if util.find_spec("torch") is None:
        return Finding("PyTorch", False, "not installed: nothing can be trained (pip install 'asfl[train]')")
    import torch

    gpu = "no GPU: training.device = auto takes the processor"
    if torch.cuda.is_available():
        gpu = f"GPU: {torch.cuda.get_device_name()}"
    return Finding("PyTorch", True, f"{torch.__version__}; {gpu}")


def _llvm() -> Finding:
    """Numba compiles the search for decisions with it."""
    try:
        import llvmlite.binding as llvm

        return Finding("LLVM", True, ".".join(map(str, llvm.llvm_version_info)))
    except Exception as error:
        return Finding("LLVM", False, f"doesn't load, and no decision is found without it: {error}")


def _extras() -> list[Finding]:
    found, packages = [], metadata.packages_distributions()
    for extra, (modules, purpose) in _EXTRAS.items():
        missing = [module for module in modules if util.find_spec(module) is None]
        words = f"missing for: {purpose} (pip install 'asfl[{extra}]')"
        if not missing:
            named = [(packages.get(module) or [module])[0] for module in modules]
            words = f"{', '.join(f'{name} {metadata.version(name)}' for name in named)}: {purpose}"
        found.append(Finding(f"asfl[{extra}]", not missing, words))
    return found


def _data(data_dir: Path | None) -> list[Finding]:
    found = [Finding("digits", True, "ships with asfl")]
    folder = default_folder(data_dir)
    for name, cifar in CIFAR.items():
        try:
            where = find_cifar(cifar, [folder])
            found.append(Finding(name, True, str(where)))
        except AsflError:
            found.append(Finding(name, False, f"not in {folder} (asfl data fetch {name})"))
    return found
