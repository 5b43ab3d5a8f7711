"""`asfl data`: get data sets and traces, and see how samples are spread over the clients."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from asfl.cli import options
from asfl.cli.output import show as show_result, table
from asfl.config import Radio
from asfl.config.errors import AsflError, nearest
from asfl.config.fields import MAX_BLOCKS
from asfl.config.randomness import random_stream
from asfl.data import load_data
from asfl.data.cifar import CIFAR
from asfl.data.load import default_folder
from asfl.results.charts.files import save_figure
from asfl.results.charts.world import LabelMix, label_chart, trace_chart

data_ = typer.Typer(no_args_is_help=True)


@data_.command()
def fetch(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    data_dir: options.DataDir = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="A mirror of the official binary archive.")
    ] = None,
) -> None:
    """Download a data set and check it; does nothing if it is there."""
    from asfl.data.cifar import fetch, is_complete

    if name == "digits":
        print("digits ships with asfl; there is nothing to fetch")
        return
    if name not in CIFAR:
        raise AsflError(f"no data set '{name}' to fetch: {nearest(name, CIFAR)}")
    kind, folder = CIFAR[name], default_folder(data_dir)
    if is_complete(kind, folder):
        print(f"{name} is already in {folder / kind.folder}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(kind.archive, total=None)
        target = fetch(
            kind, folder, url, lambda have, total: progress.update(task, completed=have, total=total or have)
        )
    print(f"{name} is in {target}")


@data_.command()
def show(
    preset: options.Preset = "demo",
    seed: options.Seed = None,
    overrides: options.Set = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """Which labels each client holds, and how far its mix is from that of the whole set."""
    config = options.configuration(preset, overrides, seed=seed).config
    mix = LabelMix.of(config, load_data(config, data_dir))
    show_result(
        as_json,
        plot,
        data=lambda: _as_json(mix),
        tables=lambda out: _print_table(mix, out),
        figure=lambda: label_chart(mix),
    )


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
        "partition": mix.settings.partition,
        "dirichlet_alpha": mix.settings.dirichlet_alpha,
        "seed": mix.seed,
        "samples_per_client": mix.samples.tolist(),
        "label_counts": mix.counts.tolist(),
        "distance_from_global": mix.distance.tolist(),
    }


def _print_table(mix: LabelMix, out: Console) -> None:
    data = mix.data
    shape = "×".join(map(str, data.input_shape))
    out.print(
        f"[bold]{data.name}[/]: {len(data.train_labels):,} training and {len(data.test_labels):,} test images of "
        f"{shape}, {data.num_classes} classes; {len(mix.counts)} clients, "
        f"{mix.rule}, seed {mix.seed}"
    )
    columns = ("client", "samples", "labels", "commonest labels", "distance from the whole")
    rows = (
        (
            str(client),
            f"{counts.sum():,}",
            str(np.count_nonzero(counts)),
            ", ".join(f"{label} ({100 * counts[label] / counts.sum():.0f} %)" for label in mix.commonest(client)),
            f"{distance:.2f}",
        )
        for client, (counts, distance) in enumerate(zip(mix.counts, mix.distance, strict=True))
    )
    out.print(table(columns, rows))
    unused = len(data.train_labels) - mix.counts.sum()
    out.print(
        f"mean distance {mix.distance.mean():.2f} (0: the mix of the whole set, 1: no label in common)"
        + (f"; {unused} training images stay unused, so that all clients have as many" if unused else "")
    )


@data_.command()
def deal(
    name: Annotated[str, typer.Argument(help="digits, cifar10, cifar100, or the path of an .npz file.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where part-0.npz, part-1.npz, … are written.")],
    sizes: Annotated[str, typer.Option("--sizes", metavar="N,…", help="How many images each device gets.")],
    data_dir: options.DataDir = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which images.")] = 1,
) -> None:
    """Deal a data set out to files, one for each device: something to try `asfl join --data` with."""
    from asfl.data.private import deal_out

    counts = [int(size) for size in sizes.split(",") if size.strip().isdecimal()]
    if len(counts) != len(sizes.split(",")):
        raise AsflError(f"--sizes {sizes}: give whole numbers with commas between them, for example 200,700,400")
    data = load_data(options.configuration("demo", [f"data.name={name}"]).config, data_dir)
    for file in deal_out(data, counts, out, random_stream(seed, "dealt out")):
        print(file)


@data_.command()
def trace(
    scene: Annotated[str, typer.Argument(help="A scene of Sionna RT: munich, florence, etoile, san_francisco, …")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.npz", help="Where the trace goes.")],
    clients: Annotated[int, typer.Option(min=1, max=1000, help="How many people walk.")] = 10,
    minutes: Annotated[float, typer.Option(min=0.01, max=1e4, help="For how long.")] = 5.0,
    speed: Annotated[float, typer.Option(min=0.0, max=100.0, help="How fast, in m/s.")] = 1.4,
    step: Annotated[float, typer.Option(min=0.001, max=1e4, help="Seconds from one sample to the next.")] = 1.0,
    radius: Annotated[float, typer.Option(min=20.0, max=5000.0, help="How far from the middle, in m.")] = 250.0,
    carrier: Annotated[float, typer.Option(min=1e8, max=1e12, help="Carrier frequency, in Hz.")] = 3.5e9,
    blocks: Annotated[int, typer.Option(min=1, max=MAX_BLOCKS, help="Resource blocks, each with a gain.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Who starts where, and turns which way.")] = 1,
    plot: options.Plot = None,
) -> None:
    """Walk clients through the streets of a city, solve their radio paths, write a trace; draw the map with --plot."""
    from asfl.radio.city import Tracer, Walk, trace_city
    from asfl.radio.traces import read_trace

    if out.suffix.lower() != ".npz":
        raise AsflError(f"--out {out}: a trace is an .npz file")
    asked = Walk(scene, clients, 60 * minutes, step, speed, radius, carrier, blocks, Radio().rb_bandwidth_hz, seed)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"loading {scene}", total=asked.steps)
        tracer = Tracer(scene, carrier)
        trace_city(
            asked,
            tracer,
            out,
            lambda done, steps: progress.update(task, completed=done, total=steps, description="solving paths"),
        )
    print(f"{out}: {clients} clients, {asked.steps} samples, one every {step:g} s")
    if plot is not None:
        save_figure(trace_chart(read_trace(out)), plot)
        print(f"picture: {plot}")
