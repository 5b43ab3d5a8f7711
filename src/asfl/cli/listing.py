"""`asfl list`: everything that has a name, with a line each; `asfl new`: a file with a thing of your own."""

import inspect
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from asfl.cli import options
from asfl.cli.output import print_json, print_listed
from asfl.config import preset_names
from asfl.config.devices import devices
from asfl.config.errors import AsflError
from asfl.config.names import CHANNELS, DATASETS, MODELS, Registry
from asfl.models.load import shipped_profiles

Kind = Literal["schemes", "presets", "models", "profiles", "channels", "datasets", "recipes", "devices"]

_SCHEMES = {
    "asfl": "the paper's: cut, blocks and power by OOE-BCD; client sides stay on the clients",
    "asfl-joint": "the same by the joint solver: the optimum of each round",
    "asfl-plus": "beyond the paper: averages of client sides, few bits, progress per cost, a server that mixes",
    "fedavg": "no cut: whole models on the clients, averaged every round",
    "sl": "split learning: one client side goes from client to client; random cut",
    "sl-best": "the same with the fastest cut, and all blocks for whoever's turn it is",
    "sfl": "SplitFed: client sides averaged every round; random cut",
    "sfl-best": "the same with the fastest cut",
    "acc-sfl": "a cut for each client, the fastest; bandwidth so that all are done together",
    "epsl": "last-layer gradients of some samples are averaged before the server's backward pass",
    "sfl-cut2": "ASFL with the cut fixed at 2",
    "sfl-cut3": "ASFL with the cut fixed at 3",
    "asfl-pmax": "ASFL with full power",
    "asfl-prand": "ASFL with random powers",
    "asfl-rbrand": "ASFL with random blocks",
    "central": "all data in one place: the ceiling, without radio and costs",
    "best-gains": "a fixed rule with the tools of asfl-plus: the best gains, a block each, full power",
    "equal-error": "the same with three quarters of the clients, and powers for equal packet error rates",
    "adaptsfl": "one cut, and how many rounds lie between two averages of client sides",
    "hasfl": "a cut and a mini-batch of its own size for every client",
    "cse-fsl": "clients train on a loss of their own and send activations now and then; no gradients",
    "fsl-sage": "the same with a loss that learns to give the server's gradients",
    "ampere": "clients train first, send activations once, then the server trains alone",
}
_MODELS = {
    "cnn": "a small network for quick runs",
    "mlp": "a few dense layers, for vectors and short sequences",
    "vgg11": "8 convolutions and 3 dense layers, 11 units",
    "vgg16": "13 convolutions and 3 dense layers, 16 units",
    "vgg19": "the paper's: 16 convolutions and 3 dense layers, 19 units",
    "resnet18": "residual blocks, 18 units",
    "resnet50": "the paper's: bottleneck blocks, 50 units",
}
_CHANNELS = {
    "rayleigh": "Rayleigh fading over path loss, drawn anew each round",
    "trace": "a measured trace: CSV or NPZ",
    "3gpp": "a cell of 3GPP TR 38.901: path loss, shadows, obstacles",
}
_DATASETS = {
    "digits": "handwritten digits of 8×8 pixels; ships with asfl",
    "cifar10": "photographs in 10 classes; asfl data fetch gets them",
    "cifar100": "photographs in 100 classes; asfl data fetch gets them",
}


def list_(kind: Annotated[Kind, typer.Argument(help="What to name.")], as_json: options.Json = False) -> None:
    """Name everything of a kind, with a line each; what plugins register is there, too."""
    lines = _lines(kind)
    if as_json:
        print_json(lines)
        return
    print_listed(lines.items())


def _lines(kind: Kind) -> dict[str, str]:
    if kind == "presets":
        folder = resources.files("asfl") / "config" / "presets"
        return {name: _first_comment((folder / f"{name}.toml").read_text("utf-8")) for name in preset_names()}
    if kind == "devices":
        return {name: device.in_words for name, device in devices().items()}
    if kind == "profiles":
        return dict.fromkeys(shipped_profiles(), "ships with asfl, measured")
    if kind == "recipes":
        from asfl.results.reproduce.recipes import RECIPES

        return {name: f"{recipe.paper}: {recipe.shows}" for name, recipe in RECIPES.items()}
    if kind == "schemes":
        from asfl.schemes import SCHEMES, parameters_of

        lines = _registered(SCHEMES, _SCHEMES)
        return {name: line + _parameters(parameters_of(SCHEMES[name])) for name, line in lines.items()}
    known: Mapping[str, tuple[Registry[Any], Mapping[str, str]]] = {
        "models": (MODELS, _MODELS),
        "channels": (CHANNELS, _CHANNELS),
        "datasets": (DATASETS, _DATASETS),
    }
    return _registered(*known[kind])


def _registered(registry: Registry[Any], about: Mapping[str, str]) -> dict[str, str]:
    """What ships has a line here; of anything else, the first one of its docstring."""
    return {name: about.get(name) or _first_line(registry[name]) for name in registry}


MOST_VALUES = 6
"""More than these are told by the first and the last."""


def _parameters(allowed: Mapping[str, Mapping[str, object] | tuple[float, float]]) -> str:
    """Such as " (bits=4|8|16|32, mix=on|off)"."""

    def texts() -> Iterator[str]:
        for key, values in allowed.items():
            if not isinstance(values, Mapping):
                yield f"{key}={values[0]:g} to {values[1]:g}"
            elif len(values) > MOST_VALUES:
                yield f"{key}={next(iter(values))} to {list(values)[-1]}"
            else:
                yield f"{key}={'|'.join(values)}"

    return f" ({', '.join(texts())})" if allowed else ""


def _first_line(thing: Any) -> str:
    if hasattr(thing, "train_labels"):
        return f"your own: {len(thing.train_labels):,} samples to learn from, {thing.num_classes} classes"
    return (inspect.getdoc(thing) or "your own").partition("\n")[0]


def _first_comment(toml: str) -> str:
    """The comment a preset begins with, as far as its first sentence goes."""
    comment = " ".join(line.removeprefix("#").strip() for line in toml.partition("\n\n")[0].splitlines())
    return comment.partition(". ")[0].rstrip(".")


def new(
    kind: Annotated[Literal["scheme", "channel", "model", "data"], typer.Argument(help="What it is to be.")],
    name: Annotated[str, typer.Argument(help="What it will be called in configurations: small letters, digits, _.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: NAME.py here.")] = None,
) -> None:
    """Write a plugin file that works as it is, and say how to use it."""
    file = out or Path(f"{name.replace('-', '_')}.py")
    from asfl.runs.files import write_whole
    from asfl.schemes import SCHEMES

    registry: Registry[Any] = {"scheme": SCHEMES, "channel": CHANNELS, "model": MODELS, "data": DATASETS}[kind]
    registry.check_name(name)
    if kind in ("model", "data") and "-" in name:
        raise AsflError(f"'{name}': the name of a {kind} has no -, which separates it from others in model names")
    if file.exists():
        raise AsflError(f"{file} exists; give another name, or another --out")
    template = (resources.files("asfl") / "cli" / "templates" / f"{kind}.py.txt").read_text("utf-8")
    text = template.replace("{name}", name).replace("{file}", str(file)).replace("{{", "{").replace("}}", "}")
    write_whole(file, text)
    print(f"{file} is written; try it:\n  {text.splitlines()[2]}")
