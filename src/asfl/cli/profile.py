"""`asfl profile`: a model's layers as numbers."""

from typing import Annotated

import typer

from asfl.cli.options import JsonOption, PlotOption, console, print_json
from asfl.errors import AsflError
from asfl.profile import load_profile, shipped_profiles
from asfl.report.figure import check_figure_path, save_figure
from asfl.report.profile import cut_totals, draw_profile, profile_table


def profile(
    model: Annotated[
        str | None, typer.Argument(help="Such as vgg19-cifar100, resnet50-cifar10, vgg19-w0.25-gn-cifar100.")
    ] = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    list_models: Annotated[bool, typer.Option("--list", help="Name the profiles that ship with asfl.")] = False,
) -> None:
    """Bits and FLOPs of every unit of a model, and of both sides for every cut."""
    if list_models:
        print("\n".join(shipped_profiles()))
        return
    if model is None:
        raise AsflError("which model? For example: asfl profile vgg19-cifar100 (asfl profile --list names more)")
    if plot is not None:
        check_figure_path(plot)
    measured = load_profile(model)
    if plot is not None:
        save_figure(draw_profile(measured), plot)
    if as_json:
        print_json({**measured.to_json(), "cuts": cut_totals(measured)[:-1]})
    else:
        console().print(profile_table(measured))
        if plot is not None:
            print(f"picture: {plot}")
