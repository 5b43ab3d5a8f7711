"""Clients that bring images of their own, of different numbers: what the server learns, and what is refused."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from small_runs import PATIENT, over, tiny

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.data import load_data
from asfl.data.private import of_device
from asfl.field.client import ClientNode
from asfl.field.fleet import MOST_TIMES, believed_sizes, together, train
from asfl.field.messages import Agreement, Scored
from asfl.models.build import build_model
from asfl.runs.manifest import read_manifest
from asfl.runs.records import read_records
from asfl.runs.run import run
from asfl.runs.state import flatten
from asfl.schemes import scheme_named
from asfl.train.batches import Batches
from asfl.train.fleet import FleetMaker, LocalFleet
from asfl.train.optimizers import rule_named
from asfl.train.signals import RoundPlan
from asfl.train.steps import Trainer
from studies.local_links import LocalLink

SIZES = (20, 90, 41)
NAME = "private_1x8x8_10"
CPU = torch.device("cpu")


def private(*overrides: str, rounds: int = 3) -> Config:
    return tiny(f"data.name={NAME}", "scenario.clients=3", "data.augment=false", *overrides, rounds=rounds)


def files_of(folder: Path, sizes: Sequence[int] = SIZES) -> list[Path]:
    """One file of digits for each device; the first lacks classes."""
    data, files, start = load_data(tiny()), [], 0
    order = np.argsort(data.train_labels[: sum(sizes)], kind="stable")
    for client, size in enumerate(sizes):
        own = order[start : start + size]
        files.append(folder / f"device{client}.npz")
        np.savez(files[-1], images=data.train_images[own], labels=data.train_labels[own], scale=16)
        start += size
    return files


@contextmanager
def links_to(config: Config, files: Sequence[Path], scheme: str = "asfl") -> Iterator[list[LocalLink]]:
    agreement = Agreement(config, scheme, threads=1)
    with ThreadPoolExecutor(len(files)) as pool:
        yield [LocalLink(ClientNode(agreement.welcome(n), file), pool) for n, file in enumerate(files)]


def trainer_of(config: Config, batches: Batches, scheme: str, fleet: FleetMaker = LocalFleet) -> Trainer:
    torch.manual_seed(1)
    training = config.training
    return Trainer(
        build_model(config.model_spec), batches, scheme_named(scheme).exchange,
        rule_named(training.optimizer, training.learning_rate), num_clients=3, seed=1, device=CPU, fleet=fleet,
    )  # fmt: skip


@pytest.mark.parametrize("scheme", ["asfl", "sfl"])
def test_a_round_has_the_bits_of_one_process_that_has_all_the_images(tmp_path: Path, scheme: str) -> None:
    config, files = private("data.validation=1e-6"), files_of(tmp_path)  # none of so few images
    everything = load_data(tiny())
    order = np.argsort(everything.train_labels[: sum(SIZES)], kind="stable")
    parts = np.split(order, np.cumsum(SIZES)[:-1])
    joined = of_device(NAME, str(files[0]), 0.0, np.random.default_rng())
    joined = replace(joined, train_images=everything.train_images, train_labels=everything.train_labels)
    here = trainer_of(config, Batches.of(joined, parts, config, CPU), scheme)
    nothing = [np.zeros(0, np.int64)] * 3
    with links_to(config, files, scheme) as links:
        there = trainer_of(config, Batches.of(load_data(config), nothing, config, CPU), scheme, over(links))
        all_clients = np.ones(3, dtype=bool)
        for index, cut in enumerate((2, 4, 3)):
            plan = RoundPlan(index, np.full(3, cut), all_clients, all_clients)
            assert there.fleet.begin(index).all()
            here.round(plan)
            there.round(plan)
        there.fleet.gather(optimizers=True)
        assert there.state.samples.tolist() == list(SIZES)
    for name, tensor in flatten(here.state).items():
        assert torch.equal(tensor, flatten(there.state)[name]), name


def test_a_run_without_any_image_on_the_server(tmp_path: Path) -> None:
    config = private("data.validation=0.25")
    agreement = Agreement(config, "asfl", threads=1)
    with links_to(config, files_of(tmp_path)) as links:
        assert train(agreement, tmp_path / "run", links, patience=PATIENT)
    accuracies = [record.accuracy for record in read_records(tmp_path / "run")]
    assert all(accuracy is not None and 0 <= accuracy <= 1 for accuracy in accuracies)
    held_out = [round(0.25 * size) for size in SIZES]
    assert all(abs(sum(held_out) * (accuracy or 0) % 1 - 0.5) > 0.49 for accuracy in accuracies)  # whole images
    told = read_manifest(tmp_path / "run").facts["samples"]
    assert told == [size - held for size, held in zip(SIZES, held_out, strict=True)]  # nothing of their labels


def test_private_images_need_devices(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match="only devices have"):
        run(private(), "asfl", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path: Path) -> None:
    images = np.zeros((30, 1, 8, 8), np.uint8)
    wrong: dict[str, dict[str, Any]] = {
        "1×9×9": {"images": np.zeros((30, 9, 9), np.uint8), "labels": np.zeros(30, int)},
        "a label 12": {"images": images, "labels": np.full(30, 12)},
        "only 5 images": {"images": images[:5], "labels": np.zeros(5, int)},
        "images and labels": {"pictures": images},
    }
    welcome = Agreement(private("data.validation=0"), "asfl", threads=1).welcome(0)
    for message, arrays in wrong.items():
        np.savez(tmp_path / "own.npz", **arrays)
        with pytest.raises(AsflError, match=message) as found:
            ClientNode(welcome, tmp_path / "own.npz")
        assert "\n" not in str(found.value)
    with pytest.raises(AsflError, match="--data"):
        ClientNode(welcome, None)


def test_a_folder_of_pictures_and_a_function(tmp_path: Path) -> None:
    from PIL import Image

    for label, count in (("3", 4), ("7", 2)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for place in range(count):
            Image.new("L", (20, 20), color=10 * place).save(tmp_path / "pictures" / label / f"{place}.png")
    data = of_device(NAME, str(tmp_path / "pictures"), 0.0, np.random.default_rng(0))
    assert sorted(data.train_labels.tolist()) == [3] * 4 + [7] * 2
    assert data.input_shape == (1, 8, 8)
    (tmp_path / "pictures" / "cat").mkdir()
    with pytest.raises(AsflError, match="named by its number"):
        of_device(NAME, str(tmp_path / "pictures"), 0.0, np.random.default_rng(0))
    (tmp_path / "own.py").write_text(
        "import numpy as np\ndef mine():\n    return np.zeros((9, 8, 8), np.uint8), np.arange(9)\n"
    )
    data = of_device(NAME, f"{tmp_path / 'own.py'}:mine", 1 / 3, np.random.default_rng(0))
    assert (len(data.train_labels), len(data.test_labels)) == (6, 3)
    assert not set(data.train_labels.tolist()) & set(data.test_labels.tolist())
    with pytest.raises(AsflError, match="has no function yours"):
        of_device(NAME, f"{tmp_path / 'own.py'}:yours", 0.0, np.random.default_rng(0))


def test_no_client_gains_weight_by_boasting() -> None:
    sizes = believed_sizes({0: 100, 1: 120, 2: 10**9}, np.ones(4))
    assert sizes.tolist() == [100.0, 120.0, MOST_TIMES * 110, 120.0]
    assert believed_sizes({0: 50}, sizes).tolist() == [50.0, *sizes[1:]]
    assert believed_sizes({2: 10**9}, sizes).tolist() == [*sizes[:2], MOST_TIMES * 120, 120.0]  # alone, later
    assert believed_sizes({0: 20, 1: 60}, np.ones(2)).tolist() == [20.0, 60.0]
    assert believed_sizes({0: 200, 1: 700, 2: 400}, np.ones(3)).tolist() == [200.0, 700.0, 400.0]
    assert together({0: Scored(0)}, 1, says) is None


def says(client: int, samples: int) -> int:
    return samples


@given(st.integers(1, 9), st.integers(1, 10**9), st.floats(0, 1))
def test_no_device_decides_an_accuracy_alone(honest: int, claimed: int, true: float) -> None:
    """Its own stands beside those of the others, and counts for 3 shares of N + 2 at most."""
    answers = {client: Scored(1000, round(1000 * true), 1.0) for client in range(honest)}
    answers[honest + 1] = Scored(claimed, claimed, 0.0)
    score, own = together(answers, honest + 2, says), round(1000 * true) / 1000
    assert score is not None
    share = MOST_TIMES / (honest + MOST_TIMES)
    assert score.accuracy <= share + (1 - share) * own + 1e-9
    assert score.by_client == (*[own] * honest, None, 1.0)
    if claimed >= 1000:
        within = together(answers, honest + 2, lambda client, samples: min(samples, 1000))  # what it trains with
        assert within is not None
        assert abs(within.accuracy - (1 + honest * own) / (1 + honest)) < 1e-9
