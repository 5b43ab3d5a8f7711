"""`asfl trace`: clients walk through a ray-traced city."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from asfl.cli import options
from asfl.config import Radio
from asfl.config.errors import AsflError
from asfl.config.fields import MAX_BLOCKS
from asfl.radio.city.rays import Tracer
from asfl.radio.city.trace import Walk, trace_city


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
    """Walk clients through the streets of a city, solve their radio paths, write a trace; draw the map with --plot.

    What was begun goes on if the same command is given again.
    """
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
        from asfl.radio.traces import read_trace
        from asfl.results.charts.files import save_figure
        from asfl.results.charts.world import trace_chart

        save_figure(trace_chart(read_trace(out)), plot)
        print(plot)
