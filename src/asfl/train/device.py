"""Where PyTorch computes, and what the C library does with the memory that it frees."""

import ctypes

import torch

from asfl.config.errors import AsflError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEEP_BELOW = 1 << 30


def device_named(name: str) -> torch.device:
    """Where to compute; "auto" is a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise AsflError('training.device = "cuda", but PyTorch sees no GPU here; "auto" or "cpu" would work')
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def keep_freed_memory() -> bool:
    """So that activations needn't be mapped and cleared anew every round; False where the C library can't."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEEP_BELOW)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BELOW))
