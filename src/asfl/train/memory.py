"""Let the C library keep freed memory, so that every round's activations needn't be mapped and cleared anew."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEEP_BELOW = 1 << 30


def keep_freed_memory() -> bool:
    """For the whole process; False where the C library has no such switch."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEEP_BELOW)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BELOW))
