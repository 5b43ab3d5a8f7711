import json
import re
import tomllib
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, ValidationError

from asfl.cli.options import configuration
from asfl.config import Config, Resolved, by_name, load_config, preset_names, recorded_config
from asfl.config.errors import AsflError
from asfl.config.fields import valid_range
from asfl.config.removed import INSTEAD, USUAL
from asfl.config.show import as_toml, toml_value
from asfl.costs.world import World
from conftest import Asfl, assert_refused


def test_defaults_are_table_ii() -> None:
    """The numbers of the paper's Table II, in SI units."""
    config = Config()
    radio, compute, rules = config.radio, config.compute, config.decision
    assert (radio.num_rbs, radio.rb_bandwidth_hz, radio.downlink_bandwidth_hz) == (8, 1e6, 8e6)
    assert (radio.max_tx_power_w, radio.server_tx_power_w, radio.waterfall_threshold) == (1.5, 5, 1)
    assert radio.noise_psd_w_per_hz == pytest.approx(10**-20.3)
    assert (compute.server_cycles_per_flop, compute.client_cycles_per_flop) == (1 / 32, 1 / 16)
    assert (compute.server_hz, compute.energy_coefficient) == (1e10, 1e-28)
    assert (rules.penalty_weight, rules.queue_memory) == (10, 0.5)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_paper_presets_are_table_ii_as_printed(dataset: str) -> None:
    config = load_config(f"paper-{dataset}").config
    assert config.radio == Config().radio
    assert config.compute == Config().compute
    assert (config.decision.delay_budget_s, config.decision.energy_budget_j) == (20, 0.5)
    assert (config.training.rounds, config.training.batch_size, config.training.learning_rate) == (200, 64, 1e-4)
    assert (config.scenario.clients, config.data.dirichlet_alpha, config.data.name) == (10, 10, dataset)


@pytest.mark.parametrize("name", USUAL)
def test_archived_settings_that_are_gone_are_left_out_if_they_had_their_usual_values(name: str) -> None:
    *sections, key = name.split(".")
    recorded = Config().model_dump()
    inside = reduce(getitem, sections, recorded)
    inside[key] = USUAL[name]
    assert recorded_config(recorded) == Config()
    inside[key] = object()
    with pytest.raises(ValidationError):
        recorded_config(recorded)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_builds_its_world_without_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    world = World.of(load_config(name).config)
    assert world.begin_round(0).num_clients == world.config.scenario.clients


def test_every_field_has_a_description_and_says_what_is_valid() -> None:
    def check(model: type[BaseModel], path: str) -> None:
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                assert field.annotation.__doc__, path + name
                check(field.annotation, f"{path}{name}.")
            else:
                assert field.description, path + name
                assert valid_range(field), path + name

    check(Config, "")


def test_names_with_a_unit_suffix_carry_that_unit() -> None:
    suffixes = {"_hz": "Hz", "_w": "W", "_s": "s", "_j": "J", "_m": "m", "_db": "dB"}
    for line in as_toml(load_config("demo")).splitlines():
        name, _, comment = line.partition(" = ")
        for suffix, unit in suffixes.items():
            if name.endswith(suffix) and not name.endswith("per_hz"):
                assert f" {unit} · " in comment, line


FILE_NAMES = st.text(max_size=50).filter(lambda name: "\0" not in name)


@given(
    folder=FILE_NAMES,
    file=FILE_NAMES,
    name=FILE_NAMES.map("{}.npz".format),
    positive=st.floats(1e-60, 1e12),
    source=st.text(),
    with_docs=st.booleans(),
)
def test_shown_configuration_can_be_saved_and_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    folder: str,
    file: str,
    name: str,
    positive: float,
    source: str,
    with_docs: bool,
) -> None:
    """Whatever the texts, also those of the comments, and whatever the number."""
    preset = load_config("small-cifar10").config
    changes = {
        "data": preset.data.model_copy(update={"name": name, "dirichlet_alpha": positive}),
        "model": preset.model.model_copy(update={"charged_as": file}),
    }
    config = preset.model_copy(update=changes)
    saved = tmp_path_factory.mktemp("shown") / "mine.toml"
    sources = dict.fromkeys(by_name(config.model_dump()), f"file {source}")
    saved.write_text(as_toml(Resolved(config, sources), with_docs), "utf-8")
    assert load_config(saved).config == config
    assert load_config("small-cifar10", [f"model.charged_as={toml_value(folder)}"]).config.model.charged_as == folder


