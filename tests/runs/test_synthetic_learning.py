"""Rounds without training: how client sides are taken to drift, the fit to records, the errors beside predictions."""

import json
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from made_up import made_up_round

from asfl.config import load_config
from asfl.costs.world import World
from asfl.models.load import load_profile
from asfl.results.curves import Run
from asfl.runs.play import held_out, held_out_in_words, play
from asfl.runs.simulation import BORROWED_DRIFT
from asfl.runs.state import Drift, SyntheticLearning
from asfl.schemes import scheme_named
from asfl.schemes.base import budgets_of
from conftest import Asfl
from studies.synthetic_learning import fit

PROFILE = load_profile(load_config("small-cifar10").config.model_spec)


@given(
    st.floats(1, 2), st.floats(0.1, 10), st.integers(1, 60), st.integers(1, 12), st.integers(1, PROFILE.num_layers - 1)
)
def test_spread_follows_the_power_law(exponent: float, divergence: float, rounds: int, clients: int, cut: int) -> None:
    state, arrived = SyntheticLearning.fresh(PROFILE, clients, Drift(divergence, exponent)), np.arange(clients) % 2 == 0
    for _ in range(rounds):
        state = state.after(cut, arrived)
    share = PROFILE.param_bits / PROFILE.param_bits.sum()
    law = divergence * share * (1 - 1 / clients) * (arrived.mean() * rounds) ** exponent
    np.testing.assert_allclose(state.layer_spread[:cut], law[:cut], rtol=0.07)  # the first half round is a chord
    assert not state.layer_spread[cut:].any()
    assert not state.after(cut, arrived, synced=cut).layer_spread.any()
    assert not state.after(1, arrived).layer_spread[1:].any()  # those layers went through the server


@given(st.lists(st.tuples(st.integers(1, 5), st.lists(st.booleans(), min_size=6, max_size=6)), max_size=30))
def test_what_training_borrows_adds_up_as_ever(rounds: list[tuple[int, list[bool]]]) -> None:
    """Bit for bit: runs of earlier versions go on from their checkpoints."""
    state, spread = SyntheticLearning.fresh(PROFILE, 6, BORROWED_DRIFT), np.zeros(PROFILE.num_layers)
    share = PROFILE.param_bits / float(PROFILE.param_bits.sum())
    for cut, arrived in rounds:
        here = np.array(arrived)
        growth = 17.0 * share * (here.sum() / 6) * (1 - 1 / 6)
        spread = np.where(np.arange(1, PROFILE.num_layers + 1) <= cut, spread + growth, 0.0)
        state = state.after(cut, here)
    assert state.layer_spread.tobytes() == spread.tobytes()


def test_a_fit_finds_the_law_that_rounds_were_made_with() -> None:
    config = load_config("small-cifar10").config
    law, runs = Drift(divergence=2.5, exponent=1.3, lost_update=0.8), {}
    for name in ("asfl", "sfl-best"):
        world, scheme, records = World.of(config), scheme_named(name), []
        for number, one in enumerate(play(world, scheme, 40, budgets_of(world, scheme), law), 1):
            lost = np.full(10, one.mean_packet_error_rate)
            record = made_up_round(number, cut=int(one.mean_cut), arrived=one.arrived)
            share = law.lost_update if name == "sfl-best" else 1.0
            records.append(
                replace(
                    record,
                    rb_count=[float(count > 0) for count in one.rb_count],
                    packet_error_rate=lost.tolist(),
                    discrepancy=one.spread + share * float(lost.mean()),
                )
            )
        runs["small-cifar10", name, 1] = Run(name, 1, records, None, config, "", 0.0)
    assert astuple(fit(runs)) == (pytest.approx(2.5, rel=0.02), pytest.approx(1.3), pytest.approx(0.8))


def test_what_ships_is_fitted_and_better_than_a_guess() -> None:
    """Held-out errors of the paper's scheme, of ours, and of one that borrows."""
    errors = held_out()
    assert {"asfl", "asfl-plus", "sfl-best"} <= errors.keys()
    for name, error in errors.items():
        assert 0 < error.delay < 0.2, name
        assert 0 < error.energy < 0.2, name
        assert error.cut is None or error.cut < 1, name


@pytest.mark.parametrize(
    "command",
    [("decide", "--rounds", "1"), ("advise", "demo", "--time", "5s", "--rounds", "1")],
)
def test_the_error_stands_beside_the_prediction(asfl: Asfl, command: tuple[str, ...]) -> None:
    words = [*command, "--schemes", "asfl,epsl"]
    shown = " ".join(asfl(*words).stdout.split())
    assert held_out_in_words(["asfl", "epsl"]) in shown
    assert "Never compared with training: epsl." in shown
    data = json.loads(asfl(*words, "--json").stdout)["held_out"]
    assert data["asfl"]["delay"] == held_out()["asfl"].delay
    assert data["epsl"] is None
