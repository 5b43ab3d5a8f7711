"""Schemes, channels, models and data sets from files outside the package: who may load them, and what goes wrong."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from own_things import forgotten_afterwards, loud_scheme
from torch import nn

import asfl as package
from asfl.config import Radio, Scenario, load_config
from asfl.config.errors import AsflError
from asfl.config.fields import Positive
from asfl.config.names import CHANNELS, MODELS, PLUGINS_VARIABLE, ModelSpec, _loaded, loaded_plugins
from asfl.costs.world import Budgets, World
from asfl.models.build import build_model
from asfl.models.cuttable import Carry, CuttableModel
from asfl.models.load import load_profile
from asfl.radio.link import ChannelState
from asfl.runs.files import sealed_json, write_whole
from asfl.runs.manifest import MANIFEST_FILE, Manifest
from asfl.runs.play import play
from asfl.runs.run import resume
from asfl.schemes import SCHEMES, scheme_named
from asfl.schemes.asfl import AsflScheme


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(PLUGINS_VARIABLE, "")  # restored afterwards, whatever a test does to it
    with forgotten_afterwards():
        yield


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---------------------------------------------------------------------- loading
def test_a_file_is_loaded_now_and_named_for_processes_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "loud.py", loud_scheme())
    package.load_plugin("loud.py")
    assert scheme_named("loud").name == "loud"
    assert list(SCHEMES)[-1] == "loud"  # after those that ship
    assert os.environ[PLUGINS_VARIABLE] == str(tmp_path / "loud.py")
    package.load_plugin(tmp_path / "loud.py")
    assert os.environ[PLUGINS_VARIABLE] == str(tmp_path / "loud.py")
    assert list(loaded_plugins()) == [str(tmp_path / "loud.py")]


def test_the_variable_is_looked_at_when_a_name_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a" / "mine.py", loud_scheme())
    second = write(tmp_path / "b" / "mine.py", "import asfl\nasfl.register_channel('still', print)\n")
    text = "from pathlib import Path\nfrom asfl.schemes import scheme_named\n"  # names can be asked for while it loads
    text += "assert scheme_named('asfl')\nwith (Path(__file__).parent / 'log').open('a') as log:\n    log.write('x')\n"
    third = write(tmp_path / "counts.py", text)
    monkeypatch.setenv(PLUGINS_VARIABLE, os.pathsep.join([str(first), "", str(second), str(third)]))
    assert not _loaded
    for _ in range(3):
        assert "loud" in SCHEMES
        assert "still" in CHANNELS
        assert "cnn" in MODELS
    assert (tmp_path / "log").read_text() == "x"  # a file is run once
    assert len(loaded_plugins()) == 3  # two files of the same name are two plugins


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import asfl\n\nasfl.register_scheme(", "line 3: SyntaxError: '(' was never closed"),
        ("import asfl\nx = 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("a = '\x00'\n", "SyntaxError"),
        ("import asfl\nasfl.register_channel('Fog', print)\n", "line 2: channel name 'Fog' must be small letters"),
        ("import asfl\nasfl.register_model('cnn', print)\n", "line 2: architecture 'cnn' ships with asfl"),
    ],
)
def test_mistakes_in_a_file_are_named_with_their_line(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path / "broken.py", text)
    with pytest.raises(AsflError) as caught:
        package.load_plugin(file)
    assert str(caught.value).startswith(f"plugin {file}")
    assert words in str(caught.value)
    assert os.environ[PLUGINS_VARIABLE] == ""
    write(file, loud_scheme())  # mended, it loads
    package.load_plugin(file)
    assert "loud" in SCHEMES


def test_neither_a_configuration_nor_a_run_folder_runs_code(tmp_path: Path) -> None:
    evil = write(tmp_path / "evil.py", "from pathlib import Path\n(Path(__file__).parent / 'marker').touch()\n")
    write(tmp_path / "evil.toml", f'[scenario.channel]\nkind = "{evil}"\n')
    write(tmp_path / "key.toml", f'plugins = ["{evil}"]\n')
    manifest = Manifest(load_config("demo").config, "asfl", Budgets(1, 1), 1, {"plugins": {str(evil): ""}})
    plain: dict[str, Any] = manifest.to_json()
    of_channel = {**plain, "config": {**plain["config"], "scenario": {"channel": {"kind": str(evil)}}}}
    write_whole(tmp_path / "scheme" / MANIFEST_FILE, sealed_json({**plain, "scheme": str(evil)}))
    write_whole(tmp_path / "kind" / MANIFEST_FILE, sealed_json(of_channel))
    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: load_config(tmp_path / "evil.toml"), "unknown channel .* --plugin FILE"),
        (lambda: load_config(tmp_path / "key.toml"), "unknown key 'plugins'"),
        (lambda: resume(tmp_path / "scheme"), "unknown scheme .* --plugin FILE"),
        (lambda: resume(tmp_path / "kind"), "unknown channel .* --plugin FILE"),
    ]
    for ask, words in asked:
        with pytest.raises(AsflError, match=words):
            ask()
    assert not (tmp_path / "marker").exists()


# ---------------------------------------------------------------------- names
def test_the_same_name_belongs_to_who_registered_it(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one.py", loud_scheme(1)), write(tmp_path / "two.py", loud_scheme(2))
    package.load_plugin(one)
    before = SCHEMES["loud"]
    package.load_plugin(one)
    assert SCHEMES["loud"] is not before  # replaced
    line = loud_scheme().splitlines().index("asfl.register_scheme(Loud())") + 1
    with pytest.raises(AsflError, match=rf"two.py, line {line}: scheme 'loud' is already registered by {one}"):
        package.load_plugin(two)
    with pytest.raises(AsflError, match="scheme 'loud' is already registered by"):
        package.register_scheme(AsflScheme("loud"))
    package.register_scheme(AsflScheme("quiet"))
    package.register_scheme(AsflScheme("quiet", power="max"))  # a notebook's cell that is run again
    assert len(SCHEMES) == len(list(SCHEMES))


register_scheme: Any = package.register_scheme
register_model: Any = package.register_model
register_channel: Any = package.register_channel


@pytest.mark.parametrize(
    ("register", "words"),
    [
        (lambda: register_scheme(AsflScheme("sfl")), "scheme 'sfl' ships with asfl"),
        (lambda: register_scheme(AsflScheme("a,b")), "scheme name 'a,b' must be small letters"),
        (lambda: register_scheme(AsflScheme), r"not its class: register_scheme\(AsflScheme\(\)\)"),
        (lambda: register_scheme(object()), "object lacks name, exchange, decide"),
        (lambda: register_model("mine", 3), "no function of a ModelSpec"),
        (lambda: register_channel("mine", None), r"no function of \(scenario, radio\)"),
    ],
)
def test_names_and_things_that_are_refused(register: Callable[[], object], words: str) -> None:
    with pytest.raises(AsflError, match=words):
        register()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "scenario.channel.kind=raylegh",
            "unknown channel 'raylegh': did you mean 'rayleigh'? Your own needs --plugin",
        ),
        ("scenario.channel.kind=fog", "unknown channel 'fog': valid: 3gpp, rayleigh, trace. Your own"),
        ("model.architecture=vgg91", "model.architecture: unknown architecture 'vgg91': did you mean 'vgg19'? Your"),
        ("data.name=fog", "an .npz file. Your own needs --plugin FILE"),
    ],
)
def test_unknown_names_say_what_is_valid_and_how_yours_would_be(override: str, words: str) -> None:
    with pytest.raises(AsflError) as caught:
        load_config("demo", [override])
    assert words in str(caught.value)


# ---------------------------------------------------------------------- settings
@dataclass(frozen=True)
class Foggy:
    scenario: Scenario
    radio: Radio
    gain: Positive = 1e-9
    colour: Literal["grey", "white"] = "grey"
    lifts: bool = False
    seen: list[int] = field(default_factory=list, init=False)

    def at(self, round_index: int) -> ChannelState:
        gain = np.full(self.scenario.clients, self.gain)
        return ChannelState(gain, gain, gain_is_known=True)


def in_fog(*settings: str) -> World:
    own = [f"scenario.channel.own.{setting}" for setting in settings]
    return World.of(load_config("demo", ["scenario.channel.kind=fog", *own]).config)


def test_fields_behind_the_first_are_settings() -> None:
    package.register_channel("fog", Foggy)
    assert in_fog().begin_round(0).channel_gain.tolist() == [1e-9] * 6
    world = in_fog("gain=3", "colour=white", "lifts=true")
    assert world.begin_round(0).channel_gain.tolist() == [3.0] * 6
    assert (world.channel.colour, world.channel.lifts) == ("white", True)  # type: ignore[attr-defined]
    package.register_channel("fog", lambda scenario, radio, **more: Foggy(scenario, radio, more["gain"]))
    assert in_fog("gain=2", "more=1").begin_round(0).channel_gain.tolist() == [2.0] * 6
    package.register_channel("fog", lambda *both, gain=1.0: Foggy(both[0], both[1], gain))
    assert in_fog("gain=2").begin_round(0).channel_gain.tolist() == [2.0] * 6


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("gian=3", "scenario.channel.own: channel 'fog': got an unexpected keyword argument 'gian'"),
        ("seen=3", "got an unexpected keyword argument 'seen'"),
        ("scenario=3", "multiple values for argument 'scenario'"),
    ],
)
def test_settings_that_a_plugin_does_not_declare_are_refused(setting: str, words: str) -> None:
    package.register_channel("fog", Foggy)
    with pytest.raises(AsflError) as caught:
        in_fog(setting)
    assert words in str(caught.value)


# ---------------------------------------------------------------------- what they do
class Step(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, carry: Carry) -> Carry:
        return (self.layers(carry[0]),)


def tiny(spec: ModelSpec, hidden: int = 5, classes: int = 10) -> CuttableModel:
    return CuttableModel({"flat": Step(nn.Flatten(), nn.Linear(64, hidden)), "out": Step(nn.Linear(hidden, classes))})


def test_a_model_is_measured_and_measured_again_when_it_changes() -> None:
    package.register_model("my-net", tiny)
    spec = ModelSpec("my-net", "digits", 0.5, "group")
    assert ModelSpec.parse(spec.name) == spec
    assert ModelSpec.parse("my-net").dataset == "cifar100"
    assert load_profile("my-net-digits").activation_bits.tolist() == [5 * 32, 10 * 32]
    assert load_profile("my-net-digits") is load_profile("my-net-digits")
    package.register_model("my-net", lambda spec: tiny(spec, hidden=7))
    assert load_profile("my-net-digits").activation_bits.tolist() == [7 * 32, 10 * 32]
    assert build_model(spec)(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (nn.Linear(1, 1), "must return a CuttableModel of at least 2 units, not Linear"),
        (CuttableModel({"only": Step(nn.Flatten())}), "of at least 2 units, not CuttableModel of 1"),
        (tiny(ModelSpec("x", "digits"), classes=9), r"must give one tensor \(10,\) a sample, but gives \[\(9,\)\]"),
    ],
)
def test_a_model_that_is_none_is_refused(built: nn.Module, words: str) -> None:
    package.register_model("broken", lambda spec: built.to("meta"))  # type: ignore[arg-type,return-value]
    with pytest.raises(AsflError, match=words):
        load_profile("broken-digits")


@pytest.mark.parametrize(
    ("cut", "blocks", "words"),
    [
        (1, 2.0, "scheme loud, round 1: decision.rb_count gives out 12 resource blocks"),
        (7, 1.0, "scheme loud, round 1: decision.cut = 7 must be 1 … 6"),
        (1, 0.5, "must be a whole number"),
    ],
)
def test_a_decision_that_cannot_be_carried_out_is_refused(tmp_path: Path, cut: int, blocks: float, words: str) -> None:
    package.load_plugin(write(tmp_path / "loud.py", loud_scheme(cut, blocks)))
    world = World.of(load_config("demo").config)
    with pytest.raises(AsflError, match=words):
        next(play(world, scheme_named("loud"), 1, Budgets(1, 1)))