def test_sources_are_remembered(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "small-cifar10"\n[radio]\nnum_rbs = 12\n[scenario]\nclients = 7\n')
    resolved = load_config(file, ["scenario.clients=20"])
    assert resolved.config.scenario.clients == 20
    assert resolved.sources["scenario.clients"] == "--set"
    assert resolved.sources["radio.num_rbs"] == "file mine.toml"
    assert resolved.sources["model.architecture"] == "preset small-cifar10"
    assert resolved.sources["compute.server_hz"] == "default"
    with pytest.raises(ValidationError):
        resolved.config.radio.num_rbs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("radio.num_rb=3", "unknown key 'radio.num_rb': did you mean 'num_rbs'?"),
        ("radio.num_rbs=0", "radio.num_rbs = 0 must be a whole number ≥ 1"),
        ("radio.rb_bandwidth_hz=20 s", "radio.rb_bandwidth_hz: '20 s' has the unit 's'"),
        ("radio.max_tx_power_w=-1", "radio.max_tx_power_w = -1 must be a number > 0 and ≤ 1e9, in W"),
        ("model.norm=batchh", 'model.norm = \'batchh\' must be one of "batch", "group", "none"'),
        ("decision.delay_budget_s=0", 'must be a number > 0 and ≤ 1e9 or "auto", in s'),
        ("scenario.min_cpu_hz=1e12", "scenario.min_cpu_hz = 1e+12 must not be above max_cpu_hz"),
        ("scenario.radius_m=1", "radius_m = 1 must be above 1, the least distance"),
        ("scenario.channel.kind=trace", "needs channel.trace_file"),
        ("decision.min_participants=7", "more than can be served: 6 clients"),
        ("budget.battery_j=[1, 2]", "budget.battery_j has 2 numbers for 6 clients"),
        ("budget.total_delay_s=0", 'budget.total_delay_s = 0 must be a number > 0 and ≤ 1e9 or "off", in s'),
        ("radio=3", "radio = 3 must be a section"),
        ("clients", "write it as section.field=value"),
        ("schemes.epsl.learning_rate=0", "schemes.epsl.learning_rate = 0 must be a number > 0"),
        ("schemes.epsl.learning_rat=1", "unknown key 'schemes.epsl.learning_rat': did you mean 'learning_rate'?"),
        ("schemes.epsl=1", "schemes.epsl = 1 must be a section with fields of its own"),
        ("schemes.E S.learning_rate=1", "schemes.E S: a name has small letters, digits, - and _"),
        ("radio.num_rbs.x=1", "unknown key|is a value, not a section|must be a whole number"),
    ],
)
def test_mistakes_are_named(override: str, words: str) -> None:
    with pytest.raises(AsflError) as caught:
        load_config("demo", [override])
    assert any(option in str(caught.value) for option in words.split("|"))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[radio\nnum_rbs = 3")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    wrong_base = tmp_path / "base.toml"
    wrong_base.write_text('base = "dmo"')
    for file, words in [(broken, "not valid TOML"), (binary, "can't read"), (wrong_base, "did you mean 'demo'?")]:
        with pytest.raises(AsflError, match=words):
            load_config(file)
    with pytest.raises(AsflError, match="no such file"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(AsflError, match="did you mean 'paper-cifar10'"):
        load_config("paper-cifar1")


def test_show_and_check_on_the_command_line(asfl: Asfl, tmp_path: Path) -> None:
    shown = asfl("explain", "paper-cifar100", "--set", "scenario.clients=20")
    assert shown.returncode == 0
    assert tomllib.loads(shown.stdout)["scenario"]["clients"] == 20
    assert "· --set" in shown.stdout
    assert "· preset paper-cifar100" in shown.stdout
    (tmp_path / "mine.toml").write_text("[radio]\nnum_rbs = 3\n")
    assert "mine.toml is valid: vgg19-cifar100" in asfl("check", "mine.toml").stdout
    folder = 'two\nlines\t"ä" \\ 🙂'  # also with a line break, a tab, quotes and letters from elsewhere
    shown = asfl("explain", "demo", "--set", f"scenario.channel.trace_file={toml_value(folder)}")
    (tmp_path / "shown.toml").write_text(shown.stdout, "utf-8")
    assert "shown.toml is valid" in asfl("check", "shown.toml").stdout
    assert load_config(tmp_path / "shown.toml").config.scenario.channel.trace_file == folder
    (tmp_path / "mine.toml").write_text("[radio]\nnum_rb = 3\n")
    refused = asfl("check", "mine.toml")
    assert_refused(refused, "unknown key 'radio.num_rb'", "did you mean 'num_rbs'?", "file mine.toml")
    assert list(json.loads(asfl("list", "presets", "--json").stdout)) == preset_names()


OWN = ["schemes.epsl.learning_rate=3e-4", "schemes.sfl-cut2.local_steps=5"]


def test_settings_of_single_schemes() -> None:
    config = load_config("demo", OWN).config
    usual = load_config("demo").config
    assert config.for_scheme("asfl") == usual
    assert config.for_scheme("epsl").training == usual.training.model_copy(update={"learning_rate": 3e-4})
    steps = config.for_scheme("sfl-cut2")
    assert (steps.training.local_steps, steps.charged_samples) == (5, 5 * usual.charged_samples)
    assert steps.for_scheme("epsl") == steps  # what was resolved stays so
    longer = load_config("demo", ["schemes.epsl.rounds_times=1.33", "training.rounds=10"]).config
    assert [longer.for_scheme(name).training.rounds for name in ("asfl", "epsl")] == [10, 14]
    assert len({config, load_config("demo", OWN).config, usual}) == 2


def test_unknown_schemes_are_refused(asfl: Asfl) -> None:
    refused = asfl("explain", "demo", "--set", "schemes.eps.learning_rate=1e-3")
    assert_refused(refused, "schemes.eps: unknown scheme 'eps': did you mean 'epsl'?")
    with pytest.raises(AsflError, match="unknown scheme 'afl': did you mean 'asfl'"):
        configuration("demo", ["schemes.afl.local_steps=2"])
    kept = {**Config().model_dump(mode="json"), "schemes": {"of-a-plugin": {"local_steps": 2}}}
    assert Config.model_validate(kept).for_scheme("of-a-plugin").training.local_steps == 2  # of a run that is there


@pytest.mark.parametrize("name", [name for name in INSTEAD if "." in name])
def test_a_setting_that_is_gone_says_what_to_use_instead(name: str) -> None:
    with pytest.raises(AsflError, match=re.escape(INSTEAD[name])):
        load_config("demo", [f"{name}=1"])
