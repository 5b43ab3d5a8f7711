"""From a model's name to its profile: shipped with the package, or measured now."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources, util
from typing import TYPE_CHECKING

from asfl.config.errors import AsflError, MissingExtraError
from asfl.config.names import DATASETS, MODELS, ModelSpec
from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
from asfl.models.profile import ModelProfile

if TYPE_CHECKING:
    from asfl.models.cuttable import CuttableModel


def register_model(name: str, builder: "Callable[..., CuttableModel]") -> None:
    """Make `model.architecture = name` mean the network that `builder(spec)` returns.

    What else the builder takes are settings: `[model.own]` may have them, and nothing else. The network's profile is
    measured when it is first needed, which needs PyTorch.
    """
    if not callable(builder):
        raise AsflError(f"register_model('{name}'): {builder!r} is no function of a ModelSpec")
    MODELS.register(name, builder)


def shipped_profiles() -> Sequence[str]:
    """Names of the profiles that are usable without PyTorch."""
    folder = resources.files("asfl") / "models" / "profiles"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))


def load_profile(name: str | ModelSpec) -> ModelProfile:
    """The profile of a named model: shipped with the package, or measured now (needs `asfl[train]`)."""
    spec = name if isinstance(name, ModelSpec) else ModelSpec.parse(name)
    return _load(spec, INPUT_SHAPE[spec.dataset], NUM_CLASSES[spec.dataset], MODELS.named(spec.architecture))


@lru_cache(maxsize=32)  # a profile never changes, and every round file, world and job asks for one
def _load(spec: ModelSpec, input_shape: tuple[int, int, int], num_classes: int, builder: object) -> ModelProfile:
    """Keyed also by what the images look like and by who builds: own data and models may change behind their names."""
    if DATASETS.ships(spec.dataset) and builder is None:
        file = resources.files("asfl") / "models" / "profiles" / f"{spec.name}.json"
        if file.is_file():
            return ModelProfile.from_json(json.loads(file.read_text("utf-8")))
    if util.find_spec("torch") is None:
        raise MissingExtraError("measuring a profile", "train")
    from asfl.models.build import measure_profile  # PyTorch is needed only here

    return measure_profile(spec)
