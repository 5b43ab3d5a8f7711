"""The laws of training, at every cut of every network (tiny widths)."""

from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from trainers import CPU, PROCEDURES, full_round, tiny_batches, tiny_images, tiny_model, trainers

from asfl.config.names import Architecture, Dataset, Norm
from asfl.models.cuttable import CuttableModel
from asfl.train.optimizers import rule_named
from asfl.train.signals import RoundPlan
from asfl.train.state import Layout, ModelVectors, TrainingState
from asfl.train.steps import Trainer

NETWORKS: list[tuple[Architecture, Dataset]] = [
    (name, "cifar10" if name.startswith("vgg") else "digits") for name in get_args(Architecture)
]


def network(architecture: Architecture, dataset: Dataset, norm: Norm) -> CuttableModel:
    return tiny_model(architecture, norm, dataset, width=0.02)


def initial_of(trainer: Trainer, model: CuttableModel) -> ModelVectors:
    return trainer.layout.flatten(model, CPU, torch.float64)


def unsplit_step(model: CuttableModel, images: torch.Tensor, labels: torch.Tensor, rate: float) -> None:
    """Plain SGD on the whole network."""
    model.zero_grad()
    torch.autograd.backward(F.cross_entropy(model(images), labels))
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=rate)


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize(("architecture", "dataset"), NETWORKS)
def test_split_step_is_the_unsplit_step_at_every_cut(architecture: Architecture, dataset: Dataset, norm: Norm) -> None:
    model = network(architecture, dataset, norm)
    batches = tiny_batches(tiny_images(dataset, per_class=2), 1, batch_size=4)
    images, labels = batches.batch(0, 0)
    split = Trainer(
        model, batches, PROCEDURES["asfl"], rule_named("sgd", 0.1), num_clients=1, seed=0, device=CPU,
        dtype=torch.float64,
    )  # fmt: skip
    initial = split.state.server.clone()
    unsplit_step(model, images, labels, 0.1)
    expected = split.layout.flatten(model, CPU, torch.float64)
    for cut in range(1, len(model.units)):
        split.restore(TrainingState.fresh(split.layout, initial.clone(), 1, 0))
        split.round(full_round(0, cut, 1))
        found = split.state.average_model()
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(found.statistics, expected.statistics, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("architecture", "dataset"), NETWORKS)
def test_splitfed_is_fedavg_at_every_cut(architecture: Architecture, dataset: Dataset) -> None:
    """No errors, one SGD step, no batch norm."""
    clients = 3
    model = network(architecture, dataset, "none")
    batches = tiny_batches(tiny_images(dataset, per_class=3), clients, batch_size=4)
    _, fedavg = trainers(model, batches, PROCEDURES["fedavg"], "sgd", clients)
    fedavg.round(full_round(0, len(model.units), clients))
    _, splitfed = trainers(model, batches, PROCEDURES["sfl"], "sgd", clients, merge=clients)
    initial = splitfed.state.server.clone()
    for cut in range(1, len(model.units)):
        splitfed.restore(TrainingState.fresh(splitfed.layout, initial.clone(), clients, 0))
        splitfed.round(full_round(0, cut, clients))
        torch.testing.assert_close(
            splitfed.state.server.parameters, fedavg.state.server.parameters, rtol=1e-8, atol=1e-10
        )


