"""The laws of training, at every cut of every network (tiny widths)."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from trainers import CPU, PROCEDURES, full_round, tiny_batches, tiny_images, tiny_model, trainers

from asfl.config.names import Architecture, Dataset, Norm
from asfl.models.cuttable import CuttableModel
from asfl.train.signals import RoundPlan
from asfl.train.state import ModelVectors, TrainingState
from asfl.train.steps import Trainer

NETWORKS: list[tuple[Architecture, Dataset]] = [
    (name, "cifar10" if name.startswith("vgg") else "digits") for name in get_args(Architecture)
]


def network(architecture: Architecture, dataset: Dataset, norm: Norm) -> CuttableModel:
    return tiny_model(architecture, norm, dataset, width=0.02)


def initial_of(trainer: Trainer, model: CuttableModel) -> ModelVectors:
    return trainer.layout.flatten(model, CPU, torch.float64)


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


def test_a_round_without_arrivals_does_not_move_the_cut() -> None:
    clients = 2
    _, fast = trainers(tiny_model(), tiny_batches(tiny_images(), clients), PROCEDURES["asfl"], "sgd", clients)
    fast.round(full_round(0, 3, clients))
    no_client = np.zeros(clients, dtype=bool)
    fast.round(RoundPlan(1, np.full(clients, 1), no_client, no_client))
    assert fast.state.cut == 3
