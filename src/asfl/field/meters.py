"""What a client measures of itself: the energy it consumes, and how long each layer takes it.

A meter is anything with `read()`. It is asked after every request, so it should be quick; if it fails, the client says
so once and goes on without. Your own becomes a name for `serve(meter=…)` or a SuperNode's `meter` by `register_meter`,
in a file that ASFL_PLUGINS names on the device (docs/field.md).
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.config.names import Registry
from asfl.models.cuttable import Carry, CuttableModel, go_backward

_log = logging.getLogger(__name__)


class Meter(Protocol):
    def read(self) -> float:
        """Joules consumed since any fixed moment: the server takes differences."""
        ...


class RaplMeter:
    """The energy counters of Intel and AMD processors (Linux powercap); usually only root may read them."""

    def __init__(self, folder: Path = Path("/sys/class/powercap")) -> None:
        # Zones with one colon are whole packages; deeper ones are parts of them.
        self._zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        if not self._zones:
            raise AsflError(f"meter 'rapl': there are no energy counters in {folder}")
        try:
            self._spans = [_number(zone / "max_energy_range_uj") for zone in self._zones]
            self._before = self._counters()
        except OSError as error:
            raise AsflError(f"meter 'rapl': can't read {error.filename}: {error.strerror}") from None
        self._total_uj = 0.0

    def read(self) -> float:
        now = self._counters()
        for counter, before, span in zip(now, self._before, self._spans, strict=True):
            self._total_uj += (counter - before) % (span + 1)  # counters start over at their span
        self._before = now
        return self._total_uj * 1e-6

    def _counters(self) -> list[int]:
        return [_number(zone / "energy_uj") for zone in self._zones]


METERS: Registry[Callable[[], Meter] | None] = Registry("meter", {"none": None, "rapl": RaplMeter})


def register_meter(name: str, make: Callable[[], Meter]) -> None:
    """Make a meter of your own known by a name; `make` is called once, when the client begins."""
    METERS.register(name, make)


def meter_named(name: str) -> Meter | None:
    make = METERS.named(name)
    return None if make is None else make()


class CarefulMeter:
    """Reads a meter that may fail: then there is nothing to say, and the log says why, once."""

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter

    def read(self) -> float | None:
        if self._meter is None:
            return None
        try:
            return float(self._meter.read())
        except Exception as error:  # code of the user; a gauge must not cost a round
            _log.warning("the energy meter failed, and isn't read any more: %s: %s", type(error).__name__, error)
            self._meter = None
            return None


def _number(file: Path) -> int:
    return int(file.read_text())


# ---------------------------------------------------------------------- time
PASSES = 4
"""The first is slow; of the others the fastest counts, layer by layer."""


def layer_seconds(model: CuttableModel, images: Tensor) -> NDArray[np.float64]:
    """[2, M] seconds of a mini-batch in each layer: forward, backward."""
    return np.asarray(np.min([_one_pass(model, images) for _ in range(PASSES)][1:], axis=0))


def _one_pass(model: CuttableModel, images: Tensor) -> NDArray[np.float64]:
    """Layer by layer: each begins from a copy of what the one before gave, as behind a cut, and goes back at once.

    So never more than one layer's activations and gradients are there. Which gradients go back doesn't matter.
    """
    carry: Carry = (images,)
    taken: list[tuple[float, float]] = []
    for unit in model.units:
        carry = tuple(tensor.detach().requires_grad_(bool(taken)) for tensor in carry)
        began = time.perf_counter()
        out = unit(carry)
        between = time.perf_counter()
        go_backward(out, tuple(torch.ones_like(tensor) for tensor in out))
        taken.append((between - began, time.perf_counter() - between))
        unit.zero_grad()
        carry = out
    return np.array(taken).T
