"""Machines that clients or the server may be (`devices.toml`), and the settings that make them so."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Literal

from asfl.config.errors import AsflError, nearest, short
from asfl.config.files import parse_toml
from asfl.config.units import format_si

FILE = "devices.toml"


@dataclass(frozen=True)
class Device:
    """What was measured on one machine."""

    what: str
    gflops: float
    """Sustained, in this precision."""
    precision: Literal["single", "double"]
    clock_ghz: float
    measured: str
    source: str
    watts: float | None = None
    """While it did so; None: not known."""

    @property
    def flop_per_s(self) -> float:
        """In single precision, which takes half the time of double precision on the same units."""
        return 1e9 * self.gflops * (2 if self.precision == "double" else 1)

    @property
    def j_per_flop(self) -> float | None:
        return None if self.watts is None else self.watts / self.flop_per_s

    @property
    def in_words(self) -> str:
        energy = "power not known" if self.j_per_flop is None else f"{1e9 * self.j_per_flop:.2g} nJ/FLOP"
        where = self.source.partition(",")[0].removeprefix("https://github.com/")
        return f"{self.what}: {format_si(self.flop_per_s, 'FLOP/s')}, {energy} ({self.measured}; {where})"


@lru_cache(maxsize=1)
def devices() -> Mapping[str, Device]:
    text = (resources.files("asfl") / "config" / FILE).read_text("utf-8")
    return {name: Device(**values) for name, values in parse_toml(text, FILE).items()}


def device_named(name: object, setting: str) -> Device:
    known = devices()
    if not isinstance(name, str) or name not in known:
        raise AsflError(f"{setting}: unknown device {short(name)}: {nearest(str(name), known)}")
    return known[name]


def settings_of(setting: str, name: object) -> dict[str, float]:
    """What `compute.client_device` or `compute.server_device` stands for.

    All clients are the same machine: κ = f / (FLOP/s), and φ such that κ φ f² is its J/FLOP.
    """
    device = device_named(name, setting)
    hz = 1e9 * device.clock_ghz
    cycles_per_flop = hz / device.flop_per_s
    if setting == "compute.server_device":
        return {"compute.server_hz": hz, "compute.server_cycles_per_flop": cycles_per_flop}
    if device.j_per_flop is None:
        raise AsflError(f"{setting} = '{name}': its power isn't known, so it can only be compute.server_device")
    return {
        "scenario.min_cpu_hz": hz,
        "scenario.max_cpu_hz": hz,
        "compute.client_cycles_per_flop": cycles_per_flop,
        "compute.energy_coefficient": device.j_per_flop / (cycles_per_flop * hz**2),
    }


SETTINGS = ("compute.client_device", "compute.server_device")
"""Not fields: a layer of a configuration that has one of these has what it stands for instead."""
