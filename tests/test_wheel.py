"""The wheel holds everything: installed where no asfl is, it lists, writes, trains and reports."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from waiting import LONG_S

ROOT = Path(__file__).parents[1]


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
    said(
        "--plugin",
        "mine.py",
        "compare",
        "demo",
        *tiny.split(),
        "--schemes",
        "asfl,mine",
        "--rounds",
        "1",
        "--workers",
        "1",
    )
    assert "page: report.html" in said("report", "runs/compare-demo", "--no-figures")
    assert "vgg19-cifar100" in said("profile", "--list")
