"""The four files in examples/ do what the tutorial says: each through the real command, and each with its laws."""

import json
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from own_things import EXAMPLES, forgotten_afterwards
from problems import random_problem
from torch.nn.functional import cross_entropy

import asfl as package
from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.config.names import PLUGINS_VARIABLE, ModelSpec
from asfl.costs.round import check_decision
from asfl.costs.world import World
from asfl.models.build import build_model
from asfl.results.page import Report, page
from asfl.runs.manifest import MODEL_FILE
from asfl.runs.run import resume
from asfl.schemes import scheme_named
from asfl.schemes.base import decided_by
from conftest import Asfl

SCHEME, CHANNEL, MODEL, DATA = (EXAMPLES / f"my_{name}.py" for name in ("scheme", "channel", "model", "data"))


@pytest.fixture(scope="module")
def example() -> Iterator[dict[Path, ModuleType]]:
    """All four, loaded in this process."""
    with pytest.MonkeyPatch.context() as patch, forgotten_afterwards():
        patch.setenv(PLUGINS_VARIABLE, "")
        for file in (SCHEME, CHANNEL, MODEL, DATA):
            package.load_plugin(file)
        yield {Path(str(m.__file__)): m for name, m in sys.modules.items() if name.startswith("asfl_plugin_")}


# ---------------------------------------------------------------------- through the command
def test_all_four_in_worker_processes_and_in_a_resumed_run(
    asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["scenario.clients=2", "training.rounds=1", "training.batch_size=4", "model.width=0.1"]
    settings += ["scenario.channel.kind=shadowing", "model.architecture=mixer", "data.name=shapes"]
    options = [part for setting in settings for part in ("--set", setting)]
    files = [part for file in (SCHEME, CHANNEL, MODEL, DATA) for part in ("--plugin", file)]
    result = asfl(*files, "compare", "demo", "--schemes", "prop-fair,sfl", *options, "--out", "out", "--workers", 1)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["schemes"].keys() == {"prop-fair", "sfl"}
    # A run that isn't finished goes on if the files are named again: in its folder they are not.
    folder = tmp_path / "out" / "prop-fair-seed1"
    (folder / MODEL_FILE).unlink()
    with forgotten_afterwards():
        monkeypatch.setenv(PLUGINS_VARIABLE, "")
        with pytest.raises(AsflError, match="Your own needs --plugin FILE"):
            resume(folder)
        # To look at it they aren't needed.
        assert set(package.load_runs(tmp_path / "out")["scheme"]) == {"prop-fair", "sfl"}
        assert "prop-fair" in page(Report.of([tmp_path / "out"]), library="")
        monkeypatch.setenv(PLUGINS_VARIABLE, os.pathsep.join(map(str, (SCHEME, CHANNEL, MODEL, DATA))))
        assert resume(folder)
    assert (folder / MODEL_FILE).exists()


# ---------------------------------------------------------------------- the scheme
@pytest.mark.parametrize(("clients", "num_rbs"), [(1, 1), (3, 6), (4, 2), (3, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_the_scheme_decides_validly_and_fairly(
    example: dict[Path, ModuleType], seed: int, clients: int, num_rbs: int
) -> None:
    problem = random_problem(seed, clients=clients, num_rbs=num_rbs)
    round_, scheme = problem.round, scheme_named("prop-fair")
    decision = decided_by(scheme, problem, seed).decision
    check_decision(decision, round_.profile.num_layers, num_rbs, round_.radio.max_tx_power_w)
    again = decided_by(scheme, problem, seed + 1).decision
    assert (again.cut, again.rb_count.tolist()) == (decision.cut, decision.rb_count.tolist())
    # Every other way to serve the same clients has a smaller product of rates.
    served = decision.scheduled
    assert served.sum() == min(clients, num_rbs)
    rate = round_.uplink_rate_bps(decision.rb_count, decision.tx_power_w)[served].prod()
    for counts in product(range(1, num_rbs + 1), repeat=int(served.sum())):
        if sum(counts) <= num_rbs:
            other = np.zeros(clients)
            other[served] = counts
            assert round_.uplink_rate_bps(other, decision.tx_power_w)[served].prod() <= rate * (1 + 1e-12)
    # A client that sits out is further below its own average than all that don't.
    relative = round_.channel_gain / round_.path_gain
    assert relative[~served].max(initial=0) <= relative[served].min()


# ---------------------------------------------------------------------- the channel
def shadowed(**scenario: int) -> Config:
    changes = [f"scenario.{name}={value}" for name, value in scenario.items()]
    return load_config("demo", ["scenario.channel.kind=shadowing", *changes]).config


def test_the_channel_gives_the_same_links_in_any_order_of_rounds(example: dict[Path, ModuleType]) -> None:
    forward, backward = World.of(shadowed()).channel, World.of(shadowed()).channel
    late = {index: backward.at(index) for index in (7, 3, 0)}
    for index in range(8):
        state = forward.at(index)
        assert index not in late or np.array_equal(state.channel_gain, late[index].channel_gain)
    assert not np.array_equal(World.of(shadowed(seed=2)).channel.at(3).path_gain, late[3].path_gain)


# ---------------------------------------------------------------------- the model
def test_the_model_gives_the_same_whole_or_cut(example: dict[Path, ModuleType]) -> None:
    torch.manual_seed(0)
    for dataset, shape in (("digits", (1, 8, 8)), ("shapes", (1, 16, 16)), ("cifar10", (3, 32, 32))):
        model = build_model(ModelSpec("mixer", dataset, width=0.25)).double()
        images, labels = torch.rand(3, *shape, dtype=torch.float64), torch.tensor([0, 3, 1])
        whole = model(images)
        torch.autograd.backward(cross_entropy(whole, labels))
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        assert len(gradients) == len(list(model.parameters()))
        for cut in range(1, len(model.units)):
            model.zero_grad()
            carry = model.client_part(cut)((images,))
            received = tuple(tensor.detach().requires_grad_() for tensor in carry)
            (logits,) = model.server_part(cut)(received)
            assert torch.equal(logits, whole)
            torch.autograd.backward(cross_entropy(logits, labels))
            torch.autograd.backward(carry, [tensor.grad for tensor in received if tensor.grad is not None])
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                assert parameter.grad is not None
                assert torch.allclose(parameter.grad, gradient)
