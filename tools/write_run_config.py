"""Write what `flwr run --run-config` can set into pyproject.toml: Flower takes only keys that stand there."""

from pathlib import Path

from asfl.field.flower.run_config import as_toml

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
BEGIN, END = "# begin of what tools/write_run_config.py writes\n", "# end of what tools/write_run_config.py writes\n"


def with_run_config(pyproject: str) -> str:
    """The text of pyproject.toml, with the keys as they are now."""
    head, _, rest = pyproject.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{as_toml()}{END}{tail}"


if __name__ == "__main__":
    PYPROJECT.write_text(with_run_config(PYPROJECT.read_text("utf-8")), "utf-8")
