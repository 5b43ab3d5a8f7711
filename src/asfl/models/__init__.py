"""The networks that are trained, each one a chain of units that may be cut between any two.

A new model is one file here that builds a `CuttableModel`, one line in the registry below, and its name in
`asfl.profile.Architecture`.
"""

from collections.abc import Callable

from asfl.errors import MissingExtraError
from asfl.profile import Architecture, ModelSpec

# Python runs this file before any other of the package, so this is the one place that notices a missing PyTorch.
try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("building models", "train") from error

from asfl.models.cnn import build_cnn
from asfl.models.cuttable import Carry, CuttableModel
from asfl.models.resnet import build_resnet
from asfl.models.vgg import build_vgg

__all__ = ["Carry", "CuttableModel", "build_model"]

_BUILDERS: dict[Architecture, Callable[[ModelSpec], CuttableModel]] = {
    "cnn": build_cnn,
    "vgg11": build_vgg,
    "vgg16": build_vgg,
    "vgg19": build_vgg,
    "resnet18": build_resnet,
    "resnet50": build_resnet,
}


def build_model(spec: ModelSpec) -> CuttableModel:
    """The network `spec` names, freshly initialised from PyTorch's global random stream."""
    return _BUILDERS[spec.architecture](spec)
