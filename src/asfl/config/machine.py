"""What this machine has to offer, and a word before it is asked for more."""

import os
from contextlib import suppress
from pathlib import Path

from asfl.config.errors import AsflError

GB = 1e9
ALWAYS_THERE = 0.1 * GB
"""Less than this isn't worth a look."""
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_GROUP = Path("/sys/fs/cgroup")


def check_memory(needed_bytes: float, purpose: str, advice: str) -> None:
    """Refuse what doesn't fit into this machine, before any of it is taken."""
    if needed_bytes < ALWAYS_THERE:
        return
    there = available_bytes()
    if needed_bytes > there:
        raise AsflError(
            f"{purpose} needs about {_gigabytes(needed_bytes)} of memory; here are {_gigabytes(there)}: {advice}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch says so in a RuntimeError, in words of its own."""
    text = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY)


def available_bytes() -> float:
    """Memory that can still be had: what the kernel calls available, or what a control group leaves if that is less.

    Infinite where the system doesn't say.
    """
    return min(_of_machine(), _of_group())


def _of_machine() -> float:
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return float(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):  # no Linux: all there is, since nobody says what is free
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    return float("inf")


def _of_group() -> float:
    """What is left of a container's limit, in control groups of version 2 or 1."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such file; or "max", which is no number
            return float((_GROUP / limit).read_text("ascii")) - float((_GROUP / used).read_text("ascii"))
    return float("inf")


def _gigabytes(amount: float) -> str:
    return f"{amount / GB:,.0f} GB" if amount >= 10 * GB else f"{amount / GB:.2g} GB"
