"""`asfl new`: a file to start from, which works as it is."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from asfl.config.errors import AsflError
from asfl.config.names import CHANNELS, DATASETS, MODELS, Registry
from asfl.runs.files import write_whole
from asfl.schemes import SCHEMES


def new(
    kind: Annotated[Literal["scheme", "channel", "model", "data"], typer.Argument(help="What it is to be.")],
    name: Annotated[str, typer.Argument(help="What it will be called in configurations: small letters, digits, _.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: NAME.py here.")] = None,
) -> None:
    """Write a plugin file that works as it is, and say how to use it."""
    file = out or Path(f"{name.replace('-', '_')}.py")
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
