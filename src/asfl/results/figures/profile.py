"""The picture and the table of a model's profile: bits and FLOPs along the network."""

from typing import TYPE_CHECKING, Any

from rich.table import Table

from asfl.config.units import format_si
from asfl.models.profile import ModelProfile
from asfl.results.figures.figure import CUT_LABEL, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def profile_table(profile: ModelProfile) -> Table:
    """One row per unit: what it is, and what a cut behind it puts on client, link and server."""
    table = Table(title=f"{profile.name}: {profile.num_layers} units, per sample (FLOP = 2·MAC)", header_style="bold")
    table.add_column("cut", justify="right")
    table.add_column("unit")
    for column in ("params", "forward", "backward", "activations"):
        table.add_column(column, justify="right")
    for column in ("client model", "client FLOP", "server FLOP", "upload"):
        table.add_column(column, justify="right", style="cyan")
    per_unit = (profile.param_bits, profile.forward_flops, profile.backward_flops, profile.activation_bits)
    for row, name, *of_unit in zip(cut_totals(profile), profile.unit_names, *per_unit, strict=True):
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


def cut_totals(profile: ModelProfile) -> list[dict[str, Any]]:
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


def draw_profile(profile: ModelProfile) -> "Figure":
    with drawing(max(7.5, 0.22 * profile.num_layers + 3), 7.2) as figure:
        bits, flops, cumulative = figure.subplots(3, 1, sharex=True)
        layers = range(1, profile.num_layers + 1)
        left, right = [m - 0.2 for m in layers], [m + 0.2 for m in layers]
        points = {"linestyle": ":", "linewidth": 0.8, "markersize": 5}  # bars have no place on a logarithmic scale
        moved = "parameters (moved when the cut moves)"
        bits.plot(layers, profile.param_bits / 1e6, marker="o", color="#5b7fb8", label=moved, **points)
        bits.plot(
            layers,
            profile.activation_bits / 1e6,
            marker="s",
            color="#e0a33e",
            label="activations of a sample",
            **points,
        )
        bits.set(yscale="log", ylabel="Mbit")
        bits.set_title(f"{profile.name}: size of every unit")
        bits.margins(y=0.3)
        bits.legend(ncols=2, loc="upper right", fontsize=8)
        flops.bar(left, profile.forward_flops / 1e6, 0.4, color="#7aa6a1", label="forward")
        flops.bar(right, profile.backward_flops / 1e6, 0.4, color="#38706b", label="backward")
        flops.set(ylabel="MFLOP per sample")
        flops.set_title("Work of every unit")
        flops.legend(ncols=2)
        total = profile.client_forward_flops + profile.client_backward_flops
        behind, percents = range(profile.num_layers + 1), 100 * total / total[-1]
        cumulative.step(behind, percents, where="mid", color="#38706b")
        cumulative.fill_between(behind, percents, step="mid", color="#38706b", alpha=0.15)
        cumulative.set(ylim=(0, 101), ylabel="% of all FLOPs", xlabel=CUT_LABEL)
        cumulative.set_title("Work that stays on the client if the model is cut here")
        every_unit_named = profile.num_layers <= 24
        if every_unit_named:
            cumulative.set_xticks(list(layers), [f"{m}\n{name}" for m, name in enumerate(profile.unit_names, 1)])
            cumulative.tick_params(axis="x", labelsize=7, rotation=0 if profile.num_layers < 12 else 60)
        cumulative.set_xlim(0.3, profile.num_layers + 0.7)
    return figure
