import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from asfl.config import Config, load_config, preset_names
from asfl.config.fields import valid_range
from asfl.config.show import as_toml
from asfl.errors import AsflError
from asfl.world import World
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
    assert (rules.penalty_weight, rules.discrepancy_sample_ratio, rules.queue_memory) == (10, 0.05, 0.5)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_paper_presets_are_table_ii_as_printed(dataset: str) -> None:
    config = load_config(f"paper-{dataset}").config
    assert config.radio == Config().radio
    assert config.compute == Config().compute
    assert (config.decision.delay_budget_s, config.decision.energy_budget_j) == (20, 0.5)
    assert (config.training.rounds, config.training.batch_size, config.training.learning_rate) == (200, 64, 1e-4)
    assert (config.scenario.clients, config.data.dirichlet_alpha, config.data.name) == (10, 10, dataset)


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
                assert f"# {unit} · " in comment, line


def test_shown_configuration_can_be_saved_and_read_back(tmp_path: Path) -> None:
    shown = load_config("small-cifar10", ["radio.noise_psd_w_per_hz=-170 dBm/Hz", 'data.folder="a \\"b\\\\"'])
    file = tmp_path / "mine.toml"
    for with_docs in (False, True):
        file.write_text(as_toml(shown, with_docs))
        assert load_config(file).config == shown.config


def test_sources_are_remembered(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "small-cifar10"\n[radio]\nnum_rbs = 12\n[scenario]\nclients = 7\n')
    resolved = load_config(file, ["scenario.clients=20"])
    assert resolved.config.scenario.clients == 20
    assert resolved.sources["scenario.clients"] == "--set"
    assert resolved.sources["radio.num_rbs"] == "file mine.toml"
    assert resolved.sources["model.architecture"] == "preset small-cifar10"
    assert resolved.sources["compute.server_hz"] == "default"


def test_the_tree_is_frozen() -> None:
    with pytest.raises(ValidationError):
        Config().radio.num_rbs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("radio.num_rb=3", "unknown key 'radio.num_rb': did you mean 'num_rbs'?"),
        ("scenario.num_rbs=3", "did you mean 'radio.num_rbs'?"),
        ("modle.norm=group", "unknown key 'modle': did you mean 'model'?"),
        ("scenario.channel.kin=trace", "did you mean 'kind'?"),
        ("radio.num_rbs=0", "radio.num_rbs = 0 must be a whole number ≥ 1"),
        ("radio.num_rbs=2.5", "radio.num_rbs = 2.5 must be a whole number"),
        ("radio.num_rbs=true", "radio.num_rbs = True"),
        ("radio.rb_bandwidth_hz=20 s", "radio.rb_bandwidth_hz: '20 s' has the unit 's'"),
        ("radio.max_tx_power_w=-1", "radio.max_tx_power_w = -1 must be a number > 0, in W"),
        ("radio.max_tx_power_w=nan", "radio.max_tx_power_w = nan"),
        ("training.learning_rate=inf", "training.learning_rate = inf"),
        ("model.norm=batchh", 'model.norm = \'batchh\' must be one of "batch", "group", "none"'),
        ("decision.delay_budget_s=0", 'must be a number > 0 or "auto", in s'),
        ("decision.queue_memory=1.5", "must be a number ≥ 0 and ≤ 1"),
        ("scenario.min_cpu_hz=1e12", "scenario.min_cpu_hz = 1e+12 must not be above max_cpu_hz"),
        ("scenario.min_distance_m=600", "min_distance_m = 600 must be below radius_m = 500"),
        ("scenario.channel.kind=trace", "needs channel.trace_file"),
        ("decision.min_participants=7", "more than can be served: 6 clients"),
        ("radio=3", "radio = 3 must be a section"),
        ("clients", "write it as section.field=value"),
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
    shown = asfl("config", "show", "paper-cifar100", "--set", "scenario.clients=20")
    assert shown.returncode == 0
    assert tomllib.loads(shown.stdout)["scenario"]["clients"] == 20
    assert "· --set" in shown.stdout
    assert "· preset paper-cifar100" in shown.stdout
    (tmp_path / "mine.toml").write_text("[radio]\nnum_rbs = 3\n")
    assert "mine.toml is valid: vgg19-cifar100" in asfl("config", "check", "mine.toml").stdout
    (tmp_path / "mine.toml").write_text("[radio]\nnum_rb = 3\n")
    refused = asfl("config", "check", "mine.toml")
    assert_refused(refused, "unknown key 'radio.num_rb'", "did you mean 'num_rbs'?", "file mine.toml")
    assert asfl("config", "list").stdout.split() == preset_names()
