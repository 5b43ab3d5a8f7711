"""Random small rounds and decisions for property tests."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from asfl.config import Compute, Config, Radio
from asfl.costs.round import CORRECTED, PRINTED, CostEquations, Decision, Round
from asfl.costs.world import World
from asfl.models.profile import ModelProfile
from asfl.optimize import Learning, Problem, Queues, Rules


def _numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)


@st.composite
def profiles(draw: st.DrawFn, max_layers: int = 6) -> ModelProfile:
    layers = draw(st.integers(2, max_layers))
    bits, activations, forward, backward = (
        draw(arrays(float, layers, elements=_numbers(0, high))) for high in (1e8, 1e7, 1e9, 2e9)
    )
    return ModelProfile(bits, activations, forward, backward)


@st.composite
def rounds(draw: st.DrawFn, max_clients: int = 5) -> Round:
    clients = draw(st.integers(1, max_clients))
    profile = draw(profiles())
    log_gain = draw(arrays(float, clients, elements=_numbers(-15, -8)))
    fading = draw(arrays(float, clients, elements=_numbers(1e-3, 10)))
    return Round(
        profile=profile,
        radio=Radio(num_rbs=draw(st.integers(1, 12)), max_tx_power_w=draw(_numbers(0.01, 5))),
        compute=Compute(),
        charged_samples=draw(st.integers(1, 128)),
        path_gain=10.0**log_gain,
        channel_gain=10.0**log_gain * fading,
        cpu_hz=draw(arrays(float, clients, elements=_numbers(1e7, 3e9))),
        gain_is_known=draw(st.booleans()),
        previous_cut=draw(st.none() | st.integers(1, profile.num_layers - 1)),
        equations=draw(st.sampled_from([CORRECTED, PRINTED, CostEquations("each_rb", "activations")])),
    )


@st.composite
def rounds_with_decisions(draw: st.DrawFn, max_clients: int = 5) -> tuple[Round, Decision]:
    """A round and a valid decision: some clients may have no block at all."""
    round_ = draw(rounds(max_clients))
    left, counts = round_.radio.num_rbs, []
    for _ in range(round_.num_clients):
        counts.append(draw(st.integers(0, left)))
        left -= counts[-1]
    power = draw(arrays(float, round_.num_clients, elements=_numbers(0.001, 1)))
    cut = draw(st.integers(1, round_.profile.num_layers - 1))
    return round_, Decision(cut, np.array(counts, float), power * round_.radio.max_tx_power_w)


def with_previous_cut(round_: Round, cut: int | None) -> Round:
    return replace(round_, previous_cut=cut)


@st.composite
def served_rounds(draw: st.DrawFn, max_clients: int = 3) -> Round:
    """Small rounds with a block for each client."""
    round_ = draw(rounds(max_clients))
    return with_rbs(round_, draw(st.integers(round_.num_clients, 6)))


def with_rbs(round_: Round, num_rbs: int) -> Round:
    return replace(round_, radio=round_.radio.model_copy(update={"num_rbs": num_rbs}))


def paper_round(clients: int, num_rbs: int, index: int, previous_cut: int | None = None) -> Round:
    config = Config.model_validate({"scenario": {"clients": clients}, "radio": {"num_rbs": num_rbs}})
    return World.of(config).begin_round(index, previous_cut)


def problem_of(round_: Round) -> Problem:
    """With at least one client, and queues that are empty."""
    layers, clients = round_.profile.num_layers, round_.num_clients
    learning = Learning(np.ones(layers), np.ones(layers), np.ones(clients), 1.0)
    rules = Rules(delay_budget_s=20.0, energy_budget_j=0.5, min_participants=1, participation_floor=0.0)
    return Problem(round_, learning, Queues.empty(clients), rules)