@pytest.mark.parametrize(("architecture", "dataset"), NETWORKS)
def test_a_merged_server_pass_is_the_mean_of_the_clients_passes(architecture: Architecture, dataset: Dataset) -> None:
    clients = 3
    model = network(architecture, dataset, "batch")
    batches = tiny_batches(tiny_images(dataset, per_class=3), clients, batch_size=4)
    _, merged = trainers(model, batches, PROCEDURES["asfl"], "sgd", clients, merge=clients)
    _, alone = trainers(model, batches, PROCEDURES["asfl"], "sgd", clients, merge=1)
    initial = initial_of(alone, model)
    for cut in range(1, len(model.units), 2 if architecture == "resnet50" else 1):  # whose blocks have three units
        merged.restore(TrainingState.fresh(merged.layout, initial.clone(), clients, 0))
        alone.restore(TrainingState.fresh(alone.layout, initial.clone(), clients, 0))
        for trainer in (merged, alone):
            trainer.round(full_round(0, cut, clients))
        found, expected = merged.state, alone.state
        for mine, yours in ((found.clients, expected.clients), (found.server, expected.server)):
            torch.testing.assert_close(mine.parameters, yours.parameters, rtol=1e-7, atol=1e-9)
            torch.testing.assert_close(mine.statistics, yours.statistics, rtol=1e-7, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_moving_the_cut_keeps_the_average_and_makes_layers_equal(data: st.DataObject) -> None:
    clients = 4
    model = tiny_model()
    batches = tiny_batches(tiny_images(), clients)
    _, fast = trainers(model, batches, PROCEDURES["asfl"], "momentum", clients)
    cuts = st.integers(1, len(model.units) - 1)
    fast.round(full_round(0, data.draw(cuts), clients))
    before, start = fast.state.average_model(), fast.state.cut
    rows = fast.state.clients.clone()
    all_clients, lowest = np.ones(clients, dtype=bool), start
    for cut in data.draw(st.lists(cuts, min_size=1, max_size=5)):
        assert fast.state.resplit(cut, all_clients) == 0
        lowest = min(lowest, cut)
        after = fast.state.average_model()
        torch.testing.assert_close(after.parameters, before.parameters)
        torch.testing.assert_close(after.statistics, before.statistics)
    # Layers that never left keep their values; those that went up and came down again are the mean, for all.
    edge = fast.layout.parameter_edges
    side = fast.state.clients.parameters
    torch.testing.assert_close(side[:, : edge[lowest]], rows.parameters[:, : edge[lowest]], rtol=0, atol=0)
    moved = side[:, edge[lowest] :]
    assert (moved == moved[:1]).all()


def test_only_clients_with_a_block_are_averaged_on_the_way_up() -> None:
    clients = 3
    _, fast = trainers(tiny_model(), tiny_batches(tiny_images(), clients), PROCEDURES["asfl"], "sgd", clients)
    fast.round(full_round(0, 4, clients))
    sides = fast.state.clients.parameters.clone()
    before = fast.state.average_model().parameters.clone()
    a, b = fast.layout.parameter_edges[2], fast.layout.parameter_edges[4]
    shift = fast.state.resplit(2, np.array([True, False, True]))
    torch.testing.assert_close(fast.state.server.parameters[a:b], sides[[0, 2], a:].mean(0))
    assert shift == pytest.approx(float((fast.state.average_model().parameters - before).square().sum()), rel=1e-9)


def test_who_does_not_arrive_changes_nothing() -> None:
    clients = 3
    _, fast = trainers(tiny_model(), tiny_batches(tiny_images(), clients), PROCEDURES["asfl"], "adam", clients)
    fast.round(full_round(0, 3, clients))
    sides, server = fast.state.clients.clone(), fast.state.server.clone()
    all_clients, no_client = np.ones(clients, dtype=bool), np.zeros(clients, dtype=bool)
    trained = fast.round(RoundPlan(1, np.full(clients, 3), all_clients, no_client))
    assert np.isnan(trained.loss).all()
    assert torch.equal(fast.state.clients.parameters, sides.parameters)
    assert torch.equal(fast.state.server.parameters, server.parameters)
    fast.round(RoundPlan(2, np.full(clients, 3), all_clients, np.array([False, True, False])))
    assert torch.equal(fast.state.clients.parameters[[0, 2]], sides.parameters[[0, 2]])
    assert not torch.equal(fast.state.clients.parameters[1], sides.parameters[1])


def test_a_round_without_arrivals_does_not_move_the_cut() -> None:
    clients = 2
    _, fast = trainers(tiny_model(), tiny_batches(tiny_images(), clients), PROCEDURES["asfl"], "sgd", clients)
    fast.round(full_round(0, 3, clients))
    no_client = np.zeros(clients, dtype=bool)
    fast.round(RoundPlan(1, np.full(clients, 1), no_client, no_client))
    assert fast.state.cut == 3


def test_layout_and_state_dict_are_inverse() -> None:
    model = tiny_model("resnet18", width=0.03)
    layout = Layout(model)
    vectors = layout.flatten(model, CPU, torch.float64)
    names = layout.state_dict(vectors)
    expected = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    assert names.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(names[name], tensor, rtol=0, atol=0)
