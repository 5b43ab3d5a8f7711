"""Norm statistics don't decide the result: they forget their start at once, and the average model gets its own."""

from copy import deepcopy
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from trainers import (
    CPU,
    PROCEDURES,
    assert_same,
    full_round,
    random_plans,
    tiny_batches,
    tiny_images,
    tiny_model,
    trainers,
)

from asfl.config import load_config
from asfl.data import load_data
from asfl.models.build import build_model
from asfl.models.cuttable import BatchNorm2d, CuttableModel
from asfl.runs.manifest import MODEL_FILE
from asfl.runs.records import read_records
from asfl.runs.run import run
from asfl.train.batches import Normaliser
from asfl.train.evaluate import AT_LEAST, Calibrator
from asfl.train.steps import Trainer

CLIENTS = 5
Floats = NDArray[np.float64]
SomeNorm = TypeVar("SomeNorm", bound=nn.BatchNorm2d)


def seen_by(norm: SomeNorm, batches: list[Tensor]) -> SomeNorm:
    for batch in batches:
        norm(batch)
    return norm


def some_batches(count: int, random: np.random.Generator) -> list[Tensor]:
    return [torch.from_numpy(random.normal(3, 2, (4, 2, 3, 3)) * random.lognormal(0, 2)) for _ in range(count)]


