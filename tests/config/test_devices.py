"""The library of machines: its numbers agree, and a round costs what they say."""

import numpy as np
import pytest

from asfl.config import load_config
from asfl.config.devices import devices
from asfl.config.errors import AsflError
from asfl.costs.modelled import round_cost
from asfl.costs.round import Decision
from asfl.costs.world import World
from conftest import Asfl, assert_refused

CLIENTS = [name for name, device in devices().items() if device.watts is not None]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_round_takes_the_time_and_energy_of_its_machines(name: str) -> None:
    device, settings = devices()[name], [f"compute.client_device={name}", "compute.server_device=v100"]
    config = load_config("vgg19-cifar10", settings).config
    round_, share = World.of(config).begin_round(0), config.charged_samples
    cost = round_cost(round_, Decision(5, np.ones(10), np.ones(10)), np.ones(10))
    forward, backward = (
        of[5] * share for of in (round_.profile.client_forward_flops, round_.profile.client_backward_flops)
    )
    on_server = share * (round_.profile.client_forward_flops + round_.profile.client_backward_flops)
    assert device.watts is not None
    assert device.j_per_flop == pytest.approx(device.watts / device.flop_per_s)
    assert cost.client_forward_delay_s == pytest.approx(np.full(10, forward / device.flop_per_s))
    assert cost.client_backward_energy_j == pytest.approx(np.full(10, backward * device.j_per_flop))
    assert round_.client_compute_w == pytest.approx(np.full(10, device.watts))
    assert cost.server_delay_s == pytest.approx(
        np.full(10, (on_server[-1] - on_server[5]) / devices()["v100"].flop_per_s)
    )


def test_what_is_set_besides_a_machine_stays_and_says_where_it_is_from() -> None:
    given = {"base": "demo", "compute": {"energy_coefficient": 1e-29, "client_device": "raspberry-pi-4"}}
    resolved = load_config(given)
    assert resolved.config.compute.energy_coefficient == 1e-29
    assert resolved.config.scenario.max_cpu_hz == resolved.config.scenario.min_cpu_hz == 1.8e9
    assert resolved.sources["scenario.max_cpu_hz"] == "a dictionary, device raspberry-pi-4"
    assert load_config(given, ["scenario.max_cpu_hz=2e9"]).config.scenario.max_cpu_hz == 2e9
    assert load_config(resolved.config).config == resolved.config


def test_unknown_machines_and_those_of_unknown_power_are_refused(asfl: Asfl) -> None:
    for setting, words in (
        ("compute.client_device=raspbery-pi-4", "unknown device 'raspbery-pi-4': did you mean 'raspberry-pi-4'?"),
        ("compute.client_device=a100", "its power isn't known, so it can only be compute.server_device"),
        ("compute.server_device=3", "unknown device 3: valid: "),
    ):
        with pytest.raises(AsflError, match="compute") as refused:
            load_config("demo", [setting])
        assert words in str(refused.value)
    assert_refused(asfl("scenario", "--set", "compute.client_device=phone"), "compute.client_device: unknown device")
    assert all(name in asfl("list", "devices").stdout for name in devices())
