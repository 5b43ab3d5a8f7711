"""What training starts from, if not from random weights (`training.initial`): a file, or central rounds before round 1.

A file is safetensors, which holds numbers and no code. Central rounds are those of the scheme `central`: one model, all
clients' training images together, as many mini-batches a round as clients can be served. Their mini-batches come from a
stream of their own, and no scheme's settings matter, so all schemes of a comparison start from the same weights. The
optimisers start afresh either way.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.errors import AsflError, short
from asfl.config.files import MAX_FILE_BYTES, check_file, read_file
from asfl.config.randomness import random_stream
from asfl.costs.modelled import CENTRAL
from asfl.data import ImageData
from asfl.runs.records import DIVERGED

if TYPE_CHECKING:
    import torch

    from asfl.models.cuttable import CuttableModel


def check_initial(config: Config) -> None:
    """Refuse a file that a run can't start from."""
    if _is_file(config):
        import torch

        from asfl.models.build import build_model

        with torch.random.fork_rng(devices=[]):
            _load(build_model(config.model_spec), config)


def start_from(
    model: "CuttableModel",
    config: Config,
    data: ImageData,
    parts: Sequence[NDArray[np.int64]],
    device: "torch.device",
) -> None:
    """Give a network the weights that training starts from; `parts` says which training images are the clients'."""
    if _is_file(config):
        _load(model, config)
    elif config.training.central_rounds:
        _train_centrally(model, config, data, parts, device)


def _is_file(config: Config) -> bool:
    return isinstance(config.training.initial, str) and config.training.initial != ""


def _content(config: Config) -> bytes:
    file, what = Path(str(config.training.initial)).expanduser(), _what(config)
    check_file(file, what)
    try:
        return read_file(file, MAX_FILE_BYTES)
    except OSError as error:
        raise AsflError(f"{what}: can't read it: {error.strerror}") from None


def _what(config: Config) -> str:
    return f"training.initial = {short(config.training.initial, 200)}"


def _load(model: "CuttableModel", config: Config) -> None:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    from asfl.train.state import Layout

    layout, what = Layout(model), _what(config)
    try:
        tensors = load(_content(config))
    except SafetensorError as error:
        raise AsflError(f"{what} is no safetensors file, such as model.safetensors of a run ({error})") from None
    slots = {slot.key: slot for slot in (*layout.parameters, *layout.statistics)}
    other = f"{what} isn't of {config.model_spec.name}, the network of this run"
    missing, unknown = sorted(slots.keys() - tensors.keys()), sorted(tensors.keys() - slots.keys())
    if missing or unknown:
        raise AsflError(f"{other}: " + (f"it lacks {missing[0]}" if missing else f"its {short(unknown[0])} is unknown"))
    for name, tensor in tensors.items():
        there, needed = list(tensor.shape), list(slots[name].shape)
        if there != needed:
            raise AsflError(f"{other}: {short(name)} has the shape {there} instead of {needed}")
        if not tensor.is_floating_point() or not torch.isfinite(tensor.float()).all():
            raise AsflError(f"{what}: {short(name)} has entries that are no finite numbers")
    model.load_state_dict(tensors, strict=False)  # counters of batch norm, which nothing reads, are in no file


def _train_centrally(
    model: "CuttableModel",
    config: Config,
    data: ImageData,
    parts: Sequence[NDArray[np.int64]],
    device: "torch.device",
) -> None:
    from asfl.train.batches import Batches
    from asfl.train.optimizers import rule_named
    from asfl.train.signals import RoundPlan
    from asfl.train.steps import Trainer

    training, scenario = config.training, config.scenario
    seed = int(random_stream(scenario.seed, "central rounds before the first").integers(10**18))
    seeded = config.model_copy(update={"scenario": scenario.model_copy(update={"seed": seed})})
    steps = min(scenario.clients, config.radio.num_rbs)
    batches = Batches.of(data, [np.concatenate(parts)], seeded, device, local_steps=steps)
    rate = training.learning_rate if training.initial_rate == "auto" else training.initial_rate
    rule = rule_named(training.optimizer, rate)
    trainer = Trainer(model, batches, CENTRAL, rule, num_clients=1, seed=seed, device=device)
    there = np.ones(1, dtype=np.bool_)
    for index in range(training.central_rounds):
        trained = trainer.round(RoundPlan(index, np.array([trainer.layout.num_units]), there, there))
        average = trainer.state.average_model()
        finite = all(bool(vector.isfinite().all()) for vector in average.both)
        if not (finite and np.isfinite([trained.loss, trained.update_norm2]).all()):
            raise AsflError(
                f"training.initial = {training.initial}: {DIVERGED} in central round {index + 1}, with a loss of "
                f"{trained.loss[0]:g} and an update of norm {np.sqrt(trained.update_norm2[0]):g} "
                f"(training.initial_rate = {rate:g} may be too high)"
            )
    model.load_state_dict(trainer.layout.state_dict(average), strict=False)
