"""`asfl doctor`: what this machine has, and what is missing for what."""

import math
import platform
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import typer

from asfl.cli import options
from asfl.cli.output import print_json, print_listed
from asfl.config.errors import AsflError
from asfl.config.files import GB, available_bytes
from asfl.data.cifar import CIFAR, find_cifar
from asfl.data.load import default_folder
from asfl.runs.this_process import usual_threads

OLDEST_PYTHON = (3, 11)
_EXTRAS = {
    "train": (("torch", "safetensors"), "training, and profiles of any network"),
    "report": (("plotly", "jinja2", "pandas", "pyarrow"), "asfl report; runs as tables in Python"),
    "channels": (("h5py", "sionna"), "RENEW/Argos channel measurements; 3GPP channels"),
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
    old = "" if python >= OLDEST_PYTHON else "; asfl needs 3.11 or newer"
    amount = "unknown" if math.isinf(memory) else f"{memory / GB:.1f} GB available"
    return [
        Finding("Python", python >= OLDEST_PYTHON, f"{platform.python_version()} on {platform.platform()}{old}", True),
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
