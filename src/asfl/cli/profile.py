"""`asfl profile`: a model's layers as numbers."""

from typing import Annotated

import typer

from asfl.cli import options
from asfl.cli.output import show
from asfl.config.errors import AsflError
from asfl.models.load import load_profile, shipped_profiles
from asfl.results.figures.profile import cut_totals, draw_profile, profile_table


def profile(
    model: Annotated[
        str | None, typer.Argument(help="Such as vgg19-cifar100, resnet50-cifar10, vgg19-w0.25-gn-cifar100.")
    ] = None,
    as_json: options.Json = False,
    plot: options.Plot = None,
    list_models: Annotated[bool, typer.Option("--list", help="Name the profiles that ship with asfl.")] = False,
) -> None:
    """Bits and FLOPs of every unit of a model, and of both sides for every cut."""
    if list_models:
        options.refuse_all_but(["list_models"], "--list names every profile")
        print("\n".join(shipped_profiles()))
        return
    if model is None:
        raise AsflError("which model? For example: asfl profile vgg19-cifar100 (asfl profile --list names more)")
    measured = load_profile(model)
    show(
        as_json,
        plot,
        data=lambda: {**measured.to_json(), "cuts": cut_totals(measured)[:-1]},
        tables=lambda out: out.print(profile_table(measured)),
        figure=lambda: draw_profile(measured),
    )
