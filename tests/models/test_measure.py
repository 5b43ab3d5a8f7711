"""Profiles, counted again by hand: FLOP = 2·MAC, backward = twice that (once for the first unit)."""

import subprocess
import sys
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch

from asfl.config.errors import AsflError
from asfl.config.names import Architecture, Dataset, ModelSpec, Norm
from asfl.models.build import build_model, measure_profile
from asfl.models.load import load_profile, shipped_profiles

SHIPPED = {
    "cnn-digits",
    *(
        f"{model}-{dataset}"
        for model in (*get_args(Architecture), "vgg19-w0.25", "resnet18-w0.25")
        for dataset in ("cifar10", "cifar100")
    ),
}

torch.set_num_threads(1)


"""Parameters, values that are sent at a cut behind the unit, MACs, and FLOPs of the backward pass per MAC."""


@pytest.mark.parametrize("norm", get_args(Norm))
@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_every_unit_against_its_layers(architecture: Architecture, norm: Norm) -> None:
    """The same columns from the layers' weights and the sizes a real forward pass gives."""
    spec = ModelSpec(architecture, "cifar10", 0.1, norm)
    model, profile = build_model(spec), measure_profile(spec)
    macs: dict[torch.nn.Module, int] = {}

    def count(layer: torch.nn.Module, _inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)
        macs[layer] = layer.weight.numel() * (output[0, 0].numel() if output.ndim == 4 else 1)

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(count)
    carry: tuple[torch.Tensor, ...] = (torch.zeros(1, 3, 32, 32),)
    model.eval()
    for m, part in enumerate(model.units):
        carry = part(carry)
        unit_macs = sum(macs[layer] for layer in part.modules() if layer in macs)
        assert profile.forward_flops[m] == 2 * unit_macs
        assert profile.backward_flops[m] == (2 if m == 0 else 4) * unit_macs
        assert profile.activation_bits[m] == 32 * sum(tensor.numel() for tensor in carry)
        assert profile.param_bits[m] == 32 * sum(parameter.numel() for parameter in part.parameters())
    assert profile.unit_names == model.unit_names


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profile_is_what_is_measured(name: str) -> None:
    shipped, measured = load_profile(name), measure_profile(ModelSpec.parse(name))
    assert shipped.to_json() == measured.to_json()
    assert shipped.name == name


def test_other_profiles_are_measured_on_demand() -> None:
    assert set(shipped_profiles()) >= SHIPPED
    before = torch.get_rng_state()
    profile = load_profile("cnn-w0.5-gn-digits")
    assert torch.equal(torch.get_rng_state(), before)  # measuring leaves the random stream alone
    assert profile.name == "cnn-w0.5-gn-digits"
    assert np.array_equal(profile.cuts, np.arange(1, 7))


def test_spec_name_round_trip() -> None:
    choices = (get_args(Architecture), get_args(Dataset), [1.0, 0.25, 0.05, 2.0], get_args(Norm))
    specs = [ModelSpec(*fields) for fields in product(*choices)]
    assert [ModelSpec.parse(spec.name) for spec in specs] == specs
    assert len({spec.name for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vg19-cifar10", "unknown architecture 'vg19' .* did you mean 'vgg19'"),
        ("vgg19-cifar", "unknown data set 'cifar' .* did you mean 'cifar10'"),
        ("vgg19-w1.2.3-cifar10", "width '1.2.3' .* above 0"),
        ("vgg19-cifar10-", "unknown model 'vgg19-cifar10-': did you mean 'vgg19-cifar10'"),
    ],
)
def test_wrong_name_suggests_a_right_one(name: str, message: str) -> None:
    with pytest.raises(AsflError, match=message):
        ModelSpec.parse(name)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # any import of it now fails as if it weren't installed
import asfl, asfl.models.load
from asfl.config.errors import MissingExtraError
assert asfl.models.load.load_profile("vgg19-cifar100").num_layers == 19
try:
    asfl.models.load.load_profile("vgg19-w0.3-cifar100")
except MissingExtraError as error:
    print(error)
"""


def test_shipped_profiles_work_without_torch() -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert shown == "measuring a profile needs an optional dependency: pip install 'asfl[train]'\n"
