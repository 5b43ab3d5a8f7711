"""Law: a step split at any cut is the unsplit step, bit for bit."""

from copy import deepcopy
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from asfl.config.errors import AsflError
from asfl.config.names import Architecture, Dataset, ModelSpec, Norm, Precision
from asfl.models.build import build_model
from asfl.models.cuttable import Carry, CuttableModel

UNITS: dict[Architecture, int] = {
    "cnn": 7,
    "mlp": 5,
    "vgg11": 11,
    "vgg16": 16,
    "vgg19": 19,
    "resnet18": 18,
    "resnet50": 50,
}
WIDTH = 0.1

torch.set_num_threads(1)  # tiny tensors: more threads would only wait for each other


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def tiny(architecture: Architecture, norm: Norm = "batch", dataset: Dataset = "cifar10") -> CuttableModel:
    return build_model(ModelSpec(architecture, dataset, WIDTH, norm))


def tapped_forward(model: CuttableModel, x: Tensor) -> tuple[Tensor, list[Carry]]:
    """The unsplit forward pass, with every carry kept.

    Each tensor goes through an identity first, so its gradient is that of the units behind the cut alone: a skip tensor
    is the same tensor as the block's input, whose gradient also has the part from the block's first convolution.
    """
    carry: Carry = (x,)
    taps: list[Carry] = []
    for unit in model.units:
        carry = tuple(tensor.view_as(tensor) for tensor in unit(carry))
        for tensor in carry:
            tensor.retain_grad()
        taps.append(carry)
    return carry[0], taps


