"""The networks that are trained, each one a chain of units that may be cut between any two.

A new model is one file here that builds a `CuttableModel`, one line in the table below, and its name in
`asfl.config.names.Architecture`; or one file anywhere and `asfl.register_model`.
"""

from collections.abc import Callable

from asfl.config.errors import AsflError
from asfl.config.names import MODELS, ModelSpec, Precision
from asfl.models.cnn import build_cnn
from asfl.models.cuttable import CuttableModel
from asfl.models.mlp import build_mlp
from asfl.models.resnet import build_resnet
from asfl.models.vgg import build_vgg

_BUILDERS: dict[str, Callable[..., CuttableModel]] = {
    "cnn": build_cnn,
    "mlp": build_mlp,
    "vgg11": build_vgg,
    "vgg16": build_vgg,
    "vgg19": build_vgg,
    "resnet18": build_resnet,
    "resnet50": build_resnet,
}


def build_model(spec: ModelSpec, precision: Precision = "float32") -> CuttableModel:
    """The network `spec` names, freshly initialised from PyTorch's global random stream."""
    build = MODELS.named(spec.architecture) or _BUILDERS[spec.architecture]
    model = build(spec, **MODELS.settings(spec.architecture, dict(spec.own)))
    if not isinstance(model, CuttableModel) or len(model.units) < 2:
        raise AsflError(
            f"model '{spec.architecture}': its builder must return a CuttableModel of at least 2 units, "
            f"not {type(model).__name__}" + (f" of {len(model.units)}" if isinstance(model, CuttableModel) else "")
        )
    model.precision = precision
    return model
