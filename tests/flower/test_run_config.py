"""From `--run-config` to a configuration, and what stands in pyproject.toml about it."""

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from asfl._version import __version__
from asfl.config import by_name, load_config, preset_names
from asfl.config.show import as_toml as configuration_as_toml
from asfl.errors import AsflError
from asfl.field.flower.run_config import OWN_KEYS, Order, as_toml

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = ROOT / "pyproject.toml"


def listed() -> dict[str, bool | int | float | str]:
    """The defaults, as Flower hands them to the ServerApp."""
    return by_name(tomllib.loads(as_toml())["tool"]["flwr"]["app"]["config"])


# ---------------------------------------------------------------------- pyproject.toml
def test_pyproject_lists_every_key_as_it_is_now() -> None:
    """If it doesn't: python tools/write_run_config.py."""
    tool = runpy.run_path(str(ROOT / "tools" / "write_run_config.py"))
    text = PYPROJECT.read_text("utf-8")
    assert tool["with_run_config"](text) == text
    in_file = by_name(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
    assert in_file == listed()
    assert in_file.keys() == {*OWN_KEYS, *by_name(load_config("demo").config.model_dump())}


def test_pyproject_has_the_version_of_the_package() -> None:
    """Flower reads it there."""
    assert tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["version"] == __version__


def test_the_components_exist() -> None:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from asfl.field.flower import client_app, server_app

    assert isinstance(server_app.app, ServerApp)
    assert isinstance(client_app.app, ClientApp)
    components = tomllib.loads(PYPROJECT.read_text("utf-8"))["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": f"{server_app.__name__}:app", "clientapp": f"{client_app.__name__}:app"}


# ---------------------------------------------------------------------- orders
@pytest.mark.parametrize("preset", preset_names())
def test_without_changes_it_is_the_preset(preset: str) -> None:
    order = Order.of(listed() | {"preset": preset})
    assert order.config == load_config(preset).config
    assert order.folder == Path(f"runs/{preset}-asfl-seed1")
    assert (order.scheme, order.data_dir, order.address) == ("asfl", None, "127.0.0.1:0")


def test_fields_are_set_as_with_set() -> None:
    changes: dict[str, bool | int | float | str] = {
        "training.rounds": 5,
        "scenario.clients": 3,
        "scenario.min_cpu_hz": "50 MHz",
        "data.augment": False,
        "training.learning_rate": 1e-3,
        "decision.delay_budget_s": "auto",
    }
    order = Order.of(listed() | changes | {"scheme": "sfl", "out": "/somewhere", "data-dir": "data sets"})
    text = {True: "true", False: "false"}
    overrides = [f"{name}={text[value] if isinstance(value, bool) else value}" for name, value in changes.items()]
    assert order.config == load_config("demo", overrides).config
    assert (order.scheme, order.folder, order.data_dir) == ("sfl", Path("/somewhere"), Path("data sets"))


def test_a_value_of_the_demo_can_be_set_in_another_preset() -> None:
    rounds = load_config("demo").config.training.rounds
    order = Order.of(listed() | {"preset": "small-cifar10", "training.rounds": rounds})
    assert order.config == load_config("small-cifar10", [f"training.rounds={rounds}"]).config


def test_a_file_can_be_the_preset(tmp_path: Path) -> None:
    """This is how `asfl fleet` hands over a configuration, to the last digit."""
    resolved = load_config("demo", ["training.learning_rate=0.123456789012345", "radio.noise_psd_w_per_hz=3.7e-21"])
    file = tmp_path / "mine.toml"
    file.write_text(configuration_as_toml(resolved))
    order = Order.of(listed() | {"preset": str(file)})
    assert order.config == resolved.config
    assert order.folder == Path("runs/mine-asfl-seed1")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("training.round", 5, "unknown key 'training.round': did you mean 'rounds'? (set in --run-config)"),
        ("scheem", "sfl", "unknown key 'scheem': did you mean 'scheme'?"),
        ("training.rounds", 0, "training.rounds = 0 must be a whole number ≥ 1 (set in --run-config)"),
        ("training.rounds", True, "training.rounds = True must be a whole number"),
        ("scheme", "sfll", "did you mean 'sfl'?"),
        ("preset", "dmo", "did you mean 'demo'?"),
        ("address", "here", "write it as host:port"),
        ("threads", -1, "threads = -1 must be a whole number ≥ 0"),
        ("wait-s", 0, "wait-s = 0 must be a number > 0, in s"),
        ("patience-s", "long", "patience-s = 'long' must be a number > 0, in s"),
    ],
)
def test_mistakes_are_named(name: str, value: bool | int | str, words: str) -> None:
    with pytest.raises(AsflError) as caught:
        Order.of(listed() | {name: value})
    assert words in str(caught.value)


# ---------------------------------------------------------------------- the extra
@pytest.mark.parametrize("action", ["import asfl.field.flower.server_app", "from asfl.cli import app; app(['fleet'])"])
def test_without_flower(action: str, tmp_path: Path) -> None:
    """What one needs to install is said, by the package and by the command."""
    code = f"""
import sys
from importlib.abc import MetaPathFinder
class Hide(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "flwr":
            raise ModuleNotFoundError(name)
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "flwr" else real(name, *more)
sys.meta_path.insert(0, Hide())
from asfl.errors import MissingExtraError
try:
    {action}
except MissingExtraError as error:
    print(error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.strip() == "a federation with Flower needs an optional dependency: pip install 'asfl[flower]'"
    assert list(tmp_path.iterdir()) == []