def split_step(model: CuttableModel, cut: int, x: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """Logits and the gradients sent back, with nothing but the carry and its gradients crossing the cut."""
    carry = model.client_part(cut)((x,))
    received = tuple(tensor.detach().clone().requires_grad_() for tensor in carry)
    (logits,) = model.server_part(cut)(received)
    torch.autograd.backward(cross_entropy(logits, labels))
    sent_back = [tensor.grad for tensor in received]
    torch.autograd.backward(carry, sent_back)
    return logits, sent_back


def same(left: Tensor | None, right: Tensor | None) -> bool:
    return left is not None and right is not None and torch.equal(left, right)


@pytest.mark.parametrize("norm", get_args(Norm))
@pytest.mark.parametrize("architecture", UNITS)
def test_split_step_is_the_unsplit_step_at_every_cut(architecture: Architecture, norm: Norm) -> None:
    initial = tiny(architecture, norm)
    x, labels = torch.randn(2, 3, 32, 32), torch.tensor([3, 7])
    whole = deepcopy(initial)
    logits = whole(x)
    torch.autograd.backward(cross_entropy(logits, labels))
    tapped = deepcopy(initial)
    tapped_logits, taps = tapped_forward(tapped, x)
    torch.autograd.backward(cross_entropy(tapped_logits, labels))
    assert same(tapped_logits, logits)

    # Every cut with batch norm; with the others, those of the deepest network in steps of two through blocks of three.
    split = deepcopy(initial)
    for cut in range(1, UNITS[architecture], 2 if architecture == "resnet50" and norm != "batch" else 1):
        split.zero_grad()
        split.load_state_dict(initial.state_dict())
        split_logits, sent_back = split_step(split, cut, x, labels)
        assert same(split_logits, logits), f"logits at cut {cut}"
        carry = taps[cut - 1]
        assert len(sent_back) == len(carry)
        for position, (gradient, tensor) in enumerate(zip(sent_back, carry, strict=True)):
            assert same(gradient, tensor.grad), f"gradient of carry[{position}] at cut {cut}"
            assert tensor.grad is not None
            assert tensor.grad.any(), f"a gradient of zeros proves nothing: carry[{position}] at cut {cut}"
        for (name, parameter), other in zip(split.named_parameters(), whole.parameters(), strict=True):
            assert same(parameter.grad, other.grad), f"gradient of {name} at cut {cut}"
        for (name, buffer), statistics in zip(split.named_buffers(), whole.buffers(), strict=True):
            assert same(buffer, statistics), f"{name} at cut {cut}"
    assert bool(list(whole.buffers())) == (norm == "batch" and architecture != "mlp")


@pytest.mark.parametrize("architecture", UNITS)
def test_unit_counts_and_names(architecture: Architecture) -> None:
    model = tiny(architecture)
    assert len(model.units) == len(model.unit_names) == UNITS[architecture]
    assert len(set(model.unit_names)) == UNITS[architecture]
    for unit in model.units:  # one convolution or matrix product each, plus the shortcut's
        kinds = [layer for layer in unit.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        assert 1 <= len(kinds) <= 2
    parameters = dict(model.named_parameters())
    for cut in range(1, UNITS[architecture]):  # parts share units and names with the model
        client = dict(model.client_part(cut).named_parameters())
        server = dict(model.server_part(cut).named_parameters())
        assert client
        assert server
        assert [*client, *server] == list(parameters)
        assert all(parameter is parameters[name] for name, parameter in {**client, **server}.items())


@pytest.mark.parametrize(("architecture", "block_length"), [("resnet18", 2), ("resnet50", 3)])
def test_skip_tensor_is_carried_inside_blocks_only(architecture: Architecture, block_length: int) -> None:
    model = tiny(architecture)
    x = torch.randn(2, 3, 32, 32)
    block_input = x
    for cut in range(1, UNITS[architecture]):
        carry = model.client_part(cut)((x,))
        inside_block = (cut - 1) % block_length != 0  # the stem is unit 1, blocks end at 1 + multiples of their length
        assert len(carry) == (2 if inside_block else 1), model.unit_names[cut - 1]
        if inside_block:
            assert carry[1].shape == block_input.shape
        else:
            (block_input,) = carry


@pytest.mark.parametrize("cut", [-1, 0, 7])
def test_invalid_cut_names_the_valid_range(cut: int) -> None:
    model = tiny("cnn")
    client = model.client_part(3)
    model.eval()
    assert not any(unit.training for unit in client.units.values())  # a part follows its units
    for part in (model.client_part, model.server_part):
        with pytest.raises(AsflError, match=f"cut = {cut}: .* 7 units .* 1 … 6"):
            part(cut)


def test_width_rounds_half_up_and_keeps_a_channel() -> None:
    def conv_channels(width: float) -> list[int]:
        model = build_model(ModelSpec("cnn", "cifar10", width))
        return [layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)]

    assert conv_channels(0.25) == [8, 8, 16, 16, 32, 32]
    assert conv_channels(5 / 64) == [3, 3, 5, 5, 10, 10]  # 2.5 -> 3
    assert conv_channels(0.001) == [1] * 6


@pytest.mark.parametrize("architecture", UNITS)
def test_without_norm_the_signal_neither_dies_nor_explodes(architecture: Architecture) -> None:
    model = build_model(ModelSpec(architecture, "cifar10", 0.25, "none"))
    carry: Carry = (torch.randn(8, 3, 32, 32),)
    for unit in model.units:
        carry = unit(carry)
        assert 0.01 < carry[0].std() < 3


def test_channels_last_images_give_the_same_gradients() -> None:
    # A strided 1×1 convolution with 6 input channels crashes or is wrong here (see Subsample).
    model = tiny("resnet18", "none")
    other = deepcopy(model)
    x = torch.randn(4, 3, 32, 32)
    model(x).square().sum().backward()
    other(x.contiguous(memory_format=torch.channels_last)).square().sum().backward()
    for (name, left), right in zip(model.named_parameters(), other.parameters(), strict=True):
        assert left.grad is not None
        assert right.grad is not None
        assert torch.allclose(left.grad, right.grad, rtol=1e-3, atol=1e-4 * float(left.grad.abs().max())), name


def test_bfloat16_rounds_products_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = build_model(ModelSpec("vgg11", "cifar10", 0.1))
    images, sides = torch.randn(8, 3, 32, 32), {}
    for precision in get_args(Precision):
        model.precision = precision
        model.zero_grad()
        (activations,) = model.run((images,), 0, 5)
        (logits,) = model.run((activations,), 5, len(model.units))
        logits.square().mean().backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert {tensor.dtype for tensor in (activations, logits, *gradients)} == {torch.float32}
        sides[precision] = logits.detach()
    difference = (sides["bfloat16"] - sides["float32"]).norm() / sides["float32"].norm()
    assert 0 < difference < 0.1  # 2⁻⁸ a product, through eleven layers
