"""`asfl config`: what an experiment is made of."""

from pathlib import Path
from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import terminal_width
from asfl.config import preset_names
from asfl.config.files import check_file
from asfl.config.show import as_toml
from asfl.costs.world import World

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_presets() -> None:
    """Name the presets."""
    print("\n".join(preset_names()))


@app.command()
def show(
    preset: options.Preset = "demo",
    overrides: options.Set = None,
    docs: Annotated[bool, typer.Option("--docs", help="Say above each field what it means.")] = False,
) -> None:
    """Print the resolved configuration as TOML, with unit, valid values and source of every field."""
    print(as_toml(options.configuration(preset, overrides), docs, terminal_width()))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A TOML file.")],
    overrides: options.Set = None,
) -> None:
    """Say whether a configuration is valid, and build the world it describes."""
    check_file(file)
    config = options.configuration(file, overrides).config
    world = World.of(config)
    print(
        f"{file} is valid: {world.profile.name}, {config.scenario.clients} clients, "
        f"{config.radio.num_rbs} resource blocks, {config.training.rounds} rounds"
    )
