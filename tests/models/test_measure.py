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
from asfl.models.build import build_model
from asfl.models.load import load_profile, shipped_profiles
from asfl.models.measure import measure_profile
from asfl.models.profile import ModelProfile

SHIPPED = {
    "cnn-digits",
    *(
        f"{model}-{dataset}"
        for model in (*get_args(Architecture), "vgg19-w0.25", "resnet18-w0.25")
        for dataset in ("cifar10", "cifar100")
    ),
}

torch.set_num_threads(1)


def unit(profile: ModelProfile, name: str) -> tuple[float, float, float, float]:
    """(param_bits, activation_bits, forward_flops, backward_flops) of one unit."""
    m = profile.unit_names.index(name)
    columns = (profile.param_bits, profile.activation_bits, profile.forward_flops, profile.backward_flops)
    return tuple(float(column[m]) for column in columns)  # type: ignore[return-value]


def conv_macs(in_channels: int, out_channels: int, kernel: int, out_size: int) -> int:
    return in_channels * out_channels * kernel**2 * out_size**2


@pytest.fixture(scope="module")
def vgg19() -> ModelProfile:
    return measure_profile(ModelSpec("vgg19", "cifar100"))


@pytest.fixture(scope="module")
def resnet50() -> ModelProfile:
    return measure_profile(ModelSpec("resnet50", "cifar100"))


def test_first_convolution(vgg19: ModelProfile) -> None:
    macs = conv_macs(3, 64, 3, 32)
    params = 3 * 64 * 9 + 2 * 64  # scale and shift of the norm; its running statistics don't count
    # The image needs no gradient, so the backward pass computes that of the weights only.
    assert unit(vgg19, "conv1") == (32 * params, 32 * 64 * 32 * 32, 2 * macs, 2 * macs)


def test_middle_convolution_with_pool(vgg19: ModelProfile) -> None:
    macs = conv_macs(256, 256, 3, 8)
    params = 256 * 256 * 9 + 2 * 256
    assert unit(vgg19, "conv8") == (32 * params, 32 * 256 * 4 * 4, 2 * macs, 4 * macs)  # 8×8, pooled to 4×4


def test_fully_connected(vgg19: ModelProfile) -> None:
    macs = 512 * 100
    assert unit(vgg19, "fc3") == (32 * (512 * 100 + 100), 32 * 100, 2 * macs, 4 * macs)


def test_bottleneck_with_stride(resnet50: ModelProfile) -> None:
    macs = conv_macs(128, 128, 3, 16)  # 32×32 in, 16×16 out
    skip = 256 * 32 * 32  # still as it came into the block
    params = 128 * 128 * 9 + 2 * 128
    expected = (32 * params, 32 * (128 * 16 * 16 + skip), 2 * macs, 4 * macs)
    assert unit(resnet50, "stage2.block1.conv2") == expected


def test_last_unit_of_a_block_with_shortcut(resnet50: ModelProfile) -> None:
    macs = conv_macs(128, 512, 1, 16) + conv_macs(256, 512, 1, 16)
    params = 128 * 512 + 256 * 512 + 2 * 2 * 512
    expected = (32 * params, 32 * 512 * 16 * 16, 2 * macs, 4 * macs)  # no skip behind the block
    assert unit(resnet50, "stage2.block1.conv3") == expected


def test_skip_bits_inside_a_block_without_shortcut(resnet50: ModelProfile) -> None:
    macs = conv_macs(512, 128, 1, 16)
    expected = (32 * (512 * 128 + 2 * 128), 32 * (128 + 512) * 16 * 16, 2 * macs, 4 * macs)
    assert unit(resnet50, "stage2.block2.conv1") == expected


def test_last_block_is_pooled(resnet50: ModelProfile) -> None:
    assert unit(resnet50, "stage4.block3.conv3")[1] == 32 * 2048


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


def test_measuring_leaves_the_random_stream_alone() -> None:
    before = torch.get_rng_state()
    measure_profile(ModelSpec("cnn", "digits"))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_promised_profiles_are_shipped() -> None:
    assert set(shipped_profiles()) >= SHIPPED


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profile_is_what_is_measured(name: str) -> None:
    shipped, measured = load_profile(name), measure_profile(ModelSpec.parse(name))
    assert shipped.to_json() == measured.to_json()
    assert shipped.name == name


def test_other_profiles_are_measured_on_demand() -> None:
    profile = load_profile("cnn-w0.5-gn-digits")
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
        ("resnet51-cifar10", "unknown architecture 'resnet51' .* did you mean 'resnet50'"),
        ("vgg19-cifar", "unknown data set 'cifar' .* did you mean 'cifar10'"),
        ("vgg19-w0-cifar10", "width '0' .* above 0"),
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


def run_python(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_shipped_profiles_work_without_torch() -> None:
    assert run_python(WITHOUT_TORCH) == "measuring a profile needs an optional dependency: pip install 'asfl[train]'\n"


def test_profiles_dont_import_torch() -> None:
    code = "import sys, asfl; asfl.load_profile('cnn-digits'); print('torch' in sys.modules)"
    assert run_python(code) == "False\n"
