"""`asfl profile`: a model's layers as numbers."""

from typing import Annotated, Any

import typer
from rich.table import Table

from asfl.cli import options
from asfl.cli.output import show
from asfl.config.errors import AsflError
from asfl.config.units import format_si
from asfl.models.load import load_profile, shipped_profiles
from asfl.models.profile import ModelProfile
from asfl.results.charts.world import profile_chart


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
        data=lambda: {**measured.to_json(), "cuts": _cut_totals(measured)[:-1]},
        tables=lambda out: out.print(_table(measured)),
        figure=lambda: profile_chart(measured),
    )


def _table(profile: ModelProfile) -> Table:
    """One row per unit: what it is, and what a cut behind it puts on client, link and server."""
    table = Table(title=f"{profile.name}: {profile.num_layers} units, per sample (FLOP = 2·MAC)", header_style="bold")
    table.add_column("cut", justify="right")
    table.add_column("unit")
    for column in ("params", "forward", "backward", "activations"):
        table.add_column(column, justify="right")
    for column in ("client model", "client FLOP", "server FLOP", "upload"):
        table.add_column(column, justify="right", style="cyan")
    per_unit = (profile.param_bits, profile.forward_flops, profile.backward_flops, profile.activation_bits)
    for row, name, *of_unit in zip(_cut_totals(profile), profile.unit_names, *per_unit, strict=True):
        client, server = (row[f"{side}_forward_flops"] + row[f"{side}_backward_flops"] for side in ("client", "server"))
        bits = (row["client_param_bits"], row["activation_bits"])
        is_cut = row["cut"] < profile.num_layers
        behind = (format_si(bits[0], "bit"), format_si(client), format_si(server), format_si(bits[1], "bit"))
        cells = (format_si(value, unit) for value, unit in zip(of_unit, ("bit", "", "", "bit"), strict=True))
        table.add_row(str(row["cut"]) if is_cut else "–", name, *cells, *(behind if is_cut else ()))
    table.add_section()
    whole = (profile.client_param_bits[-1], profile.client_forward_flops[-1], profile.client_backward_flops[-1])
    table.add_row("", "whole model", format_si(whole[0], "bit"), format_si(whole[1]), format_si(whole[2]))
    return table


def _cut_totals(profile: ModelProfile) -> list[dict[str, Any]]:
    """For a cut behind each unit: what client, link and server carry. The last entry is the uncut model."""
    forward, backward = profile.client_forward_flops, profile.client_backward_flops
    return [
        {
            "cut": cut,
            "client_param_bits": int(profile.client_param_bits[cut]),
            "client_forward_flops": int(forward[cut]),
            "client_backward_flops": int(backward[cut]),
            "server_forward_flops": int(forward[-1] - forward[cut]),
            "server_backward_flops": int(backward[-1] - backward[cut]),
            "activation_bits": int(profile.activation_bits[cut - 1]),
        }
        for cut in range(1, profile.num_layers + 1)
    ]
