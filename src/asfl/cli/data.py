"""`asfl data`: get a data set, and see how it is spread over the clients."""

from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from asfl.cli.options import DataDirOption, JsonOption, PlotOption, PresetArgument, SetOption, console, print_json
from asfl.config import load_config
from asfl.data import load_data
from asfl.data.cifar import CIFAR
from asfl.data.load import default_folder
from asfl.errors import AsflError, nearest
from asfl.report.data import LabelMix, draw_label_mix
from asfl.report.figure import check_figure_path, save_figure

app = typer.Typer(help="Get data sets, and see how they are spread over the clients.", no_args_is_help=True)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    data_dir: DataDirOption = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="A mirror of the official binary archive.")
    ] = None,
) -> None:
    """Download a data set: continues what was interrupted, checks it, and does nothing if it is there."""
    from asfl.data.fetch import fetch, is_complete  # urllib is needed only here

    if name == "digits":
        print("digits ships with asfl; there is nothing to fetch")
        return
    if name not in CIFAR:
        raise AsflError(f"no data set '{name}' to fetch: {nearest(name, CIFAR)}")
    kind, folder = CIFAR[name], default_folder(data_dir)
    if is_complete(kind, folder):
        print(f"{name} is already in {folder / kind.binary_folder}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(kind.binary_archive, total=None)
        target = fetch(
            kind, folder, url, lambda have, total: progress.update(task, completed=have, total=total or have)
        )
    print(f"{name} is in {target}")


@app.command()
def show(
    preset: PresetArgument = "demo",
    overrides: SetOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Which labels each client holds, and how far its mix is from that of the whole set."""
    if plot is not None:
        check_figure_path(plot)
    config = load_config(preset, overrides or []).config
    mix = LabelMix.of(config, load_data(config, data_dir))
    if plot is not None:
        save_figure(draw_label_mix(mix), plot)
    if as_json:
        print_json(_as_json(mix))
        return
    _print_table(mix)
    if plot is not None:
        print(f"picture: {plot}")


def _as_json(mix: LabelMix) -> dict[str, object]:
    data = mix.data
    return {
        "data": {
            "name": data.name,
            "train_images": len(data.train_labels),
            "test_images": len(data.test_labels),
            "input_shape": list(data.input_shape),
            "num_classes": data.num_classes,
            "mean": list(data.mean),
            "std": list(data.std),
        },
        "dirichlet_alpha": mix.alpha,
        "seed": mix.seed,
        "samples_per_client": mix.samples_per_client,
        "label_counts": mix.counts.tolist(),
        "distance_from_global": mix.distance.tolist(),
    }


def _print_table(mix: LabelMix) -> None:
    data, out = mix.data, console()
    shape = "×".join(map(str, data.input_shape))
    out.print(
        f"[bold]{data.name}[/]: {len(data.train_labels):,} training and {len(data.test_labels):,} test images of "
        f"{shape}, {data.num_classes} classes; {len(mix.counts)} clients, "
        f"label mix ~ Dir({mix.alpha:g}), seed {mix.seed}"
    )
    table = Table(header_style="bold")
    for name in ("client", "samples", "labels"):
        table.add_column(name, justify="right")
    table.add_column("commonest labels")
    table.add_column("distance from the whole", justify="right")
    for client, (counts, distance) in enumerate(zip(mix.counts, mix.distance, strict=True)):
        table.add_row(
            str(client),
            f"{counts.sum():,}",
            str(np.count_nonzero(counts)),
            ", ".join(f"{label} ({100 * counts[label] / counts.sum():.0f} %)" for label in mix.commonest(client)),
            f"{distance:.2f}",
        )
    out.print(table)
    unused = len(data.train_labels) - mix.counts.sum()
    out.print(
        f"mean distance {mix.distance.mean():.2f} (0: the mix of the whole set, 1: no label in common)"
        + (f"; {unused} training images stay unused, so that all clients have as many" if unused else "")
    )
