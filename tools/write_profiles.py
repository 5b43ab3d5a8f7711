"""Measures the layer profiles that ship with the package again: `make profiles`."""

import json
from pathlib import Path

from asfl.config.names import ModelSpec
from asfl.config.units import BITS_PER_VALUE
from asfl.models.build import measure_profile
from asfl.models.profile import ModelProfile

FOLDER = Path(__file__).resolve().parent.parent / "src" / "asfl" / "models" / "profiles"
CIFAR_MODELS = (
    "mlp",
    "cnn",
    "cnn-w0.5",
    "vgg11",
    "vgg16",
    "vgg19",
    "resnet18",
    "resnet50",
    "vgg19-w0.25",
    "resnet18-w0.25",
)
NAMES = ("cnn-digits", *(f"{model}-{data}" for model in CIFAR_MODELS for data in ("cifar10", "cifar100")))


def to_text(profile: ModelProfile) -> str:
    """JSON with one array per line: short to scroll through, and a change shows in one line of a diff."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in profile.to_json().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    for name in NAMES:
        profile = measure_profile(ModelSpec.parse(name))
        (FOLDER / f"{name}.json").write_text(to_text(profile), "utf-8")
        million_params = profile.client_param_bits[-1] / BITS_PER_VALUE / 1e6
        gflop = profile.client_forward_flops[-1] / 1e9
        print(f"{name}: {profile.num_layers} units, {million_params:.2f} M parameters, {gflop:.3f} GFLOP forward")


if __name__ == "__main__":
    main()
