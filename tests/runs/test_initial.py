"""`training.initial`: what training starts from, and that a run of it is one run whatever interrupts it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.data import deal, load_data
from asfl.models.build import build_model
from asfl.runs.initial import start_from
from asfl.runs.manifest import MODEL_FILE, read_manifest
from asfl.runs.records import RECORDS_FILE
from asfl.runs.run import check_training, run
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.batches import Batches
from conftest import Asfl, assert_refused

TINY = [
    "scenario.clients=3", "radio.num_rbs=2", "model.width=0.1", "training.batch_size=8", "training.rounds=3",
    "output.checkpoint_every=2", "output.test_samples=50", "decision.delay_budget_s=0.005",
    "decision.energy_budget_j=0.003", "decision.outage_s=0.015",
]  # fmt: skip
CPU = torch.device("cpu")


def tiny(*overrides: str) -> Config:
    return load_config("demo", [*TINY, *overrides]).config


def start_of(config: Config, scheme: str = "asfl") -> dict[str, Tensor]:
    """The weights that every client of a run begins with."""
    simulation = Simulation(config.for_scheme(scheme), scheme_named(scheme), load_data(config))
    return simulation.trainer.layout.state_dict(simulation.trainer.state.average_model())


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 0.0, atol: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=rtol, atol=atol)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves behind."""
    folder = tmp_path_factory.mktemp("before") / "run"
    assert run(tiny(), "asfl", folder, threads=1)
    return folder / MODEL_FILE


@pytest.mark.parametrize("scheme", ["asfl", "fedavg", "sfl-best", "central"])
def test_a_run_starts_from_the_weights_in_a_file(scheme: str, weights: Path) -> None:
    assert_equal(start_of(tiny(f"training.initial={weights}"), scheme), load_file(weights))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_central_rounds_are_plain_training_on_all_images(optimizer: str) -> None:
    """Derived again with PyTorch's own optimiser on the whole network; batch norm's statistics are the network's."""
    config = tiny("training.initial=4", f"training.optimizer={optimizer}", "training.initial_rate=0.01")
    data, seed = load_data(config), config.scenario.seed
    parts = deal(data, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random_stream(seed, "initial weights").integers(2**62)))
        model = build_model(config.model_spec)
    own = int(random_stream(seed, "central rounds before the first").integers(10**18))
    batches = Batches(
        data, [np.concatenate(parts)], batch_size=8, local_steps=2, seed=own, augment=False, device=CPU
    )  # fmt: skip
    rules: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    stepping = rules[optimizer](model.parameters(), lr=0.01)
    for index in range(4):
        for step in range(2):  # two of three clients can be served
            images, labels = batches.batch(index, 0, step)
            stepping.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(images), labels))
            stepping.step()
    expected = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    assert_equal(start_of(config), expected, rtol=1e-4, atol=1e-5)


def test_all_schemes_start_from_the_same_weights_and_the_images_of_all() -> None:
    """Also those with a learning rate and local steps of their own; with other images it would be another start."""
    config = tiny("training.initial=2", "schemes.sfl-best.learning_rate=0.1", "schemes.sfl-best.local_steps=3")
    first = start_of(config)
    for scheme in ("sfl-best", "fedavg", "central"):
        assert_equal(start_of(config, scheme), first)
    data = load_data(config)
    model = build_model(config.model_spec)
    untouched = {name: value.clone() for name, value in model.state_dict().items()}
    start_from(model, config, data, [np.arange(8), np.arange(8), np.arange(8)], CPU)
    assert any(not torch.equal(untouched[name], value) for name, value in model.state_dict().items())
    assert any(not torch.equal(first[name], value) for name, value in model.state_dict().items() if name in first)


@pytest.mark.parametrize(("scheme", "central"), [("asfl", True), ("fedavg", False)], ids=["central rounds", "file"])
def test_it_resumes_bit_for_bit(scheme: str, central: bool, weights: Path, tmp_path: Path) -> None:
    config = tiny(f"training.initial={3 if central else weights}")
    assert run(config, scheme, tmp_path / "whole", threads=1)
    while not run(config, scheme, tmp_path / "broken", threads=1, should_stop=lambda: True):
        pass
    for name in (RECORDS_FILE, MODEL_FILE):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()


def test_another_file_in_its_place_is_refused(weights: Path, tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine.safetensors", tmp_path / "run"
    mine.write_bytes(weights.read_bytes())
    config = tiny(f"training.initial={mine}")
    assert not run(config, "asfl", folder, threads=1, should_stop=lambda: True)
    assert read_manifest(folder).sources["training.initial"].origin == str(mine)
    save_file({name: 2 * tensor for name, tensor in load_file(mine).items()}, mine)
    before = (folder / RECORDS_FILE).read_bytes()
    with pytest.raises(AsflError, match=r"training\.initial isn't what it was when the run began"):
        run(config, "asfl", folder, threads=1)
    assert (folder / RECORDS_FILE).read_bytes() == before
    mine.write_bytes(weights.read_bytes())
    assert run(config, "asfl", folder, threads=1)


def changed(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    first, *_, last = tensors
    if name == "lacks":
        return {key: tensor for key, tensor in tensors.items() if key != first}
    if name == "is unknown":
        return {**tensors, "units.99.weight": torch.zeros(1)}
    if name == "has the shape":
        return {**tensors, last: tensors[last].unsqueeze(0)}
    broken = tensors[last].clone()
    broken.view(-1)[0] = torch.nan
    return {**tensors, last: broken if name == "no finite numbers" else torch.ones_like(broken, dtype=torch.int64)}


@pytest.mark.parametrize("words", ["lacks", "is unknown", "has the shape", "no finite numbers", "are no finite"])
def test_a_file_that_is_not_of_this_network_is_refused(words: str, weights: Path, tmp_path: Path) -> None:
    save_file(changed(words, load_file(weights)), tmp_path / "other.safetensors")
    with pytest.raises(AsflError, match=words) as refused:
        check_training(tiny(f"training.initial={tmp_path / 'other.safetensors'}"))
    assert "training.initial" in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["training.initial=-3"], "whole number ≥ 1"),
        (["training.initial=true"], "whole number ≥ 1"),
        (["training.initial=nowhere.safetensors"], "no such file"),
        (["training.initial=."], "a folder, not a file"),
        (["training.initial=notes.txt"], "no safetensors file"),
        (["training.initial=5", "data.name=private_1x8x8_10"], "only devices have the images"),
        (["training.initial=5", "privacy.activation_noise=1", "model.norm=group"], "see every image without noise"),
        (["training.initial_rate=0", "training.initial=5"], "training.initial_rate"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    settings: Sequence[str], words: str, asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("no weights")
    chosen = [argument for setting in [*TINY, *settings] for argument in ("--set", setting)]
    assert_refused(asfl("run", "demo", *chosen, "--out", "run"), words)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_central_rounds_that_diverge_say_so() -> None:
    with pytest.raises(AsflError, match=r"initial_rate = 1e\+12 may be too high"):
        start_of(tiny("training.initial=3", "training.optimizer=sgd", "training.initial_rate=1e12"))
