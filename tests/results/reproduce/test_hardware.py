"""The page on other hardware: it counts verdicts, and names what flips and where."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from made_up import made_up_run

from asfl.config import load_config
from asfl.results.reproduce.archive import Found, Point
from asfl.results.reproduce.recharge import check_charges


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    file = Path(__file__).parents[3] / "tools" / "hardware.py"
    spec = importlib.util.spec_from_file_location("hardware", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_flips(tool: ModuleType) -> None:
    said = {}
    for name, delay_s in ((tool.TABLE_II, 1.0), ("server × 3", 1.0), ("laptop", 50.0)):
        runs = [
            made_up_run(scheme, [0.2, 0.4, 0.6, 0.6, 0.6, 0.6], seed=seed, delay_s=own_s, energy_j=2.0)
            for scheme, own_s in (("asfl-plus", delay_s), ("asfl", 7.0), ("sfl-best", 30.0))
            for seed in (1, 2)
        ]
        said[name] = tool.said_by([Found(tool.HEADLINE, "", [Point("vgg19-cifar10", "", "world", runs)])])
    page = tool.page(said, "make hardware")
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[6] for line in page.splitlines() if line.startswith("| ")}
    assert rows["Table II"] == rows["server × 3"] == "–"
    (letter,) = (line[2] for line in page.splitlines() if "delay to an accuracy 75 % below asfl (" in line)
    assert letter in rows["laptop"]
    assert "asfl-plus: delay to an accuracy 75 % below asfl (accuracy-delay-energy): holds → doesn't hold" in page


def test_all_hardware_can_be_charged(tool: ModuleType) -> None:
    for settings in {**tool.MACHINES, **tool.TIMINGS}.values():
        check_charges(settings)
        assert (load_config("demo", settings).config == load_config("demo").config) == (not settings)
