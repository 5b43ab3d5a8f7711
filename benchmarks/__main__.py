import os
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

SMALL_MODELS = ("cnn-w0.5-cifar10", "vgg19-w0.25-cifar10")


def main(
    only: Annotated[list[str] | None, typer.Argument(help="tables to print, by name; default: all")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="turns of each training benchmark")] = 3,
    threads: Annotated[int, typer.Option(min=0, help="of PyTorch; 0: all cores")] = 1,
    model: Annotated[list[str] | None, typer.Option(help="to train; may be given several times")] = None,
) -> None:
    """Timings, as ratios within one run."""
    # Imported here, because each process that a training benchmark starts reads this file again.
    from benchmarks.costs import cost_table, import_table
    from benchmarks.decide import beyond_table, decision_table, rb_block_table
    from benchmarks.field import overhead_table, processes_table
    from benchmarks.training import merge_table, round_table

    console, models, cores = Console(), model or SMALL_MODELS, threads or os.cpu_count() or 1
    tables: dict[str, Callable[[], Table]] = {
        "imports": import_table,
        "costs": cost_table,
        "decisions": decision_table,
        "beyond": beyond_table,
        "rbs": rb_block_table,
        "rounds": lambda: round_table(models, cores, repeats),
        "merge": lambda: merge_table(model or SMALL_MODELS[:1], cores, repeats),  # it takes long
        "field": lambda: overhead_table(sorted({1, os.cpu_count() or 1}), repeats),
        "clients": lambda: processes_table(repeats),
    }
    if unknown := set(only or ()) - set(tables):
        raise typer.BadParameter(f"no table {', '.join(sorted(unknown))}; there are {', '.join(tables)}")
    for name in only or tables:
        console.print(tables[name]())


if __name__ == "__main__":
    typer.run(main)
