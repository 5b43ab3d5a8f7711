"""The wheel holds everything: installed where no asfl is, it lists, writes, trains and reports."""

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from waiting import LONG_S

ROOT = Path(__file__).parents[1]
PARTS_OF = {
    "annotated_types": "pydantic", "pydantic_core": "pydantic", "PIL": "matplotlib", "llvmlite": "numba",
    "markupsafe": "jinja2", "mitsuba": "sionna-rt", "typing_extensions": "pydantic",
}  # fmt: skip
"""Modules that come with a package for good, and are named in its interface."""
ASKED_FOR = {"IPython"}
"""Modules that are used where they are, and never missed."""


def test_whatever_is_imported_is_declared() -> None:
    """What another package happens to bring along today may be gone tomorrow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    every = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    declared = {_normal(re.split(r"[^\w.-]", one)[0]) for one in every}
    packages, imported = metadata.packages_distributions(), set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).partition(".")[0])
    for module in imported - sys.stdlib_module_names - {"asfl"} - ASKED_FOR:
        names = [PARTS_OF[module]] if module in PARTS_OF else packages.get(module, [module])
        assert not declared.isdisjoint(map(_normal, names)), f"{module} is imported, but no dependency"


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has asfl from its wheel, and takes what it depends on from this one.

    A path file adds a folder without reading the path files in it: so the asfl that is developed here isn't found.
    """
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    subprocess.run(build, check=True, capture_output=True, timeout=LONG_S, cwd=ROOT)
    venv.create(place / "env", symlinks=True)
    libraries = Path(sysconfig.get_path("purelib", vars={"base": str(place / "env"), "platbase": str(place / "env")}))
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        wheel.extractall(libraries)
    (libraries / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def test_what_the_wheel_installs_works(installed: Path) -> None:
    python = installed / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    tiny = "--set scenario.clients=2 --set training.batch_size=4 --set output.track=none"

    def said(*words: str) -> str:
        command = [str(python), "-I", "-m", "asfl", *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, cwd=installed, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    where = [str(python), "-I", "-c", "import asfl; print(asfl.__file__)"]
    assert str(installed) in subprocess.run(where, capture_output=True, text=True, check=True).stdout
    assert "demo" in said("list", "presets")
    assert "mine.py is written" in said("new", "scheme", "mine")
    said("--plugin", "mine.py", "run", "demo", *tiny.split(), "--scheme", "mine", "--rounds", "1", "--out", "run")
    assert "page: run/report.html" in said("report", "run", "--no-figures")
    assert "vgg19-cifar100" in said("list", "profiles")
