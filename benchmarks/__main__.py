from rich.console import Console

from benchmarks.costs import cost_table, import_table


def main() -> None:
    console = Console()
    for make_table in (cost_table, import_table):
        console.print(make_table())


if __name__ == "__main__":
    main()