# ------------------------------------------------------------------ the formula
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.floats(0.1, 1)), min_size=1, max_size=5), st.integers(0, 99))
def test_averages_over_holders_forget_what_each_started_with(holders: list[tuple[int, float]], seed: int) -> None:
    """(Σ a_n stat_n − Σ a_n ω_n · start) / (1 − Σ a_n ω_n), from statistics that start at 0 and 1."""
    random = np.random.default_rng(seed)
    shares = np.array([share for _, share in holders]) / sum(share for _, share in holders)
    states, omega, mean, variance = [], np.zeros(len(holders)), np.zeros((len(holders), 2)), np.ones((len(holders), 2))
    for n, (updates, _) in enumerate(holders):
        batches = some_batches(updates, random)
        states.append(seen_by(BatchNorm2d(2).double(), batches).state_dict())
        omega[n] = 0.9**updates
        for batch in batches:
            values = batch.numpy().transpose(1, 0, 2, 3).reshape(2, -1)
            mean[n] = 0.9 * mean[n] + 0.1 * values.mean(1)
            variance[n] = 0.9 * variance[n] + 0.1 * values.var(1, ddof=1)
    averaged = BatchNorm2d(2).double()
    averaged.load_state_dict(
        {key: sum(a * state[key] for a, state in zip(shares, states, strict=True)) for key in states[0]}
    )
    found = [tensor.numpy() for tensor in averaged.unbiased()]
    kept = shares @ omega
    seen = any(updates for updates, _ in holders)
    expected = [(shares @ mean) / (1 - kept), (shares @ variance - kept) / (1 - kept)] if seen else [[0, 0], [1, 1]]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_evaluation_uses_the_unbiased_statistics_and_single_precision_is_enough() -> None:
    """One of many holders has seen one batch of small values: a difference of rounded numbers would be negative."""
    norm, batch = BatchNorm2d(2), 1e-4 * torch.randn(64, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    seen_by(norm, [batch])
    for buffer in (norm.running_mean, norm.running_var, norm.running_weight):
        assert buffer is not None
        buffer.div_(1000)
    expected = (batch - batch.mean((0, 2, 3), keepdim=True)) / (batch.var((0, 2, 3), keepdim=True) + norm.eps).sqrt()
    torch.testing.assert_close(norm.eval()(batch), expected, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------ weights on their way
def omegas(fast: Trainer, statistics: Tensor) -> Floats:
    """[..., M]: ω of each unit, the same for all of its norms; 1 for a unit without any."""
    found = np.ones((*statistics.shape[:-1], fast.layout.num_units))
    for slot in fast.layout.statistics:
        if slot.name == "running_weight" and slot.stop <= statistics.shape[-1]:
            found[..., slot.unit] = 1 - statistics[..., slot.start]
    return found


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("exchange", PROCEDURES)
def test_weights_follow_the_updates(exchange: str, local_steps: int) -> None:
    """ω of every client and of the server, unit by unit, kept by hand through moving cuts and lost packets."""
    model = tiny_model("resnet18", width=0.03)
    units, rules = len(model.units), PROCEDURES[exchange]
    batches = tiny_batches(tiny_images(), CLIENTS, local_steps=local_steps)
    _, fast = trainers(model, batches, rules, "sgd", CLIENTS, merge=2)
    cuts, before = [units] if exchange == "fedavg" else range(1, units), 0
    server, own, kept = np.ones(units), np.ones((CLIENTS, units)), 0.9**local_steps
    for plan in random_plans(cuts, 7, CLIENTS):
        fast.round(plan)
        cut, arrived = int(plan.cut[0]), np.flatnonzero(plan.arrived)
        if rules.keeps_client_sides and plan.scheduled.any():
            own[:, before:cut] = server[before:cut]
            server[cut:before] = own[plan.scheduled, cut:before].mean(0)
            before = cut
            own[arrived, :cut] *= kept
            server[cut:] *= kept if arrived.size else 1
        else:
            server *= kept ** (len(arrived) if rules.in_sequence else min(len(arrived), 1))
        # The last unit has no norm.
        found = omegas(fast, fast.state.server.statistics)
        np.testing.assert_allclose(found[fast.state.cut : -1], server[fast.state.cut : -1], rtol=1e-12)
        found = omegas(fast, fast.state.clients.statistics)
        np.testing.assert_allclose(found[:, : fast.state.cut], own[:, : fast.state.cut], rtol=1e-12)


def test_a_network_with_ordinary_batch_norm_trains_the_same_way() -> None:
    """A model of somebody's own: its statistics have no weight, and nothing needs one."""
    model = tiny_model()
    for path, layer in list(model.named_modules()):
        if isinstance(layer, BatchNorm2d):
            parent, _, name = path.rpartition(".")
            model.get_submodule(parent)._modules[name] = nn.BatchNorm2d(layer.num_features).double()
    plain, fast = trainers(model, tiny_batches(tiny_images(), CLIENTS), PROCEDURES["asfl"], "sgd", CLIENTS, merge=2)
    assert {slot.name for slot in fast.layout.statistics} == {"running_mean", "running_var"}
    for plan in random_plans(range(1, len(model.units)), 3, CLIENTS):
        np.testing.assert_allclose(fast.round(plan).loss, plain.round(plan).loss, rtol=1e-8)
        assert_same(plain, fast)


# ------------------------------------------------------------------ calibration
def trained(model: CuttableModel, augment: bool = False) -> tuple[Trainer, Calibrator]:
    batches = tiny_batches(tiny_images(), CLIENTS, augment=augment)
    _, fast = trainers(model, batches, PROCEDURES["asfl"], "adam", CLIENTS)
    for index in range(3):
        fast.round(full_round(index, 2, CLIENTS))
    return fast, Calibrator(model, fast.layout, batches, CPU, torch.float64)


def test_calibrated_statistics_are_means_over_the_clients_mini_batches() -> None:
    model = tiny_model()
    fast, calibrator = trained(model)
    average = fast.state.average_model()
    before = average.clone()
    found = calibrator.calibrated(average)
    assert torch.equal(average.parameters, before.parameters)
    assert torch.equal(average.statistics, before.statistics)
    assert found.parameters is average.parameters
    # The same through the network's own code, with every norm's input looked at.
    whole = deepcopy(model)
    whole.load_state_dict(fast.layout.state_dict(average), strict=False)
    inputs: dict[str, list[Floats]] = {}
    for path, module in whole.named_modules():
        if isinstance(module, BatchNorm2d):
            module.register_forward_pre_hook(
                lambda _, x, path=path: inputs.setdefault(path, []).append(x[0].detach().numpy())
            )
    images = list(tiny_batches(tiny_images(), CLIENTS).for_calibration(AT_LEAST))
    for batch in images:
        whole(batch)
    names = fast.layout.state_dict(found)
    assert inputs
    for path, seen in inputs.items():
        by_channel = [x.transpose(1, 0, 2, 3).reshape(x.shape[1], -1) for x in seen]
        mean = np.mean([x.mean(1) for x in by_channel], axis=0)
        variance = np.mean([x.var(1, ddof=1) for x in by_channel], axis=0)
        np.testing.assert_allclose(names[f"{path}.running_mean"], mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(names[f"{path}.running_var"], variance, rtol=1e-9)
        assert float(names[f"{path}.running_weight"]) == pytest.approx(1, rel=1e-12)


# ------------------------------------------------------------------ whole runs
@pytest.mark.parametrize("scheme", ["asfl", "sfl"])
def test_the_saved_model_is_the_one_that_was_scored(scheme: str, tmp_path: Path) -> None:
    config = load_config("demo", ["training.rounds=4", "scenario.clients=4", "output.evaluate_every=2"]).config
    assert run(config, scheme, tmp_path / "run", threads=1)
    data, model = load_data(config), build_model(config.model_spec).eval()
    model.load_state_dict(load_file(tmp_path / "run" / MODEL_FILE), strict=False)
    with torch.no_grad():
        logits = model(Normaliser(data, CPU, torch.float32)(torch.from_numpy(data.test_images)))
    last = read_records(tmp_path / "run")[-1]
    assert last.accuracy == pytest.approx(float((logits.argmax(1).numpy() == data.test_labels).mean()))
    assert last.uncalibrated_accuracy is not None
    assert last.uncalibrated_accuracy != last.accuracy
