"""Clients with a loss of their own: the trainer equals whole models, and a resumed run the one that wasn't stopped."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from local_loss import PlainLocalLosses
from trainers import CPU, random_plans, tiny_batches, tiny_images, tiny_model, uneven_batches, vectors_of

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.config.names import Architecture, Norm
from asfl.costs.modelled import ExchangeRules, local_loss
from asfl.data.load import load_data
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.optimizers import Name, rule_named
from asfl.train.steps import Trainer

CLIENTS = 4
RULES = {
    "cse-fsl": local_loss(2),
    "fsl-sage": local_loss(2, aligned=2),
    "ampere": local_loss(2, phases=(2, 2)),
}
CASES: tuple[tuple[Name, Architecture, Norm, float, int, bool], ...] = (
    ("sgd", "cnn", "batch", 0.07, 32, False),
    ("adam", "cnn", "batch", 0.07, 8, True),
    ("adam", "resnet18", "group", 0.03, 32, False),
    ("momentum", "mlp", "none", 0.1, 32, True),
)
"""Optimiser, network, bits, and whether clients have unequal numbers of samples."""


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounds_are_the_same(rules: ExchangeRules, case: tuple[Name, Architecture, Norm, float, int, bool]) -> None:
    optimizer, architecture, norm, width, bits, uneven = case
    rate = {"sgd": 0.05, "momentum": 0.02, "adam": 0.003}[optimizer]
    model = tiny_model(architecture, norm, width=width)
    batches = uneven_batches(4) if uneven else tiny_batches(tiny_images(), CLIENTS, batch_size=4, local_steps=4)
    fast = Trainer(
        model, batches, rules, rule_named(optimizer, rate), num_clients=CLIENTS, seed=5, device=CPU, dtype=torch.float64
    )
    auxiliary = fast.state.auxiliary
    assert auxiliary is not None
    plain = PlainLocalLosses(model, batches, rules, optimizer, rate, auxiliary, CLIENTS, seed=5)
    rtol, atol = (1e-4, 1e-6) if bits < 32 else (1e-6, 1e-8)
    for plan in random_plans([2], 7, CLIENTS, seed=1):
        plan = replace(plan, bits=np.full(CLIENTS, bits))
        plain.round(plan)
        trained = fast.round(plan)
        assert np.isfinite(trained.loss[plan.arrived]).all()
        expected = vectors_of(plain.server.model, fast)
        torch.testing.assert_close(fast.state.server.parameters, expected.parameters, rtol=rtol, atol=atol)
        torch.testing.assert_close(fast.state.server.statistics, expected.statistics, rtol=rtol, atol=atol)
        head = plain.heads[2]
        of_head = torch.cat([head.weight.detach().flatten(), head.bias.detach()])
        torch.testing.assert_close(auxiliary.heads[auxiliary.at(2)], of_head, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ["cse-fsl:bits=8", "fsl-sage:align=2", "ampere:alone=2,sending=2"])
def test_a_run_goes_on_from_its_tensors_to_the_bit(name: str) -> None:
    config = load_config("demo", ["training.rounds=6", "scenario.clients=3"]).config
    data, scheme = load_data(config), scheme_named(name)
    whole, first, second = (Simulation(config, scheme, data) for _ in range(3))
    records = list(whole)
    found = [first.play_round() for _ in range(3)]
    second.restore(first.tensors())
    assert [*found, *second] == records


def test_what_they_do_not_know_is_refused() -> None:
    scheme = scheme_named("cse-fsl")
    for setting in ("robust.average=median", "privacy.activation_noise=0.1"):
        config = load_config("demo", [setting, "privacy.activation_clip=1", "model.norm=group"]).config
        with pytest.raises(AsflError, match="cse-fsl knows neither noise nor robust averages"):
            Simulation(config, scheme, load_data(config))
