"""Noise on what leaves a client: how long it is at most, how strong the noise, what ε says of it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import norm

from asfl.config import Privacy, load_config
from asfl.config.errors import AsflError
from asfl.data import load_data
from asfl.runs.records import RoundRecord
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.privacy import GaussianMechanism, drawn_from, epsilon, nobody_knows

TINY = ["training.rounds=3", "model.width=0.1", "model.norm=group", "output.evaluate_every=10", "output.track=none"]


@given(st.integers(0, 10**6), st.floats(0.1, 10.0), st.floats(1e-3, 1e3))
@settings(max_examples=30)
def test_a_sample_is_never_longer_than_the_clip(seed: int, clip: float, scale: float) -> None:
    random = torch.Generator().manual_seed(seed)
    carry = tuple(scale * torch.randn(5, 3, size, generator=random, dtype=torch.float64) for size in (4, 2))
    privacy = Privacy(activation_clip=clip, activation_noise=1e-9)
    blurred = GaussianMechanism(privacy, drawn_from(seed)).activations(carry, 0, 0, 0)
    lengths = [torch.cat([t.flatten(1) for t in each], 1).norm(dim=1) for each in (carry, blurred)]
    assert (lengths[1] <= clip * (1 + 1e-6)).all()
    short = lengths[0] <= clip
    for before, after in zip(carry, blurred, strict=True):
        torch.testing.assert_close(after[short], before[short], atol=1e-6 * clip, rtol=1e-6)


def test_noise_is_as_strong_as_it_says() -> None:
    privacy = Privacy(activation_clip=3.0, activation_noise=0.5, update_clip=2.0, update_noise=0.25)
    blur = GaussianMechanism(privacy, drawn_from(1))
    (noise,) = blur.activations((torch.zeros(100, 1000),), 0, 0, 0)
    assert float(noise.std()) == pytest.approx(1.5, rel=0.02)
    gradient = torch.zeros(100_000)
    blur.gradient_(gradient, 0, 0, 0)
    assert float(gradient.std()) == pytest.approx(0.5, rel=0.02)
    long = torch.full((100,), 50.0)
    GaussianMechanism(Privacy(update_noise=1e-9), nobody_knows).gradient_(long, 0, 0, 0)
    assert float(long.norm()) == pytest.approx(1.0, rel=1e-5)


def test_a_simulations_noise_can_be_drawn_again_and_a_devices_cannot() -> None:
    privacy, zeros = Privacy(activation_noise=1.0), (torch.zeros(2, 50),)
    for rng, same in ((drawn_from(1), True), (nobody_knows, False)):
        one, other = (GaussianMechanism(privacy, rng).activations(zeros, 3, 1, 0)[0] for _ in range(2))
        assert torch.equal(one, other) == same
    assert not torch.equal(
        GaussianMechanism(privacy, drawn_from(1)).activations(zeros, 3, 1, 0)[0],
        GaussianMechanism(privacy, drawn_from(1)).activations(zeros, 4, 1, 0)[0],
    )


@pytest.mark.parametrize("noise", [1.0, 4.0, 20.0])
def test_epsilon_is_above_the_exact_one_and_not_by_much(noise: float) -> None:
    """One release of both is one Gaussian with √2 times the sensitivity 2: δ(ε) in closed form (Balle, Wang 2018)."""
    found = epsilon(Privacy(activation_noise=noise, update_noise=noise), 1)
    shift = 2 * math.sqrt(2) / noise

    def delta(eps: float) -> float:
        return float(norm.cdf(shift / 2 - eps / shift) - math.exp(eps) * norm.cdf(-shift / 2 - eps / shift))

    assert delta(found) <= 1e-5
    assert delta(found / 2) > 1e-5


def test_epsilon_grows_with_releases_and_falls_with_noise() -> None:
    weak, strong = (Privacy(activation_noise=noise, update_noise=noise) for noise in (2.0, 8.0))
    assert epsilon(weak, 0) == 0
    assert epsilon(weak, 1) < epsilon(weak, 2) < epsilon(weak, 50)
    assert epsilon(strong, 10) < epsilon(weak, 10)
    assert epsilon(Privacy(activation_noise=2.0), 1) == math.inf


def simulated(*overrides: str, scheme: str = "asfl") -> list[RoundRecord]:
    config = load_config("demo", [*TINY, *overrides]).config
    simulation = Simulation(config, scheme_named(scheme), load_data(config))
    records = []
    while not simulation.finished:
        records.append(simulation.play_round())
    return records


def test_epsilon_is_in_the_record_and_survives_a_line() -> None:
    records = simulated("privacy.activation_noise=5", "privacy.update_noise=5")
    spent = [record.epsilon for record in records]
    assert all(one is not None and one > 0 for one in spent)
    assert RoundRecord.from_line(records[-1].to_line()).epsilon == spent[-1]
    assert simulated("privacy.min_cut=3")[0].epsilon is None


@pytest.mark.parametrize("scheme", ["asfl", "asfl-joint", "asfl-plus", "sfl", "sl-best", "acc-sfl", "epsl"])
def test_no_scheme_cuts_shallower_than_it_may(scheme: str) -> None:
    for record in simulated("privacy.min_cut=4", scheme=scheme):
        cuts = np.broadcast_to(np.array(record.cut), len(record.rb_count))
        assert (cuts[np.array(record.rb_count) > 0] >= 4).all()


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(AsflError, match=r"sfl-cut2.*cuts at 2, but privacy\.min_cut = 3"):
        simulated("privacy.min_cut=3", scheme="sfl-cut2")
    with pytest.raises(AsflError, match=r"privacy\.min_cut = 99 must be 1 …"):
        simulated("privacy.min_cut=99")
    with pytest.raises(AsflError, match=r"needs model\.norm"):
        simulated("privacy.update_noise=1", "model.norm=batch")
    with pytest.raises(AsflError, match="fedavg has none"):
        simulated("privacy.update_noise=1", scheme="fedavg")
    with pytest.raises(AsflError, match="epsl mixes"):
        simulated("robust.average=median", scheme="epsl")
