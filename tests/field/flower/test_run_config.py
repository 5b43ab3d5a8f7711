"""From `--run-config` to a configuration, and what stands in pyproject.toml about it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from asfl._version import __version__
from asfl.config import load_config, preset_names
from asfl.config.errors import AsflError
from asfl.config.show import as_toml
from asfl.field.flower.run_config import DEFAULTS, Order

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
Values = dict[str, bool | int | float | str]


# ---------------------------------------------------------------------- pyproject.toml
def test_pyproject_lists_every_key() -> None:
    """Flower takes only keys that stand there, and hands all of them to the ServerApp."""
    assert tomllib.loads(PYPROJECT.read_text("utf-8"))["tool"]["flwr"]["app"]["config"] == DEFAULTS


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
    order = Order.of(DEFAULTS | {"base": preset})
    assert order.config == load_config(preset).config
    assert order.folder == Path(f"runs/{preset}-asfl-seed1")
    assert (order.scheme, order.data_dir, order.address) == ("asfl", None, "127.0.0.1:0")


def test_fields_are_set_as_with_set() -> None:
    changes = [
        "training.rounds=5", "scenario.clients = 3", "scenario.min_cpu_hz=50 MHz", "data.augment=false",
        "training.learning_rate=1e-3", "decision.delay_budget_s='auto'",
    ]  # fmt: skip
    values: Values = {"set": " ; ".join(changes) + ";", "scheme": "sfl", "out": "/somewhere", "data-dir": "data sets"}
    order = Order.of(DEFAULTS | values)
    assert order.config == load_config("demo", changes).config
    assert (order.scheme, order.folder, order.data_dir) == ("sfl", Path("/somewhere"), Path("data sets"))


def test_a_file_can_be_the_base(tmp_path: Path) -> None:
    """This is how `asfl fleet` hands over a configuration, to the last digit."""
    resolved = load_config("demo", ["training.learning_rate=0.123456789012345", "radio.noise_psd_w_per_hz=3.7e-21"])
    file = tmp_path / "mine.toml"
    file.write_text(as_toml(resolved))
    order = Order.of(DEFAULTS | {"base": str(file)})
    assert order.config == resolved.config
    assert order.folder == Path("runs/mine-asfl-seed1")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("set", "training.round=5", "unknown key 'training.round': did you mean 'rounds'? (set in --run-config)"),
        ("set", "training.rounds=0", "training.rounds = 0 must be a whole number ≥ 1"),
        ("set", "training.rounds=true", "training.rounds = True must be a whole number"),
        ("set", "training.rounds", "write it as section.field=value"),
        ("scheem", "sfl", "unknown key 'scheem': did you mean 'scheme'?"),
        ("scheme", "sfll", "did you mean 'sfl'?"),
        ("base", "dmo", "did you mean 'demo'?"),
        ("address", "here", "write it as host:port"),
        ("threads", -1, "threads = -1 must be a whole number ≥ 0"),
        ("nodes-s", -1, "nodes-s = -1 must be a number > 0, in s"),
        ("wait-s", 0, "wait-s = 0 must be a number > 0, in s"),
        ("patience-s", "long", "patience-s = 'long' must be a number > 0, in s"),
    ],
)
def test_mistakes_are_named(name: str, value: bool | int | str, words: str) -> None:
    with pytest.raises(AsflError) as caught:
        Order.of(DEFAULTS | {name: value})
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
from asfl.config.errors import MissingExtraError
try:
    {action}
except MissingExtraError as error:
    print(error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.strip() == "a federation with Flower needs an optional dependency: pip install 'asfl[flower]'"
    assert list(tmp_path.iterdir()) == []
