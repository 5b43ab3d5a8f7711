"""`asfl explain`: what a field means, what a configuration holds, and what the layers of a model take."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from asfl.cli import options
from asfl.cli.output import print_listed, show, table, terminal_width
from asfl.config import preset_names
from asfl.config.errors import AsflError
from asfl.config.names import MODELS, ModelSpec
from asfl.config.show import as_toml, describe, field_names
from asfl.config.units import format_si

if TYPE_CHECKING:
    from asfl.models.profile import ModelProfile


def _complete(incomplete: str) -> list[str]:
    return [name for name in [*preset_names(), *field_names()] if name.startswith(incomplete)]


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FIELD|PRESET|FILE|MODEL",
            help="A field or section (training.batch_size, batch_size, radio), a preset or TOML file, "
            "or a model (vgg19-cifar100, cnn-w0.5-gn-digits).",
            autocompletion=_complete,
        ),
    ],
    overrides: options.Set = None,
    docs: Annotated[
        bool, typer.Option("--docs", help="Of a preset or file: write above each field what it means.")
    ] = False,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """Explain a field, print a configuration, or show a model.

    A field: its meaning, unit, valid values and default; of a section, all fields. A preset or TOML file: the resolved
    configuration as TOML, with the source of every value. A model: bits and FLOPs of every unit, and of both sides for
    every cut.
    """
    try:
        described = describe(name, [*preset_names(), *MODELS])
    except AsflError:
        if name in preset_names() or name.endswith(".toml") or _is_file(name):
            options.refuse_all_but(["name", "overrides", "docs"], "it is for models, and this is a configuration")
            print(as_toml(options.configuration(name, overrides), docs, terminal_width()))
            return
        spec = _model(name)
        if spec is None:
            raise
        options.refuse_all_but(["name", "as_json", "plot"], "it is for configurations, and this is a model")
        _show_profile(spec, as_json, plot)
    else:
        options.refuse_all_but(["name"], f"{name} is a field")
        print_listed(described)


def _is_file(name: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(name).exists() and not Path(name).is_dir()
    return False


def _model(name: str) -> ModelSpec | None:
    """None if it doesn't look like a model."""
    try:
        return ModelSpec.parse(name)
    except AsflError:
        if "-" in name:
            raise
        return None


def _show_profile(spec: ModelSpec, as_json: bool, plot: options.Plot) -> None:
    from asfl.models.load import load_profile
    from asfl.results.charts.world import profile_chart

    profile = load_profile(spec)
    show(
        as_json,
        plot,
        data=lambda: {**profile.to_json(), "cuts": _cut_totals(profile)[:-1]},
        tables=lambda out: out.print(_table(profile)),
        figure=lambda: profile_chart(profile),
    )


def _table(profile: "ModelProfile") -> Table:
    """One row per unit: what it is, and what a cut behind it puts on client, link and server."""
    header = ["unit", "cut", "params", "forward", "backward", "activations"]
    header += ["client model", "client FLOP", "server FLOP", "upload"]
    rows = []
    per_unit = (profile.param_bits, profile.forward_flops, profile.backward_flops, profile.activation_bits)
    for row, name, *of_unit in zip(_cut_totals(profile), profile.unit_names, *per_unit, strict=True):
        client, server = (row[f"{side}_forward_flops"] + row[f"{side}_backward_flops"] for side in ("client", "server"))
        behind = ("", "", "", "")
        if row["cut"] < profile.num_layers:
            bits = (format_si(row[key], "bit") for key in ("client_param_bits", "activation_bits"))
            behind = (next(bits), format_si(client), format_si(server), next(bits))
        cells = (format_si(value, unit) for value, unit in zip(of_unit, ("bit", "", "", "bit"), strict=True))
        rows.append((name, str(row["cut"]) if behind[0] else "–", *cells, *behind))
    whole = (profile.client_param_bits[-1], profile.client_forward_flops[-1], profile.client_backward_flops[-1])
    rows.append(("whole model", "", format_si(whole[0], "bit"), format_si(whole[1]), format_si(whole[2]), *[""] * 5))
    return table(header, rows, title=f"{profile.name}: {profile.num_layers} units, per sample (FLOP = 2·MAC)")


def _cut_totals(profile: "ModelProfile") -> list[dict[str, Any]]:
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
