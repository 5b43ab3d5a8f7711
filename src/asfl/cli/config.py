"""`asfl config`: what an experiment is made of."""

from pathlib import Path
from typing import Annotated

import typer

from asfl.cli.options import PresetArgument, SetOption
from asfl.config import load_config, preset_names
from asfl.config.show import as_toml
from asfl.errors import AsflError
from asfl.world import World

app = typer.Typer(help="Show and check configurations.", no_args_is_help=True)


@app.command("list")
def list_presets() -> None:
    """Name the presets."""
    print("\n".join(preset_names()))


@app.command()
def show(
    preset: PresetArgument = "demo",
    overrides: SetOption = None,
    docs: Annotated[bool, typer.Option("--docs", help="Say above each field what it means.")] = False,
) -> None:
    """Print the resolved configuration as TOML, with unit, valid values and source of every field."""
    print(as_toml(load_config(preset, overrides or []), with_docs=docs))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A TOML file.")],
    overrides: SetOption = None,
) -> None:
    """Say whether a configuration is valid, and build the world it describes."""
    if not file.exists():
        raise AsflError(f"no such file: {file}")
    config = load_config(file, overrides or []).config
    world = World.of(config)
    print(
        f"{file} is valid: {world.profile.name}, {config.scenario.clients} clients, "
        f"{config.radio.num_rbs} resource blocks, {config.training.rounds} rounds"
    )
