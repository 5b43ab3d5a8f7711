from rich.console import Console

from benchmarks.costs import cost_table, import_table
from benchmarks.decide import decision_table, rb_block_table


def main() -> None:
    console = Console()
    for make_table in (import_table, cost_table, decision_table, rb_block_table):
        console.print(make_table())


if __name__ == "__main__":
    main()
