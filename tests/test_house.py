"""The house: import contracts, the number of rooms, totals of lines and words; and the maps of it are true."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from shared_work import LONGEST, RAY

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "asfl"
MOST_ROOMS = 13
MOST = {"lines of src": 33_300, "lines of tests": 22_150, "words written by hand": 22_000}
"""Totals that may only fall, or rise in a commit that says why."""


def rooms() -> set[str]:
    return {file.parent.name for file in SOURCE.glob("*/__init__.py")}


def test_the_import_contracts_are_kept() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_there_are_few_rooms_and_nothing_beside_them() -> None:
    assert len(rooms()) <= MOST_ROOMS
    modules = {file.stem for file in SOURCE.glob("*.py")}
    assert modules == {"__init__", "__main__", "_version"}


def lines_below(folder: Path) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in folder.rglob("*.py"))


def test_the_house_does_not_grow() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    by_hand = [page for page in pages if page.parent.name != "results"]  # those pages are made by commands
    totals = {
        "lines of src": lines_below(SOURCE),
        "lines of tests": lines_below(ROOT / "tests"),
        "words written by hand": sum(len(page.read_text("utf-8").split()) for page in by_hand),
    }
    assert {name: total for name, total in totals.items() if total > MOST[name]} == {}


def test_all_that_need_a_ray_cluster_share_one() -> None:
    """Else there is one in every process of `make test`, and they take each other's time."""
    files = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py")}
    assert {file for file, text in files.items() if re.search(r"\(.*\bray_nodes: TwoNodes", text)} == set(RAY)
    assert files.keys() >= set(LONGEST)


# ---------------------------------------------------------------------- maps
def map_in_contributing() -> list[str]:
    drawing = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("src/asfl/\n")[2].partition("```")[0]
    return re.findall(r"^ +(\w+)/ +\S", drawing, re.MULTILINE)


def test_the_map_is_the_tree_in_the_order_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    levels = [set(re.findall(r"\w+", layer)) for layer in reversed(layers)]
    assert set().union(*levels) == rooms()
    drawn = map_in_contributing()
    assert sorted(drawn) == sorted(rooms())
    for level in levels:  # rooms of one level may stand in any order
        here, drawn = set(drawn[: len(level)]), drawn[len(level) :]
        assert here == level


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
